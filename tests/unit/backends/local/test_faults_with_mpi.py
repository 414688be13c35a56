"""Faults under real launchers and both frameworks, on this machine."""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent.launchers import LAUNCHERS
from spotmpi.backends.local.backend import LocalBackend
from spotmpi.core import names
from spotmpi.runs import reader
from spotmpi.spec.source import load_spec
from tests.contract.conftest import BackendHarness, local_harness
from tests.contract.event_values import texts
from tests.contract.processes import wait_until
from tests.unit.backends.local_runs import SLOW, attempts_of, both_attempts, paths_of, rank

pytestmark = [pytest.mark.images, pytest.mark.timeout(600)]


@pytest.fixture
def local(tmp_path: Path) -> Iterator[BackendHarness]:
    yield from local_harness(tmp_path / "runs", SLOW)


# Long enough for a kill in the middle of two checkpoints.
TOTAL = 250
DIGITS = ["--global-batch", "32", "--iterations", str(TOTAL), "--report-every", "1"]
EVERY = 0.4  # seconds between checkpoints
WAYS = {
    "chainermn-mpirun": {"image": "chainermn", "launcher": "mpirun", "slots": 2},
    "pytorch-mpirun": {"image": "pytorch", "launcher": "mpirun", "slots": 2},
    "pytorch-torchrun": {"image": "pytorch", "launcher": "torchrun", "nodes": 2},
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The checksum of the parameters that an uninterrupted run comes to, by the way its ranks were started.

    Its ranks are new interpreters, those of other runs forks, which changes no bit either.
    """

    @functools.cache
    def checksum(way: str) -> str:
        harness = BackendHarness(LocalBackend(tmp_path_factory.mktemp(way)), timeout=SLOW)
        run = harness.submit({"program": "digits", "args": DIGITS, "preload": [], **WAYS[way]})
        harness.wait_for_state(run, "succeeded")
        return _result(paths_of(harness, run))

    return checksum


def _result(paths: names.RunPaths) -> str:
    summary: Any = reader.summary(paths)
    return str(summary["result"]["parameters"])


AT_NIGHT = pytest.mark.nightly("a whole training of ten seconds or more, by another way to the same code")


def ways(*every_day: str) -> list[Any]:
    """All ways to start ranks, those that are not *every_day* for the night."""
    return [pytest.param(way, marks=[] if way in every_day else AT_NIGHT) for way in WAYS]


@pytest.mark.parametrize("loaders", [pytest.param(0, marks=AT_NIGHT), 2], ids=lambda count: f"{count} loader processes")
@pytest.mark.parametrize("way", ways("chainermn-mpirun"))
def test_a_killed_rank_costs_at_most_a_checkpoint_interval_and_changes_no_bit_of_the_result(
    local: BackendHarness, way: str, loaders: int, undisturbed: Callable[[str], str]
) -> None:
    args = [*DIGITS, "--loader-processes", str(loaders)]
    run = local.submit({"program": "digits", "args": args, "checkpoint": {"every": f"{EVERY}s"}, **WAYS[way]})
    paths = paths_of(local, run)
    wait_until(lambda: any(line["kind"] == "checkpoint" for line in reader.lines(paths.metrics)), 120)
    time.sleep(EVERY / 4)

    os.kill(rank(run, 1), signal.SIGKILL)

    local.wait_for_state(run, "succeeded")
    first, second = both_attempts(local, run)
    assert first["cause"] == "failure" and 0 < first["last_iteration"] < TOTAL, "the kill was to fall in mid-run"
    assert second["resumed_iteration"] == first["checkpoint_iteration"] > 0
    assert second["first_iteration"] == second["resumed_iteration"] + 1
    repeated, longest = _repeated_seconds(paths, second["resumed_iteration"])
    assert repeated <= EVERY + longest, "more than a checkpoint interval was repeated"
    assert _result(paths) == undisturbed(way)


@pytest.mark.parametrize("way", ways("chainermn-mpirun"))
def test_with_checkpoints_in_memory_a_killed_rank_costs_at_most_an_iteration(
    local: BackendHarness, way: str, undisturbed: Callable[[str], str]
) -> None:
    run = local.submit({"program": "digits", "args": DIGITS, "checkpoint": {"memory": "1"}, **WAYS[way]})
    local.wait_for_iteration(run, 50)

    os.kill(rank(run, 1), signal.SIGKILL)

    local.wait_for_state(run, "succeeded")
    first, second = both_attempts(local, run)
    assert first["reason"] == "rank 1 was killed by SIGKILL" and first["checkpoint_iteration"] is None
    assert not [text for text in texts(local.events(run)) if "prterun noticed" in text], "mpirun was not waited for"
    # An iteration may have ended without its report, so the checkpoint may be newer than the last report.
    assert second["resumed_iteration"] >= first["last_iteration"] - 1
    assert _result(paths_of(local, run)) == undisturbed(way)


DDP = """
import hashlib, json, torch, torch.distributed as dist
import spotmpi

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 1))
wrapped = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
found = spotmpi.checkpoint.load("ddp")
for name, part in parts.items() if found else ():
    part.load_state_dict(found.state[name])
for iteration in range(found.iteration + 1 if found else 1, 151):
    torch.manual_seed(1000 * iteration + dist.get_rank())
    inputs = torch.randn(16, 8)
    optimizer.zero_grad()
    wrapped(inputs).sub(inputs.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    scheduler.step()
    print("step", iteration, flush=True) if dist.get_rank() == 0 else None
    spotmpi.checkpoint.save(iteration, lambda: {name: part.state_dict() for name, part in parts.items()}, "ddp")
digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()
if dist.get_rank() == 0:
    print(json.dumps({"spotmpi": "result", "iteration": 150, "parameters": digest}), flush=True)
"""


def test_a_users_own_ddp_script_goes_on_from_memory_after_a_killed_rank(local: BackendHarness, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(DDP)
    job = {"command": ["python", "train.py"], "files": [str(script)], "image": "pytorch", "slots": 2}
    job |= {"launcher": "torchrun", "checkpoint": {"memory": "1"}}
    job["preload"] = list(LAUNCHERS["torchrun"].preload)  # which `spotmpi init` writes
    run, other = local.submit(job), local.submit(job)
    local.wait_for_iteration(run, 30)

    os.kill(rank(run, 1), signal.SIGKILL)

    for each in (run, other):
        local.wait_for_state(each, "succeeded")
    first, second = both_attempts(local, run)
    # An iteration may have ended without its report, so the checkpoint may be newer than the last report.
    assert second["resumed_iteration"] >= first["last_iteration"] - 1
    assert not [text for text in texts(local.events(run)) if "without preload" in text]
    assert _result(paths_of(local, run)) == _result(paths_of(local, other))


def _repeated_seconds(paths: names.RunPaths, resumed: int) -> tuple[float, float]:
    """How long the first attempt had taken for the iterations that the second repeats, and for its longest one."""
    lines = [line for line in reader.lines(paths.metrics) if line["kind"] == "metric" and line["attempt"] == 1]
    took = {line["iteration"]: sum(line["seconds"]) for line in lines}
    return sum(seconds for iteration, seconds in took.items() if iteration > resumed), max(took.values())


@pytest.mark.parametrize("way", ways("chainermn-mpirun"))
def test_a_stopped_run_resumes_with_other_limits_and_ends_bit_for_bit_the_same(
    local: BackendHarness, way: str, undisturbed: Callable[[str], str]
) -> None:
    job = {"program": "digits", "args": DIGITS, **WAYS[way]}
    run = local.submit(job)
    local.wait_for_iteration(run, 20)

    local.backend.stop(run, "for the night", now=False)

    stopped = local.wait_for_state(run, "stopped")
    assert 20 <= (stopped.iteration or 0) < TOTAL
    local.resume(run, {**job, "limits": {"failures": 0}})
    local.wait_for_state(run, "succeeded")
    assert attempts_of(local, run)[1]["resumed_iteration"] >= 20
    assert _result(paths_of(local, run)) == undisturbed(way)


@pytest.mark.parametrize(
    "name", [pytest.param("foreign", marks=AT_NIGHT), pytest.param("foreign-torchrun", marks=AT_NIGHT), "foreign-plain"]
)
def test_a_foreign_script_is_measured_by_its_own_lines_under_each_launcher(
    local: BackendHarness, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(names.PROJECT)
    values = load_spec(names.EXAMPLES / f"{name}.toml").model_dump(exclude_unset=True)
    run = local.submit({**values, "args": ["--steps", "50"]})

    local.wait_for_state(run, "succeeded")

    metrics = [line for line in reader.lines(paths_of(local, run).metrics) if line["kind"] == "metric"]
    assert [line["iteration"] for line in metrics] == [10, 20, 30, 40, 50]
    losses = [line["loss"] for line in metrics]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("digits", marks=pytest.mark.smoke),
        pytest.param("digits-pytorch", marks=pytest.mark.smoke),
        pytest.param("digits-torchrun", marks=AT_NIGHT),
        "allreduce",
    ],
)
def test_the_light_examples_run(local: BackendHarness, name: str) -> None:
    light = {"allreduce": ["--max-bytes", "4096"]}.get(name, ["--global-batch", "64", "--epochs", "1"])
    spec = load_spec(names.EXAMPLES / f"{name}.toml", [f"args={json.dumps(light)}"])

    run = local.submit(spec.model_dump(exclude_unset=True))

    assert local.wait_for_state(run, "succeeded").attempt == 1
