"""Pools on this machine that go wrong or end: each with processes of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import spotmpi
from spotmpi.agent.plan import COORDINATOR, WORKER, Member
from spotmpi.api.pools import resize
from spotmpi.backends import targets
from spotmpi.backends.targets import Target
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.core.events import Event
from spotmpi.pools.connection import SchedulerConnection
from spotmpi.pools.engine import Engine
from spotmpi.pools.errors import PoolError, PoolLost
from tests.contract.processes import of_run, wait_until

DRIVER = """
import os, spotmpi
print("run", os.environ.get("SPOTMPI_RUN"), flush=True)
with spotmpi.pool(workers=9) as pool:
    print("sum", sum(pool.map(abs, range(-20, 0))), flush=True)
    print("workers", len(pool.workers), flush=True)
    pool.workers[1].submit(print, "hello").result()
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPOTMPI_RUNS", str(tmp_path / "runs"))
    return Target("local", tmp_path / "runs")


def test_a_lost_scheduler_ends_calls_with_node_and_reason_and_the_certificates_of_another_run_are_refused(
    target: Target,
) -> None:
    with spotmpi.pool(workers=1, on=target) as pool, spotmpi.pool(workers=1, on=target) as other:
        assert other.submit(abs, -1).result(60) == 1
        assert pool._engine and other._engine
        url = pool._engine.connection.url
        with pytest.raises(PoolLost, match="refused this driver: its certificates are not those of the run"):
            Engine(url, other._engine.connection.tls)
        call = pool.submit(time.sleep, 600)
        targets.backend(target).inject_fault(pool.id, COORDINATOR, "kill")
        killed = time.monotonic()
        with pytest.raises(PoolLost, match=r"node 0.*scheduler was killed by SIGKILL"):
            call.result(60)
        assert time.monotonic() - killed < 30
        with pytest.raises(PoolLost):
            pool.submit(abs, 1)
    wait_until(lambda: not of_run(pool.id) and not of_run(other.id))
    with pytest.raises(PoolError, match="closed"):
        Engine.submit(_closed(), [])
    with pytest.raises(PoolError, match="a forked process cannot use its parent's pool"):
        Engine.submit(_closed(False), [])
    with pytest.raises(PoolError, match=r"closed: spotmpi.pool\(...\) opens another"):
        pool.submit(abs, 1)
    with pytest.raises(SpotmpiError, match="stopped: closed by its driver"):
        spotmpi.pool(pool.id, on=target).open()


def _closed(closed: bool = True) -> Engine:
    """One of another process, since none has the id 0."""
    engine = Engine.__new__(Engine)
    engine.connection, engine._process = SchedulerConnection("", "", "", None, None, print), 0
    engine.connection.closed = closed
    return engine


def test_a_run_ends_with_the_command_of_its_pool(target: Target, tmp_path: Path) -> None:
    (tmp_path / "drive.py").write_text(DRIVER)
    spec = {"launcher": "pool", "command": [sys.executable, "drive.py"], "pool": {"count": 2}}
    events: list[Event] = []
    state = spotmpi.run(spec, on=target, on_event=events.append)
    lines = [(event.member, event.values["text"]) for event in events if event.kind == "line"]
    assert (state.state, state.reason) == ("succeeded", None)
    assert lines[1:4] == [(COORDINATOR, f"run {state.id}"), (COORDINATOR, "sum 210"), (COORDINATOR, "workers 2")]
    assert (Member(WORKER, 1), "hello") in lines
    wait_until(lambda: not of_run(state.id))


def start_driver(code: str) -> tuple[subprocess.Popen[str], str]:
    """A process that opens a pool and prints its run, and that run."""
    command = [sys.executable, "-c", "import spotmpi, time\n" + code]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout
    return process, process.stdout.readline().strip()


def test_a_pool_without_its_driver_ends_as_failed_with_the_reason(target: Target) -> None:
    process, run = start_driver(
        "pool = spotmpi.pool(workers=1, overrides=['limits.driver=\"1s\"']).open()\n"
        "pool.submit(abs, 1).result(); print(pool.id, flush=True); time.sleep(600)"
    )
    process.kill()
    process.communicate()
    wait_until(lambda: spotmpi.status(run, on=target).over, 60)
    state = spotmpi.status(run, on=target)
    assert (state.state, state.reason) == ("failed", "no driver for 1s (limits.driver)")
    wait_until(lambda: not of_run(run))


def test_a_driver_that_ends_without_closing_its_pool_says_that_it_goes_on(target: Target) -> None:
    """It went on, and cost, without a word."""
    process, run = start_driver(
        "import os\npool = spotmpi.pool(workers=1).open()\nwith spotmpi.pool(workers=1): pass\n"
        "print(pool.id, flush=True); child = os.fork(); child and os.wait()"
    )
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert [line for line in errors.splitlines() if "not closed" in line] == [
        f"pool {run} was not closed, and goes on without a driver up to limits.driver: "
        f"`spotmpi stop {run}` ends it, and spotmpi.pool('{run}') joins it"
    ]
    spotmpi.stop(run, now=True, on=target)
    wait_until(lambda: not of_run(run))


def test_ctrl_c_in_a_driver_stops_its_run(target: Target) -> None:
    process, run = start_driver(
        "with spotmpi.pool(workers=1) as pool:\n    print(pool.id, flush=True); pool.submit(time.sleep, 600).result()"
    )
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert spotmpi.status(run, on=target).state == "stopped"
    wait_until(lambda: not of_run(run))


def test_a_detached_pool_is_joined_by_its_id_and_resized(target: Target) -> None:
    state = spotmpi.run({"launcher": "pool", "pool": {"count": 1}}, on=target, detach=True)
    try:
        with spotmpi.pool(state.id[:-2], on=target) as pool:
            resize(state.id, 2, on=target)
            assert pool.run(abs, each=[-1, -2]) == {0: 1, 1: 2}
        assert not spotmpi.status(state.id, on=target).over
        with pytest.raises(InputError, match=r"workers = 3: run .* is up already"):
            spotmpi.pool(state.id, workers=3, on=target)
        with pytest.raises(InputError, match="workers = 5000: exceeds the 1024 processes possible here"):
            resize(state.id, 5000, on=target)
    finally:
        assert spotmpi.stop(state.id, on=target).state == "stopped"
    wait_until(lambda: not of_run(state.id))
    with pytest.raises(SpotmpiError, match="stopped by its user"):
        resize(state.id, 3, on=target)
    with pytest.raises(SpotmpiError, match="stopped by its user"), targets.backend(target).pool_address(state.id):
        pass


def test_what_is_no_pool_cannot_be_joined_or_opened(target: Target) -> None:
    with pytest.raises(InputError, match="launcher = 'none': a pool needs"):
        spotmpi.pool({"command": ["true"], "launcher": "none"}, on=target).open()
    with pytest.raises(InputError, match="pool: a pool needs workers"):
        spotmpi.pool(on=target).open()
    state = spotmpi.run(["sleep", "600"], on=target, detach=True)
    with pytest.raises(InputError, match="has no workers; only a pool and a run with a stream have them"):
        resize(state.id, 3, on=target)
    spotmpi.stop(state.id, now=True, on=target)


@pytest.mark.nightly("a worker counts as lost after 15 s; a killed one is tested by day")
def test_a_frozen_worker_loses_no_call(target: Target) -> None:
    with spotmpi.pool(workers=2, on=target) as pool:
        wait_until(lambda: all(worker.connected for worker in pool.workers), 60)
        process = pool.run(os.getpid)[0]
        results = pool.map(time.sleep, [0.1] * 20)
        next(results)
        os.kill(process, signal.SIGSTOP)
        assert len(list(results)) == 19
        os.kill(process, signal.SIGKILL)
