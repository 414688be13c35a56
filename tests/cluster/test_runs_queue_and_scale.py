"""Runs that wait for quota, and a run of a thousand nodes."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from spotmpi.agent import record
from spotmpi.agent.plan import WORKER
from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.client.portal import call
from spotmpi.core import names
from tests.cluster.pools import LIMIT, PoolRun, has_workers, place, small_pods
from tests.cluster.runs import Runs, plain
from tests.testbed.cluster import Cluster
from tests.testbed.kueue import Kueue
from tests.testbed.kwok import Kwok
from tests.testbed.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.tools("kueue", "kwok"),
    pytest.mark.nightly("1,000 nodes, and two controllers to build"),
]

MANY = 1000


def test_of_two_runs_with_quota_for_one_the_second_waits_with_a_reason_and_then_runs(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued = {"kubernetes": {"queue": "one-at-a-time"}}
    controller = Kueue(runs.testbed.plane)
    with controller.running():
        controller.queue(runs.namespace, "one-at-a-time", {"cpu": "1"})
        first = runs.start(plain("sleep", "600", **queued), image="base")
        first.until_kind(record.STARTED)

        second = runs.start(plain("echo", "my turn", limits={"start": "15s"}, **queued), image="base")
        second.until_reason("insufficient unused quota")
        assert runs.backend.state(second.id).state == "waiting"
        time.sleep(16)  # longer than limits.start, which does not count in a queue
        assert not any("gives up in" in reason for reason in second.reasons())
        runs.backend.stop(first.id, "done", now=True)

        assert second.end().kind == "succeeded", second.recent_events()
        assert second.lines() == ["my turn"]

        monkeypatch.setenv("KUBECONFIG", str(runs.testbed.kubeconfig))  # users of this namespace may not look at queues
        api = ClusterApi(None, runs.namespace)
        assert [call(api.has_queue(name)) for name in ("one-at-a-time", "absent")] == [True, False]


def test_a_queue_admits_a_run_with_its_pod_that_stands_by_which_takes_over_in_the_same_quota(runs: Runs) -> None:
    controller = Kueue(runs.testbed.plane)
    queued = {"kubernetes": {"queue": "three"}, "resources": {"cpu": "100m"}, "nodes": 2, "standby": 1}
    with controller.running():
        controller.queue(runs.namespace, "three", {"cpu": "300m"})
        run = runs.start(plain("sleep", "600", **queued), image="base")
        run.until_kind(record.JOINED)
        other = runs.start(plain("echo", "my turn", **queued), image="base")
        other.until_reason("insufficient unused quota")
        observed = len(run.events)
        lost = run.pod(1)["metadata"]["name"]
        runs.testbed.kubectl("delete", "pod", lost, "-n", runs.namespace, "--grace-period=0", "--force")
        run.until_kind(record.PROMOTED, observed)
        run.until_kind(record.JOINED, observed)  # the next pod of the lost node, without a new admission
        runs.backend.stop(run.id, "done", now=True)
        assert other.end().kind == "succeeded", other.recent_events()


@pytest.mark.pod_images("chainermn")
def test_node_0_and_the_workers_of_a_pool_are_admitted_on_their_own_and_a_resize_queues_the_workers_again(
    runs: Runs, tmp_path: Path
) -> None:
    controller = Kueue(runs.testbed.plane)
    small = {"queue": "pools", "templates": [small_pods(tmp_path)]}
    with controller.running():
        controller.queue(runs.namespace, "pools", {"cpu": "200m"})
        up = PoolRun(runs, 1, kubernetes=small)
        with up.join() as pool:
            wait_for("the worker", lambda: has_workers(pool, 1), LIMIT)
            assert pool.submit(place, 1).result(LIMIT)[0] == 1
            workloads = runs.testbed.get("workloads", "-n", runs.namespace)["items"]
            owners = {each["metadata"]["ownerReferences"][0]["name"]: each for each in workloads}
            assert set(owners) == {up.run.id, names.workers_name(up.run.id, WORKER)}

            pool.scale(2)
            up.run.until_reason("insufficient unused quota", limit=LIMIT)
            assert not has_workers(pool, 1) and not has_workers(pool, 2), "the quota is too small for two"
            pool.scale(1)
            wait_for("the worker", lambda: has_workers(pool, 1), LIMIT)
            assert pool.submit(place, 2).result(LIMIT)[0] == 2
        assert runs.backend.state(up.run.id).state == "running"


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
