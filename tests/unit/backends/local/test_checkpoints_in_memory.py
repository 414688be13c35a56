"""A program of a user's own whose rank, agent or run ends: what it had saved to memory is where it goes on."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from spotmpi.core import names
from spotmpi.runs import reader
from tests.contract import processes
from tests.contract.conftest import BackendHarness
from tests.contract.processes import wait_until
from tests.unit.backends.local_runs import attempts_of, both_attempts, paths_of, python, rank

TOTAL = 60
# Each iteration depends on all before it. One that is reported has a checkpoint under way, and the one before has it.
PROGRAM = """
import hashlib, json, sys, time
import spotmpi
found = spotmpi.checkpoint.load("chain")
iteration, weights = found or (0, {"first": b"", "all": []})
while iteration < %d:
    weights["all"].append(hashlib.sha256(str(weights).encode()).hexdigest())
    iteration += 1
    spotmpi.checkpoint.save(iteration, weights, "chain")
    print(json.dumps({"spotmpi": "metric", "iteration": iteration, "seconds": [0.01]}), flush=True)
    time.sleep(%s)
    if iteration == %s:
        sys.exit(3)
parameters = hashlib.sha256(str(weights).encode()).hexdigest()
print(json.dumps({"spotmpi": "result", "iteration": iteration, "parameters": parameters}), flush=True)
"""


def undisturbed() -> str:
    """The checksum of the parameters that an uninterrupted run comes to."""
    weights: dict[str, Any] = {"first": b"", "all": []}
    for _ in range(TOTAL):
        weights["all"].append(hashlib.sha256(str(weights).encode()).hexdigest())
    return hashlib.sha256(str(weights).encode()).hexdigest()


def job(memory: str = "1", pause: float = 0.05, fail_at: int = 0, **more: Any) -> dict[str, Any]:
    checkpoint = {"memory": memory, "every": "1h", **more.pop("checkpoint", {})}
    return python(PROGRAM % (TOTAL, pause, fail_at), checkpoint=checkpoint, **more)


def wait_for_agents(local: BackendHarness, run: str) -> None:
    """Wait until the agent has ended, which comes after the end of the run."""
    wait_until(lambda: not processes.agents(paths_of(local, run).folder))


def memory_of(local: BackendHarness, run: str) -> Path:
    return Path(names.memory_folder(paths_of(local, run).folder))


def result(local: BackendHarness, run: str) -> str:
    summary: Any = reader.summary(paths_of(local, run))
    return str(summary["result"]["parameters"])


def test_a_killed_rank_loses_at_most_one_iteration_and_no_bit_of_the_result(local: BackendHarness) -> None:
    run = local.submit(job())
    local.wait_for_iteration(run, 9)

    os.kill(rank(run, 0), signal.SIGKILL)

    local.wait_for_state(run, "succeeded")
    first, second = both_attempts(local, run)
    assert first["cause"] == "failure"
    # One that is in memory may not have been reported.
    assert -1 <= first["last_iteration"] - second["resumed_iteration"] <= 1
    assert result(local, run) == undisturbed()
    wait_for_agents(local, run)
    assert not memory_of(local, run).exists(), "it takes memory only during the run"


def test_what_only_memory_has_is_on_the_volume_when_the_run_ends(local: BackendHarness) -> None:
    run = local.submit(job(pause=0, fail_at=25, limits={"failures": 0}))
    local.wait_for_state(run, "failed")
    wait_for_agents(local, run)
    assert [path.name for path in paths_of(local, run).checkpoints.iterdir()] == ["iteration-000000025"]
    assert not memory_of(local, run).exists()

    local.resume(run, job(pause=0))

    local.wait_for_state(run, "succeeded")
    assert attempts_of(local, run)[1]["resumed_iteration"] == 25
    assert result(local, run) == undisturbed()


@pytest.mark.parametrize(
    "killed", ["both", pytest.param("the guarded one", marks=pytest.mark.extensive("the easier case"))]
)
def test_a_killed_agent_costs_a_resumed_run_no_more(local: BackendHarness, killed: str) -> None:
    run = local.submit(job())
    local.wait_for_iteration(run, 10)
    folder = paths_of(local, run).folder
    guard, guarded = processes.agents(folder)

    if killed == "both":
        os.kill(guard, signal.SIGKILL)
    os.kill(guarded, signal.SIGKILL)
    wait_until(lambda: not processes.of_run(run) and not processes.agents(folder))
    local.wait_for_state(run, "lost")  # a process that ends has no command line any more while it still holds the lock
    assert memory_of(local, run).exists() == (killed == "both"), "nobody was left to remove it"
    local.resume(run, job(pause=0))

    local.wait_for_state(run, "succeeded")
    summary: Any = reader.summary(paths_of(local, run))
    first, second = summary["attempts"]
    # The agent may have been killed before it had read what the rank printed last.
    assert second["resumed_iteration"] >= first["last_iteration"] - 1
    assert result(local, run) == undisturbed()
    wait_for_agents(local, run)
    assert not memory_of(local, run).exists()


def test_the_memory_of_a_lost_run_is_free_once_its_record_is_deleted(local: BackendHarness) -> None:
    run = local.submit(job())
    local.wait_for_iteration(run, 3)
    for process in processes.agents(paths_of(local, run).folder):
        os.kill(process, signal.SIGKILL)
    wait_until(lambda: not processes.of_run(run))

    memory = memory_of(local, run)
    assert memory.exists()

    reader.remove(paths_of(local, run))

    assert not memory.exists()


def test_a_run_of_the_same_id_in_another_folder_has_memory_of_its_own(tmp_path: Path) -> None:
    one, other = (tmp_path / runs / "same-1" for runs in ("runs", "other"))
    for folder in (one, other):
        folder.mkdir(parents=True)
        Path(names.memory_folder(folder)).mkdir()

    reader.remove(names.RunPaths(one))

    assert not Path(names.memory_folder(one)).exists() and Path(names.memory_folder(other)).exists()
    reader.remove(names.RunPaths(other))
    assert not Path(names.memory_folder(other)).exists()
