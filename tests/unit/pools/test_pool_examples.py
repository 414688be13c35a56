"""The examples of worker pools, as a user starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotmpi.agent.plan import WORKER, Member
from spotmpi.backends import targets
from spotmpi.backends.targets import Target
from spotmpi.core import names
from tests.command_line import SPOTMPI
from tests.contract import processes
from tests.testbed.echo_server import echo_server
from tests.testbed.environments import python_with
from tests.testbed.redis_servers import PREFIXES, redis_installed, redis_servers

SERVERS, KEYS = 8, 300


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "SPOTMPI_RUNS": str(tmp_path / "runs"), "PYTHONUNBUFFERED": "1"}


@pytest.mark.nightly("Redis servers from a Debian package, and a pool of its own")
@pytest.mark.skipif(not redis_installed(), reason="needs redis-server: scripts/redis-packages")
def test_a_scan_of_redis_servers_counts_every_key_once_though_a_worker_is_killed(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    script = names.EXAMPLES / "scan_redis.py"
    with redis_servers(tmp_path, SERVERS, KEYS, delay=0.05) as proxies:
        command = [sys.executable, str(script), "2", *(proxy.address for proxy in proxies)]
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            first = process.stdout.readline()
            (run,) = (path.name for path in (tmp_path / "runs").glob("pool-*"))
            targets.backend(Target("local", tmp_path / "runs")).inject_fault(run, Member(WORKER, 0), "kill")
            lines = [first, *process.stdout]

    assert process.returncode == 0
    assert first.startswith("[worker ") and first.endswith(f": {3 * KEYS} keys\n")
    counts = {line for line in lines if not line.startswith("[worker")}
    assert counts == {f"{prefix} {SERVERS * KEYS}\n" for prefix in PREFIXES}


@pytest.mark.nightly("two pools start five processes of Dask: over 10 s of processor time")
def test_a_load_test_drives_a_server_by_one_pool_and_checks_its_values_by_another(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    script = names.EXAMPLES / "load_test.py"
    with echo_server() as url:
        command = [sys.executable, str(script), url, "--seconds", "2", "--rates", "5", "10"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [(result["rate"], result["requests"]) for result in results] == [(5.0, 10), (10.0, 20)], done.stderr
    assert "values checked, 1 wrong\n13: {'value': '0'}\n" in done.stdout
    assert done.returncode == 1


@pytest.mark.nightly("installs Ray (210 MB); by day examples are validated, and other plain commands run on two nodes")
@pytest.mark.timeout(600)
def test_a_program_of_ray_runs_on_two_nodes_and_leaves_no_process(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = python_with("ray").parent
    environment["PATH"] = f"{folder}{os.pathsep}{environment['PATH']}"
    command = [SPOTMPI, "run", str(names.EXAMPLES / "ray.toml")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    (run,) = (path.name for path in (tmp_path / "runs").glob("ray-*"))

    assert done.returncode == 0, done.stderr
    assert f"sum {sum(number**2 for number in range(100))}" in done.stdout.splitlines()
    assert processes.of_run(run) == {}
