"""Faults under real launchers and both frameworks, on this machine."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs import names, runs
from jobs.backends.local import LocalBackend
from jobs.events import Event
from jobs.pod import record
from tests.contract import living
from tests.contract.conftest import Somewhere
from tests.contract.fake_program import SOURCE, fake_job
from tests.contract.living import wait_until

pytestmark = [pytest.mark.images, pytest.mark.timeout(600)]

# Image, launcher and more of each way in which ranks are started.
MPIRUN = {"image": "chainermn", "launcher": "mpirun", "slots": 2}
TORCHRUN = {"image": "pytorch", "launcher": "torchrun", "nodes": 2, "slots": 1}
LAUNCHERS = pytest.mark.parametrize("start", [MPIRUN, TORCHRUN], ids=["mpirun", "torchrun"])


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Somewhere]:
    """The local backend; nothing may be left of its runs."""
    backend = LocalBackend(tmp_path / "runs")
    yield Somewhere(backend, patience=300)
    for state in backend.list():
        backend.stop(state.id, "the test is over", now=True)
        wait_until(lambda run=state.id: backend.state(run).over)  # type: ignore[misc]
        wait_until(lambda run=state.id: not living.of_run(run))  # type: ignore[misc]


def paths_of(here: Somewhere, run: str) -> names.RunPaths:
    return names.RunPaths(Path(here.backend.state(run).folder))


def fake(start: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The fake program under a launcher; both images bring their own python."""
    return {**fake_job(**more), "command": ["python", "-c", SOURCE], **start}


def rank(run: str, number: int) -> int:
    """The process id of a rank, once it is there."""

    def find() -> int:
        for pid in living.of_run(run):
            variables = _variables(pid)
            told = variables.get("OMPI_COMM_WORLD_RANK", variables.get("RANK"))
            command = Path(f"/proc/{pid}/cmdline").read_bytes() if Path(f"/proc/{pid}").exists() else b""
            others = (b"loading_process", b"distributed.run", b"starter.py")
            if told == str(number) and not any(other in command for other in others):
                return pid
        return 0

    return wait_until(find)


def _variables(pid: int) -> dict[str, str]:
    try:
        items = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    return dict(item.split("=", 1) for item in items if "=" in item)


def launcher(run: str, word: str) -> list[int]:
    """The process ids of the run's launchers."""
    return wait_until(lambda: [pid for pid, said in living.of_run(run).items() if word in said.split(" -c ")[0]])


def texts(events: list[Event]) -> list[str]:
    return [event.values["text"] for event in events if event.kind == record.LINE]


@LAUNCHERS
def test_a_killed_rank_is_named_and_the_next_attempt_goes_on_above_zero(here: Somewhere, start: dict[str, Any]) -> None:
    run = here.submit(fake(start, iterations=100, pause=0.05))
    here.iteration_once(run, 5)

    os.kill(rank(run, 1), signal.SIGKILL)

    state = here.state_once(run, "succeeded")
    first, second = runs.attempts(paths_of(here, run))
    assert first["reason"] == "rank 1 was killed by SIGKILL" and first["cause"] == "failure"
    assert second["resumed_iteration"] > 0 and second["lost_iterations"] <= 1
    assert (state.attempt, state.failures, state.interruptions) == (2, 1, 0)


@pytest.mark.parametrize(
    ("start", "word"), [(MPIRUN, "prterun"), (TORCHRUN, "torch.distributed.run")], ids=["mpirun", "torchrun"]
)
def test_a_killed_launcher_takes_its_ranks_along_and_is_a_failure(
    here: Somewhere, start: dict[str, Any], word: str
) -> None:
    run = here.submit(fake(start, iterations=100, pause=0.05))
    here.iteration_once(run, 5)
    before = set(living.of_run(run))

    os.kill(launcher(run, word)[-1], signal.SIGKILL)

    here.state_once(run, "succeeded")
    first, second = runs.attempts(paths_of(here, run))
    assert "the launcher on node" in first["reason"] and "killed by SIGKILL" in first["reason"]
    assert first["cause"] == "failure" and second["resumed_iteration"] > 0
    assert not before & set(living.of_run(run))


@LAUNCHERS
def test_a_killed_supervisor_leaves_no_rank(here: Somewhere, start: dict[str, Any]) -> None:
    run = here.submit(fake(start, iterations=10_000, pause=0.05))
    here.iteration_once(run, 2)

    os.kill(living.supervisors(paths_of(here, run).folder)[1], signal.SIGKILL)

    wait_until(lambda: not living.of_run(run))
    here.state_once(run, "lost")


@LAUNCHERS
def test_a_hang_is_ended_and_tried_again(here: Somewhere, start: dict[str, Any]) -> None:
    job = fake(start, iterations=6, fault={1: [3, "hang"]}, limits={"no_progress": "20s"})

    events = here.all_events(job)

    told = next(event.reason or "" for event in events if event.kind == "restarted")
    assert "no progress for limits.no_progress (20s), last iteration 3" in told
    assert events[-1].kind == "succeeded"


@LAUNCHERS
def test_a_stop_gets_its_checkpoint_before_the_launcher_hears_of_it(here: Somewhere, start: dict[str, Any]) -> None:
    run = here.submit(fake(start, iterations=10_000, pause=0.05, every=100_000))
    here.iteration_once(run, 3)

    here.backend.stop(run, "enough", now=False)

    here.state_once(run, "stopped")
    reasons = [line["reason"] for line in runs.lines(paths_of(here, run).metrics) if line["kind"] == "checkpoint"]
    assert reasons == ["notice"]
    if start is MPIRUN:  # torchrun itself prints one when it is told to end
        assert not [text for text in texts(list(here.backend.events(run, follow=True))) if "Traceback" in text]


@LAUNCHERS
@pytest.mark.parametrize(("code", "cause"), [(75, "interruption"), (78, "not retryable"), (3, "failure")])
def test_the_exit_code_of_a_rank_is_what_counts(here: Somewhere, start: dict[str, Any], code: int, cause: str) -> None:
    limits = {"failures": 0, "interruptions": 0}
    run = here.submit(fake(start, iterations=4, fault={1: [2, f"exit {code}"]}, limits=limits))
    here.state_once(run, "failed")

    (attempt,) = runs.attempts(paths_of(here, run))
    assert attempt["cause"] == cause and f"rank 0 ended with exit code {code}" in attempt["reason"]


@LAUNCHERS
def test_an_exception_in_a_rank_is_the_reason(here: Somewhere, start: dict[str, Any]) -> None:
    code = "import os, time\nif os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('RANK')) == '1':\n"
    code += "    raise ValueError('no such weights')\ntime.sleep(30)"
    run = here.submit({"command": ["python", "-c", code], "limits": {"failures": 0}, **start})

    state = here.state_once(run, "failed")

    assert "rank 1 ended with exit code 1: ValueError: no such weights" in (state.reason or "")


@LAUNCHERS
def test_every_rank_sees_the_same_variables_but_those_that_tell_it_apart(
    here: Somewhere, start: dict[str, Any]
) -> None:
    code = "import json, os; print('VARIABLES ' + json.dumps({k: os.environ.get(k) for k in {}}))"
    asked = {"MINE": "with spaces, 'quotes', $HOME and ünïcode", "OMP_NUM_THREADS": "1"}
    wanted = [*asked, "SPOTMPI_RUN", "SPOTMPI_WORLD_SIZE", "SPOTMPI_ATTEMPT", "SPOTMPI_CHECKPOINT_PATH", "PATH", "HOME"]
    command = ["python", "-c", code.replace("{}", repr(wanted), 1)]

    told = [
        json.loads(text.partition(" ")[2])
        for text in texts(here.all_events({"command": command, "env": asked, **start}))
        if text.startswith("VARIABLES")
    ]

    assert len(told) == 2 and told[0] == told[1]
    assert {name: told[0][name] for name in asked} == asked and told[0]["SPOTMPI_WORLD_SIZE"] == "2"


def test_lines_under_mpirun_know_their_rank_and_long_ones_stay_whole(here: Somewhere) -> None:
    code = "import os; r = os.environ['OMPI_COMM_WORLD_RANK']; print('rank', r, 'x' * 50_000)"
    events = here.all_events({"command": ["python", "-c", code], **MPIRUN})

    lines = [event.values for event in events if event.kind == record.LINE]
    assert sorted(line["rank"] for line in lines) == [0, 1]
    assert all(line["text"] == f"rank {line['rank']} " + "x" * 50_000 for line in lines)


def test_ten_thousand_quick_lines_of_each_rank_arrive_in_order(here: Somewhere) -> None:
    code = "for i in range(10_000): print(i, 'y' * 60)"
    events = here.all_events({"command": ["python", "-c", code], **MPIRUN})

    for number in (0, 1):
        lines = [event.values for event in events if event.kind == record.LINE]
        said = [line["text"].split()[0] for line in lines if line["rank"] == number]
        assert said == [str(i) for i in range(10_000)]


# Real programs: long enough for a kill in the middle of two checkpoints.
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
    """The checksum of the parameters that an uninterrupted run comes to, by the way its ranks were started."""
    known: dict[str, str] = {}

    def checksum(way: str) -> str:
        if way not in known:
            place = Somewhere(LocalBackend(tmp_path_factory.mktemp(way)), patience=300)
            run = place.submit({"program": "digits", "args": DIGITS, **WAYS[way]})
            place.state_once(run, "succeeded")
            known[way] = _result(paths_of(place, run))
        return known[way]

    return checksum


def _result(paths: names.RunPaths) -> str:
    summary = runs.summary(paths)
    assert summary is not None
    return str(summary["result"]["parameters"])


@pytest.mark.parametrize("loaders", [0, 2], ids=lambda count: f"{count} loader processes")
@pytest.mark.parametrize("way", WAYS)
def test_a_killed_rank_costs_at_most_a_checkpoint_interval_and_changes_no_bit_of_the_result(
    here: Somewhere, way: str, loaders: int, undisturbed: Callable[[str], str]
) -> None:
    args = [*DIGITS, "--loader-processes", str(loaders)]
    run = here.submit({"program": "digits", "args": args, "checkpoint": {"every": f"{EVERY}s"}, **WAYS[way]})
    paths = paths_of(here, run)
    wait_until(lambda: any(line["kind"] == "checkpoint" for line in runs.lines(paths.metrics)), 120)
    time.sleep(EVERY / 4)

    os.kill(rank(run, 1), signal.SIGKILL)

    here.state_once(run, "succeeded")
    first, second = runs.attempts(paths)
    assert first["cause"] == "failure" and 0 < first["last_iteration"] < TOTAL, "the kill was to fall in mid-run"
    assert second["resumed_iteration"] == first["checkpoint_iteration"] > 0
    assert second["first_iteration"] == second["resumed_iteration"] + 1
    repeated, longest = _repeated_seconds(paths, second["resumed_iteration"])
    assert repeated <= EVERY + longest, "more than a checkpoint interval was repeated"
    assert _result(paths) == undisturbed(way)


def _repeated_seconds(paths: names.RunPaths, resumed: int) -> tuple[float, float]:
    """How long the first attempt had taken for the iterations that the second repeats, and for its longest one."""
    lines = [line for line in runs.lines(paths.metrics) if line["kind"] == "metric" and line["attempt"] == 1]
    took = {line["iteration"]: sum(line["seconds"]) for line in lines}
    return sum(seconds for iteration, seconds in took.items() if iteration > resumed), max(took.values())


@pytest.mark.parametrize("way", WAYS)
def test_a_stopped_run_goes_on_with_other_limits_and_ends_bit_for_bit_the_same(
    here: Somewhere, way: str, undisturbed: Callable[[str], str]
) -> None:
    job = {"program": "digits", "args": DIGITS, **WAYS[way]}
    run = here.submit(job)
    here.iteration_once(run, 20)

    here.backend.stop(run, "for the night", now=False)

    stopped = here.state_once(run, "stopped")
    assert 20 <= (stopped.iteration or 0) < TOTAL
    here.resume(run, {**job, "limits": {"failures": 0}})
    here.state_once(run, "succeeded")
    assert runs.attempts(paths_of(here, run))[1]["resumed_iteration"] >= 20
    assert _result(paths_of(here, run)) == undisturbed(way)


@pytest.mark.parametrize("name", ["foreign", "foreign-torchrun", "foreign-plain"])
def test_a_foreign_script_is_measured_by_its_own_lines_under_each_launcher(
    here: Somewhere, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobs.spec import load

    monkeypatch.chdir(names.PROJECT)
    values = load(names.EXAMPLES / f"{name}.toml").model_dump(exclude_unset=True)
    run = here.submit({**values, "args": ["--steps", "50"]})

    here.state_once(run, "succeeded")

    metrics = [line for line in runs.lines(paths_of(here, run).metrics) if line["kind"] == "metric"]
    assert [line["iteration"] for line in metrics] == [10, 20, 30, 40, 50]
    losses = [line["loss"] for line in metrics]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["digits", "digits-pytorch", "digits-torchrun", "allreduce"])
def test_the_light_examples_run(here: Somewhere, name: str) -> None:
    from jobs.spec import load

    light = {"allreduce": ["--max-bytes", "4096"]}.get(name, ["--global-batch", "64", "--epochs", "1"])
    spec = load(names.EXAMPLES / f"{name}.toml", [f"args={json.dumps(light)}"])

    run = here.submit(spec.model_dump(exclude_unset=True))

    assert here.state_once(run, "succeeded").attempt == 1
