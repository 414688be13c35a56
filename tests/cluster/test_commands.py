"""One-line commands in single pods of the test cluster, whose output is all that they are for."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.environment_namespace import environment_namespace
from tests.cluster.runs import runs_in
from tests.command_line import SPOTMPI
from tests.testbed.cluster import Cluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.pod_images("base"),
    pytest.mark.timeout(400),
    pytest.mark.nightly("twelve runs; by day a follower of scripted pods that ended at once, and runs on the cluster"),
]

COMMANDS, AT_ONCE = 12, 3


def test_no_line_is_lost_of_commands_that_end_at_once_though_their_runs_have_no_volume(
    testbed: Cluster, tmp_path: Path
) -> None:
    options = ["--image", testbed.images["base"], "--runs", str(tmp_path / "runs"), "--on"]

    def execute(number: int) -> subprocess.CompletedProcess[str]:
        command = ["--", "printf", r"first %s\nlast %s", str(number), str(number)]
        target = f"kubernetes/{namespace}"
        return subprocess.run([SPOTMPI, "run", *options, target, *command], capture_output=True, text=True, timeout=120)

    with (
        environment_namespace(testbed) as namespace,
        runs_in(testbed, namespace, tmp_path / "copies", volume=False),
        ThreadPoolExecutor(AT_ONCE) as threads,
    ):
        results = list(threads.map(execute, range(COMMANDS)))

    for number, result in enumerate(results):
        assert result.returncode == 0, result.stderr
        assert result.stdout.splitlines()[:2] == [f"first {number}", f"last {number}"], result.stderr
