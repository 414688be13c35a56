"""Worker pools on the test cluster, under an environment's policies and rights: calls, faults, sizes, keys, the end."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import pytest
from distributed import Client

import spotmpi
from spotmpi.agent import protocol, record
from spotmpi.agent.plan import WORKER, Member
from spotmpi.core.certificates import run_certificates, write_certificates
from spotmpi.pools.engine import Engine
from spotmpi.pools.errors import PoolError, PoolLost
from spotmpi.programs.pool.call import CallAborted
from tests.cluster.pools import LIMIT, PoolRun, has_workers, place
from tests.cluster.runs import Runs
from tests.testbed.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.pod_images("chainermn"), pytest.mark.timeout(400)]

at_night = pytest.mark.nightly("half a minute each; by day a map loses a worker, and a driver script runs to its end")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # pods have no tests

DRIVER = """
import math
import spotmpi

with spotmpi.pool(workers=99) as pool:
    print("sum", sum(pool.map(math.factorial, range(6))))
"""


def process_id() -> int:
    return os.getpid()


def eat_memory() -> int:
    eaten = [b"1" * 2**20 for _ in range(2000)]
    return len(eaten)


@pytest.fixture
def start(runs: Runs) -> Callable[..., PoolRun]:
    """A function that starts a pool of a number of workers."""
    return lambda workers, **values: PoolRun(runs, workers, **values)


def test_a_map_is_complete_and_in_order_though_a_worker_is_evicted_and_a_stop_leaves_nothing(
    start: Callable[..., PoolRun],
) -> None:
    up = start(2)
    with up.join() as pool:
        wait_for("workers", lambda: has_workers(pool, 2), LIMIT)
        before = up.pods()
        results = pool.map(place, range(40), [0.3] * 40)
        first = [next(results) for _ in range(4)]
        up.runs.backend.inject_fault(up.run.id, Member(WORKER, 1), "evict")
        everything = first + list(results)
        assert [number for number, _ in everything] == list(range(40))
        assert {pod.rpartition("-")[2] for _, pod in everything} == {"0", "1"}, "both workers had calls"
        wait_for("the replacement", lambda: up.pods().get(1) not in (None, before[1]), LIMIT)
        wait_for("its worker", lambda: has_workers(pool, 2), LIMIT)
        assert pool.workers[1].submit(place, 99).result(LIMIT)[0] == 99

    state = up.runs.backend.state(up.run.id)
    assert (state.state, state.interruptions, state.failures) == ("running", 0, 0), "workers come and go in a pool"
    up.runs.backend.stop(up.run.id, "enough", False)
    assert up.run.end().kind == record.STOPPED
    lines = up.run.lines()
    assert sorted({int(line.split()[1]) for line in lines if line.startswith("number")} - {99}) == list(range(40))
    left = [(event.values["member"], event.reason) for event in up.run.events if event.kind == record.LEFT]
    assert left == [("worker/1", "the pod of this node received SIGTERM")]
    up.run.wait_until_gone()


def test_leaving_a_pool_that_its_driver_has_brought_up_ends_the_run(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    messages: list[str] = []
    image = f"kubernetes.image={runs.testbed.images['chainermn']}"
    with spotmpi.pool(
        workers=1,
        on=f"kubernetes/{runs.namespace}",
        overrides=[image, "kubernetes.volume=shared"],
        echo=messages.append,
    ) as pool:
        assert pool.submit(place, 5).result(LIMIT)[0] == 5
        run = pool.id
    state = runs.in_another_terminal(tmp_path / "runs").backend.state(run)
    assert (state.state, state.reason) == ("stopped", "closed by its driver"), messages
    wait_for("nothing is left", lambda: not runs.testbed.get("jobs,pods", "-n", runs.namespace)["items"], LIMIT)


@at_night
def test_a_pool_grows_and_shrinks(start: Callable[..., PoolRun]) -> None:
    up = start(1)
    with up.join() as pool:
        wait_for("the first worker", lambda: has_workers(pool, 1), LIMIT)
        pool.scale(3)
        wait_for("three workers", lambda: has_workers(pool, 3), LIMIT)
        assert {host for _, host in pool.run(place, 7).values()} == {f"{up.run.id}-worker-{k}" for k in range(3)}
        pool.scale(1)
        wait_for("one worker", lambda: has_workers(pool, 1) and set(up.pods()) == {0}, LIMIT)
        assert pool.submit(place, 1).result(LIMIT) == (1, f"{up.run.id}-worker-0")


@at_night
def test_a_call_survives_the_loss_of_the_only_worker(start: Callable[..., PoolRun]) -> None:
    """Its replacement comes later than after the 12 s for which a pool on one machine waits: 10 s, and its start."""
    up = start(1)
    with up.join() as pool:
        wait_for("the worker", lambda: has_workers(pool, 1), LIMIT)
        call = pool.submit(place, 1, 8.0)
        wait_for("its start", lambda: "processing" in pool._opened().states().values(), LIMIT)
        up.delete(up.pods()[0])
        assert call.result(LIMIT) == (1, f"{up.run.id}-worker-0")


@at_night
def test_the_loss_of_node_0_ends_calls_with_its_reason_and_the_next_attempt_can_be_joined(
    start: Callable[..., PoolRun],
) -> None:
    up = start(1)
    with up.join() as pool:
        wait_for("the worker", lambda: has_workers(pool, 1), LIMIT)
        call = pool.submit(place, 1, 300.0)
        up.delete(up.run.pod(0)["metadata"]["name"])
        began = time.monotonic()
        with pytest.raises(PoolLost, match="node 0"):
            call.result(60)
        assert time.monotonic() - began < 40
    with up.join() as pool:
        wait_for("the worker", lambda: has_workers(pool, 1), LIMIT)
        assert pool.submit(place, 2).result(LIMIT)[0] == 2
    state = up.runs.backend.state(up.run.id)
    assert (state.state, state.interruptions) == ("running", 1)


@at_night
def test_pools_beside_each_other_serve_only_who_has_their_certificates(
    start: Callable[..., PoolRun], tmp_path: Path
) -> None:
    one, other = start(1), start(1)
    forged = write_certificates(tmp_path / "forged", run_certificates(one.run.id))
    backend = one.runs.backend
    with one.join() as pool, backend.pool_address(one.run.id) as own, backend.pool_address(other.run.id) as foreign:
        wait_for("the worker", lambda: has_workers(pool, 1), LIMIT)
        trusting = write_certificates(tmp_path / "trusting", {path.name: path.read_text() for path in forged.iterdir()})
        (trusting / protocol.TLS_CA).write_text((own.tls / protocol.TLS_CA).read_text())
        for tls in (foreign.tls, forged, trusting):
            with pytest.raises((PoolError, PoolLost), match="certificates are not those of the run"):
                Engine(own.url, str(tls))
        with pytest.raises(OSError):
            Client(own.url.replace("tls://", "tcp://"), timeout=5)
        assert pool.submit(place, 3).result(LIMIT) == (3, f"{one.run.id}-worker-0")


def test_a_driver_script_runs_on_node_0_and_the_pool_ends_with_it(
    start: Callable[..., PoolRun], tmp_path: Path
) -> None:
    script = tmp_path / 'drive "it\'s"\nnow.py'
    script.write_text(DRIVER)
    up = start(1, command=["python3", script.name], files=[str(script)])
    end = up.run.end(LIMIT)
    assert end.kind == record.SUCCEEDED, up.run.recent_events()
    assert "sum 154" in up.run.lines()
    wait_for("the end of the workers", lambda: not up.pods(), LIMIT)


@at_night
def test_a_killed_worker_process_comes_back_in_its_pod(start: Callable[..., PoolRun]) -> None:
    up = start(1)
    with up.join() as pool:
        wait_for("the worker", lambda: has_workers(pool, 1), LIMIT)
        before, pods = pool.workers[0].submit(process_id).result(LIMIT), up.pods()
        up.runs.backend.inject_fault(up.run.id, Member(WORKER, 0), "kill")
        assert pool.workers[0].submit(process_id).result(LIMIT) != before
        assert up.pods() == pods
    up.run.until("the reason", lambda event: "started again" in str(event.values.get("text")))


@at_night
def test_a_call_that_eats_all_memory_is_given_up_and_its_worker_works_on(start: Callable[..., PoolRun]) -> None:
    up = start(1, pool={"count": 1, "memory": "600Mi"})
    with up.join() as pool:
        wait_for("the worker", lambda: has_workers(pool, 1), LIMIT)
        with pytest.raises(CallAborted, match="a call of eat_memory ended the process of its worker 3 times"):
            pool.submit(eat_memory).result(2 * LIMIT)
        wait_for("the worker", lambda: has_workers(pool, 1), LIMIT)
        assert pool.submit(place, 4).result(LIMIT)[0] == 4
    up.run.until("its reason", lambda event: "raise pool.memory" in f"{event.values.get('text')} {event.reason}")


@at_night
def test_calls_of_a_frozen_worker_run_elsewhere(start: Callable[..., PoolRun]) -> None:
    up = start(2)
    with up.join() as pool:
        wait_for("workers", lambda: has_workers(pool, 2), LIMIT)
        results = pool.map(place, range(20), [0.3] * 20)
        first = next(results)
        worker = up.run.process(Member(WORKER, 1), "the worker", lambda command: "programs.pool.worker" in command)
        os.kill(worker, signal.SIGSTOP)
        began = time.monotonic()
        assert [number for number, _ in [first, *results]] == list(range(20))
        assert time.monotonic() - began < 60
        os.kill(worker, signal.SIGCONT)
        wait_for("the frozen worker", lambda: has_workers(pool, 2), LIMIT)
