"""Nothing of a test cluster stays on the machine, even where it was killed."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.testbed import leftovers
from tests.testbed.programs import REPOSITORY
from tests.testbed.slot import Slot
from tests.testbed.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.nightly("tests the test cluster itself, which every other cluster test does too"),
]

# Starts a cluster of one node with one pod, says in which slot, and waits to be killed.
SESSION = """
import sys
from tests.testbed.cluster import start_cluster
from tests.testbed.objects import pod, pod_spec
cluster = start_cluster(set(), nodes=1)
cluster.apply(pod("orphan", pod_spec(cluster.images["base"], ["sleep", "300"])))
cluster.kubectl("wait", "pod/orphan", "--for=jsonpath={.status.phase}=Running", "--timeout=60s")
print("slot", cluster.slot.index, flush=True)
sys.stdin.read()
"""


def cluster_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.testbed", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)


def interfaces_of(slot: Slot) -> list[Path]:
    """Give the bridge of the slot and the machine's ends of all pods' cables that are plugged into it."""
    plugged = [path.parent for path in Path("/sys/class/net").glob("*/master") if path.resolve().name == slot.bridge]
    return [*plugged, Path("/sys/class/net") / slot.bridge]


def assert_clean(slot: Slot) -> None:
    """Nothing of the slot's cluster is left, unless another session on this machine has taken the slot since."""
    assert leftovers.find(slot) == [] or slot.is_taken()


@pytest.mark.usefixtures("testbed")
def test_a_killed_session_leaves_resources_that_stop_removes() -> None:
    session = subprocess.Popen(
        [sys.executable, "-c", SESSION], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert session.stdout
    slot = Slot(int(session.stdout.readline().split()[1]))
    session.kill()
    session.communicate()
    wait_for("its programs end with it", lambda: not slot.is_taken())
    traces = leftovers.find(slot)
    kinds = {line.split()[0] for line in traces}
    assert kinds == {"process", "mount", "interface", "packet", "folder"}, traces
    interfaces = interfaces_of(slot)
    assert len(interfaces) == 2
    status = cluster_command("status")
    assert status.returncode == 1
    assert f"cluster {slot.index} ended without cleaning up" in status.stdout
    assert cluster_command("stop", str(slot.index)).returncode == 0
    assert_clean(slot)
    assert not any(path.exists() for path in interfaces)
    assert not list(Path("/var/lib/cni/results").glob(f"{slot.bridge}-*"))


def test_a_cluster_started_by_hand_runs_until_it_is_stopped() -> None:
    started = cluster_command("start", "--nodes", "1", "--gpus", "2")
    assert started.returncode == 0, started.stderr
    number = re.search(r"scripts/cluster stop (\d)", started.stderr)
    assert number
    try:
        script = f'eval "$(scripts/cluster env {number[1]})"; kubectl get nodes -o jsonpath="{{..allocatable}}"'
        time.sleep(1)
        listing = subprocess.run(["bash", "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)
        assert '"nvidia.com/gpu":"2"' in listing.stdout
        assert f"cluster {number[1]} runs" in cluster_command("status").stdout
    finally:
        assert cluster_command("stop", number[1]).returncode == 0
    assert_clean(Slot(int(number[1])))
    refused = cluster_command("env", number[1])
    assert refused.returncode == 1
    assert "scripts/cluster status" in refused.stderr
