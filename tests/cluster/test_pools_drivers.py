"""Drivers of pools on the test cluster that are suspended, killed, or cut off by the kubelet of node 0."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w

from spotmpi.agent import record
from tests.cluster.pools import LIMIT, PoolRun, has_workers, place
from tests.cluster.runs import FollowedRun, Runs
from tests.contract import processes
from tests.testbed.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.pod_images("chainermn"),
    pytest.mark.timeout(400),
    pytest.mark.nightly("a minute each; by day pools of this machine have a cut connection and a killed driver"),
]

SUSPENSION = 60.0  # seconds
DRIVER = """
import time
import spotmpi

def nap(value):
    time.sleep(0.4)
    return value

with spotmpi.pool("pool.toml") as pool:
    print(pool.id, flush=True)
    results = pool.map(nap, range(60), progress=False)
    print(next(results), flush=True)
    print(list(results) == list(range(1, 60)), flush=True)
    pool.submit(time.sleep, 600).result()
"""


def test_a_driver_that_is_suspended_for_a_minute_loses_no_call_and_the_pool_of_a_killed_one_ends_as_failed(
    runs: Runs, tmp_path: Path
) -> None:
    kubernetes = {"image": runs.testbed.images["chainermn"], "volume": "shared"}
    # A driver counts as gone half a minute after its last heartbeat.
    spec = {"launcher": "pool", "pool": {"count": 2}, "limits": {"driver": "45s"}, "kubernetes": kubernetes}
    (tmp_path / "pool.toml").write_text(tomli_w.dumps(spec))
    environment = {**os.environ, "SPOTMPI_ON": f"kubernetes/{runs.namespace}", "SPOTMPI_RUNS": str(tmp_path / "runs")}
    command = [sys.executable, "-c", DRIVER]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout
        try:
            run = FollowedRun(runs, driver.stdout.readline().strip())
            assert driver.stdout.readline() == "0\n"
            driver.send_signal(signal.SIGSTOP)
            time.sleep(SUSPENSION)
            driver.send_signal(signal.SIGCONT)
            assert driver.stdout.readline() == "True\n"
        finally:
            driver.kill()
    end = run.end(2 * LIMIT)
    assert (end.kind, end.reason) == (record.FAILED, "no driver for 45s (limits.driver)"), run.recent_events()
    wait_for("the end of its processes", lambda: not processes.of_run(run.id))


def test_a_map_goes_on_while_the_kubelet_of_node_0_is_stopped_and_its_driver_collects_the_results(runs: Runs) -> None:
    up = PoolRun(runs, 2)
    with up.join() as pool:
        wait_for("workers", lambda: has_workers(pool, 2), LIMIT)
        results = pool.map(place, range(100), [0.4] * 100)
        first = next(results)
        node = runs.testbed.node(up.run.pod(0)["spec"]["nodeName"])
        node.stop_kubelet()
        try:
            wait_for("a node that is not ready", lambda: not is_ready(runs, node.name), LIMIT)
        finally:
            node.start_kubelet()
        assert [number for number, _ in [first, *results]] == list(range(100))
        assert pool.submit(place, 100).result(LIMIT)[0] == 100
    state = runs.backend.state(up.run.id)
    assert (state.state, state.attempt, state.interruptions) == ("running", 1, 0)
    numbers = [int(line.split()[1]) for line in up.run.lines() if line.startswith("number")]
    assert len(numbers) == len(set(numbers)), "no call was executed twice"


def is_ready(runs: Runs, node: str) -> bool:
    """Whether the cluster counts a node as ready."""
    conditions = runs.testbed.get("node", node)["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
