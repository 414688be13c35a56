"""What pools are for, on the test cluster: a scan of Redis servers, and a load test beside a training run."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import tomli_w

from spotmpi.agent import record
from spotmpi.agent.plan import WORKER, Member
from spotmpi.core import names
from tests.cluster.pools import LIMIT, PoolRun, allow_egress, has_workers, small_pods
from tests.cluster.runs import Runs, digits
from tests.testbed.echo_server import echo_server
from tests.testbed.redis_servers import PREFIXES, redis_installed, redis_servers
from tests.testbed.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.pod_images("chainermn"),
    pytest.mark.timeout(400),
    pytest.mark.nightly("a minute each; by day a map loses a worker, and a driver script runs to its end"),
]

SERVERS, KEYS, DELAY = 8, 500, 0.3  # keys of each prefix on a server, and seconds that a request to it takes more
RATIO, ROUNDS = 6, 5


@pytest.mark.skipif(not redis_installed(), reason="needs redis-server: scripts/redis-packages")
def test_eight_workers_scan_eight_servers_six_times_as_fast_as_one_and_count_each_key_once_though_one_is_evicted(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(names.EXAMPLES)
    scan = importlib.import_module("scan_redis").scan
    gateway = runs.testbed.slot.gateway
    allow_egress(runs, gateway)
    kubernetes = {"templates": [small_pods(tmp_path)]}
    up = PoolRun(runs, SERVERS, files=[str(names.EXAMPLES / "scan_redis.py")], kubernetes=kubernetes)
    with redis_servers(tmp_path, SERVERS, KEYS, DELAY, gateway) as proxies, up.join() as pool:
        servers = [proxy.address for proxy in proxies]
        wait_for("workers", lambda: has_workers(pool, SERVERS), LIMIT)

        pool.run(scan, each=servers)  # imports the module
        began = time.monotonic()
        worker = pool.workers[0]
        calls = [worker.submit(scan, server) for server in servers]
        totals: list[Counter[str]] = [sum((call.result(LIMIT) for call in calls), Counter())]
        by_one, by_all = time.monotonic() - began, math.inf
        while by_one / by_all < RATIO and len(totals) <= ROUNDS:  # other work may disturb one of them
            began = time.monotonic()
            totals.append(sum(pool.map(scan, servers), Counter()))
            by_all = time.monotonic() - began

        complete = 1 + len(totals)
        results = pool.map(scan, servers)
        wait_for("another scan", lambda: all(proxy.accepted > complete for proxy in proxies))
        runs.backend.inject_fault(up.run.id, Member(WORKER, 2), "evict")
        totals.append(sum(results, Counter()))

    assert all(total == dict.fromkeys(PREFIXES, SERVERS * KEYS) for total in totals), totals
    assert by_one / by_all >= RATIO, f"{by_one:.1f} s by one worker, {by_all:.1f} s by {SERVERS}"
    scans = sorted(proxy.accepted - complete for proxy in proxies)
    assert scans == [1] * (SERVERS - 1) + [2], "the server of the evicted worker was scanned again, and no other"


def test_a_load_test_drives_a_server_by_one_pool_and_checks_its_values_by_another_beside_a_training_run(
    runs: Runs, tmp_path: Path
) -> None:
    gateway = runs.testbed.slot.gateway
    allow_egress(runs, gateway)
    kubernetes = {
        "image": runs.testbed.images["chainermn"],
        "volume": "shared",
        "templates": [small_pods(tmp_path)],
    }
    spec = tmp_path / "pool.toml"
    spec.write_text(tomli_w.dumps({"launcher": "pool", "pool": {"count": 1}, "kubernetes": kubernetes}))
    environment = {**os.environ, "SPOTMPI_ON": f"kubernetes/{runs.namespace}", "SPOTMPI_RUNS": str(tmp_path / "runs")}
    training = runs.start(digits(10_000, kubernetes={"templates": [small_pods(tmp_path)]}))
    training.until_iteration(1)
    with echo_server(gateway) as url:
        script = names.EXAMPLES / "load_test.py"
        command = [sys.executable, str(script), url, "--seconds", "5", "--rates", "5", "10", "--pool", str(spec)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT)

    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [(result["rate"], result["requests"]) for result in results] == [(5.0, 25), (10.0, 50)], done.stderr
    assert "values checked, 1 wrong\n13: {'value': '0'}\n" in done.stdout
    assert done.returncode == 1
    training.until("another iteration", lambda event: event.kind == record.METRIC, after=len(training.events))
    state = runs.backend.state(training.id)
    assert (state.state, state.attempt) == ("running", 1), "the run beside the pools was not disturbed"
