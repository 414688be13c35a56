"""Runs that wait for quota, and a run of a thousand nodes."""

from __future__ import annotations

import re
import time

import pytest

from spotmpi.agent import record
from tests.cluster.runs import Runs, plain
from tests.testbed.cluster import Cluster
from tests.testbed.kueue import Kueue
from tests.testbed.kwok import Kwok

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.tools("kueue", "kwok"),
    pytest.mark.nightly("1,000 nodes, and two controllers to build"),
]

MANY = 1000


def test_of_two_runs_with_quota_for_one_the_second_waits_with_a_reason_and_then_runs(runs: Runs) -> None:
    queued = {"kubernetes": {"queue": "one-at-a-time"}}
    controller = Kueue(runs.testbed.plane)
    with controller.running():
        controller.queue(runs.namespace, "one-at-a-time", {"cpu": "1"})
        first = runs.start(plain("sleep", "600", **queued), image="base")
        first.until_kind(record.STARTED)

        second = runs.start(plain("echo", "my turn", limits={"start": "15s"}, **queued), image="base")
        second.until("its reason", lambda event: "insufficient unused quota" in (event.reason or ""))
        assert runs.backend.state(second.id).state == "waiting"
        time.sleep(16)  # longer than limits.start, which does not count in a queue
        assert not any("gives up in" in reason for reason in second.reasons())
        runs.backend.stop(first.id, "done", now=True)

        assert second.end().kind == "succeeded", second.recent_events()
        assert second.lines() == ["my turn"]


def running(runs: Runs) -> int:
    """How many pods run."""
    only = "--field-selector=status.phase=Running"
    return len(runs.testbed.kubectl("get", "pods", "-n", runs.namespace, only, "-o", "name", limit=120).split())


def watches(testbed: Cluster) -> int:
    """How many watches and log streams the API server serves."""
    metrics = testbed.kubectl("get", "--raw", "/metrics", limit=120)
    counts = re.findall(r'^apiserver_longrunning_requests\{.*verb="(?:WATCH|CONNECT|GET)".*\} (\d+)$', metrics, re.M)
    return sum(map(int, counts))


def test_a_run_of_a_thousand_nodes_is_submitted_shown_and_stopped_with_a_constant_number_of_watches(runs: Runs) -> None:
    kwok = Kwok(runs.testbed.plane, lease=7200)
    with runs.testbed.plane.patient_with_nodes(), kwok.running():
        kwok.add_nodes(MANY, {"nvidia.com/gpu": "1"})
        before = watches(runs.testbed)
        kubernetes = {"tolerations": [{"key": "kwok"}], "node_selector": {"type": "kwok"}}
        many = plain("true", nodes=MANY, resources={"gpu": 1}, kubernetes=kubernetes, limits={"start": "1h"})
        run = runs.start({**many, "launcher": "mpirun"}, image="base")

        while running(runs) < MANY:
            time.sleep(5)
        assert runs.backend.state(run.id).state == "running"
        assert any(f"/{MANY} nodes" in reason for reason in run.reasons())
        # Pods, JobSets and events, each watched once.
        assert watches(runs.testbed) - before <= 4

        runs.backend.stop(run.id, "seen", now=True)
        assert run.end().kind == "stopped"
        run.wait_until_gone(300)
        kwok.remove_nodes()
