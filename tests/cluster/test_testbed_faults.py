"""Each handle by which tests break the cluster does what it says, and the cluster recovers."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.testbed.cluster import Cluster
from tests.testbed.errors import TestbedError
from tests.testbed.objects import jobset, pod, pod_spec
from tests.testbed.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.nightly("tests the test cluster itself, which every other cluster test does too"),
]


def start_sleeper(testbed: Cluster, namespace: str, name: str = "sleeper", node: str = "node-1") -> str:
    """Give the uid of a running pod on that node."""
    spec = pod_spec(testbed.images["base"], ["sleep", "300"], nodeName=node)
    testbed.apply(pod(name, spec), namespace=namespace)
    wait_for("the pod runs", lambda: testbed.phase(namespace, name) == "Running")
    uid: str = testbed.get("pod", name, "-n", namespace)["metadata"]["uid"]
    return uid


def node_is_ready(testbed: Cluster, name: str) -> bool:
    conditions = testbed.get("node", name)["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def test_containers_survive_a_kubelet_that_stops_and_starts(testbed: Cluster, namespace: str) -> None:
    uid = start_sleeper(testbed, namespace)
    node = testbed.node("node-1")
    before = node.pod_processes(uid)
    assert any("sleep 300" in command for command in before.values())
    node.stop_kubelet()
    try:
        assert node.pod_processes(uid) == before
    finally:
        node.start_kubelet()
    assert node.pod_processes(uid) == before
    assert testbed.phase(namespace, "sleeper") == "Running"


def test_gpus_outlast_a_kubelet_that_starts_again(testbed: Cluster) -> None:
    node = testbed.node("node-1")
    node.set_gpus(4)
    try:
        node.stop_kubelet()
        node.start_kubelet()
        time.sleep(1)
        assert testbed.get("node", "node-1")["status"]["allocatable"]["nvidia.com/gpu"] == "4"
    finally:
        node.set_gpus(0)


def test_one_killed_process_ends_its_pod_and_no_other(testbed: Cluster, namespace: str) -> None:
    doomed = start_sleeper(testbed, namespace, "doomed")
    start_sleeper(testbed, namespace, "spared")
    processes = testbed.node("node-1").pod_processes(doomed)
    (victim,) = (pid for pid, command in processes.items() if command == "sleep 300")
    os.kill(victim, signal.SIGKILL)
    wait_for("the pod fails", lambda: testbed.phase(namespace, "doomed") == "Failed")
    state = testbed.get("pod", "doomed", "-n", namespace)["status"]["containerStatuses"][0]["state"]["terminated"]
    assert state["exitCode"] == 137
    assert testbed.phase(namespace, "spared") == "Running"


def test_a_dead_node_turns_not_ready_and_its_pod_goes_with_the_node_object(testbed: Cluster, namespace: str) -> None:
    start_sleeper(testbed, namespace)
    node = testbed.node("node-1")
    node.stop_kubelet()
    node.kill_containers()
    try:
        wait_for("NotReady", lambda: not node_is_ready(testbed, "node-1"), 120)
        node.delete()
        # Looked at every 20 s, and only after 40 s without the node: a minute at least.
        wait_for("the pod is collected", lambda: not testbed.pods(namespace), 150)
    finally:
        node.start_kubelet()
    start_sleeper(testbed, namespace, "after")


def test_the_api_server_restarts_with_all_its_objects(testbed: Cluster, namespace: str) -> None:
    start_sleeper(testbed, namespace)
    testbed.plane.api_server.kill()
    try:
        with pytest.raises(TestbedError, match="refused"):
            testbed.kubectl("get", "pods", "-n", namespace)
    finally:
        testbed.plane.api_server.start()
        testbed.plane.wait_for_api_server()
    assert testbed.phase(namespace, "sleeper") == "Running"


def test_the_gang_of_a_drained_node_moves_to_the_other_one(testbed: Cluster, namespace: str) -> None:
    command = "trap 'exit 75' TERM; sleep 300 & wait"
    spec = pod_spec(testbed.images["base"], ["sh", "-c", command])
    testbed.apply(jobset("gang", 2, spec), namespace=namespace)

    def running_on() -> list[str]:
        return [item["spec"]["nodeName"] for item in testbed.pods(namespace) if item["status"]["phase"] == "Running"]

    wait_for("both pods run", lambda: len(running_on()) == 2)
    drained = running_on()[0]
    try:
        testbed.kubectl(
            "drain", drained, "--ignore-daemonsets", "--force", "--pod-selector=jobset.sigs.k8s.io/jobset-name"
        )
        other = "node-0" if drained == "node-1" else "node-1"
        wait_for("the gang runs elsewhere", lambda: running_on() == [other, other])
    finally:
        testbed.kubectl("uncordon", drained)


def test_without_the_jobset_controller_the_cluster_refuses_jobsets(testbed: Cluster, namespace: str) -> None:
    testbed.jobset.stop()
    try:
        with pytest.raises(TestbedError, match="failed calling webhook"):
            testbed.apply(jobset("refused", 1, pod_spec(testbed.images["base"], ["true"])), namespace=namespace)
        # Other pods are none of its business.
        start_sleeper(testbed, namespace)
    finally:
        testbed.jobset.start()
        testbed.jobset.wait_until_ready()


def test_a_user_without_rights_is_refused(testbed: Cluster, namespace: str) -> None:
    nobody = testbed.plane.kubeconfig_of("nobody")
    refused = testbed.try_kubectl("--kubeconfig", str(nobody), "get", "pods", "-n", namespace)
    assert refused.returncode == 1
    assert 'User "nobody" cannot list resource "pods"' in refused.stderr
