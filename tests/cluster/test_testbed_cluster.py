"""What no other test would notice of the test cluster: refusals of its API server, names, GPUs, a drain, MPIJobs.

That it runs, schedules, evicts and restarts pods, and recovers from each fault, is what the tests of runs rest on.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.testbed.cluster import Cluster
from tests.testbed.errors import run_command
from tests.testbed.kubernetes import RESTRICTED, Kubernetes, Object
from tests.testbed.mpi_operator import MpiOperator
from tests.testbed.objects import SECURITY, headless_service, jobset, pod, pod_spec
from tests.testbed.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.nightly("tests the test cluster itself, which every other cluster test does too"),
]


def test_an_unknown_field_is_refused(api_server: Kubernetes) -> None:
    wrong = pod("typo", pod_spec("image", ["true"], nodeSelectors={"a": "b"}))
    refused = api_server.try_kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(wrong))
    assert 'unknown field "spec.nodeSelectors"' in refused.stderr


def test_pod_security_is_enforced_on_a_dry_run_too(api_server: Kubernetes) -> None:
    with api_server.namespace(labels=RESTRICTED) as namespace:
        for user, code in ((1000, 0), (0, 1)):
            security = {**SECURITY, "runAsUser": user}
            tried = json.dumps(pod("tried", pod_spec("image", ["true"], securityContext=security)))
            result = api_server.try_kubectl("create", "--dry-run=server", "-n", namespace, "-f", "-", stdin=tried)
            assert result.returncode == code, result.stderr


def test_names_of_a_headless_service_resolve_and_others_do_not(testbed: Cluster, namespace: str) -> None:
    look = f"""
import socket, time
for name in ('b.peers', 'b.peers.{namespace}.svc.cluster.local'):
    for _ in range(100):
        try:
            print(socket.gethostbyname(name)); break
        except socket.gaierror:
            time.sleep(0.1)
try:
    socket.gethostbyname('example.org')
except socket.gaierror as error:
    print(error.errno == socket.EAI_NONAME)
"""
    image = testbed.images["base"]
    sleeping = pod_spec(image, ["sleep", "60"], hostname="b", subdomain="peers")
    looking = pod_spec(image, ["python3", "-c", look])
    labels = {"app": "peers"}
    testbed.apply(
        headless_service("peers", labels), pod("b", sleeping, labels), pod("a", looking, labels), namespace=namespace
    )
    wait_for("the look-ups end", lambda: testbed.phase(namespace, "a") in ("Succeeded", "Failed"))
    address = testbed.get("pod", "b", "-n", namespace)["status"]["podIP"]
    assert testbed.kubectl("logs", "-n", namespace, "a").split() == [address, address, "True"]


def test_pods_keep_their_gateways_hardware_address_whatever_else_joins_the_bridge(testbed: Cluster) -> None:
    bridge = testbed.slot.bridge
    file = Path("/sys/class/net", bridge, "address")
    address = file.read_text()
    other = f"{bridge}-low"
    run_command(["ip", "link", "add", other, "address", "00:00:00:00:00:01", "type", "veth"])
    try:
        run_command(["ip", "link", "set", other, "master", bridge])
        assert file.read_text() == address
    finally:
        run_command(["ip", "link", "del", other])


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


def test_a_kubelet_that_ends_while_its_node_starts_is_started_again(testbed: Cluster) -> None:
    node = testbed.node("node-1")
    killed = node.kubelet.pid
    assert killed
    os.kill(killed, signal.SIGKILL)
    wait_for("it has ended", lambda: node.kubelet.pid is None)
    node.wait_until_ready()
    assert node.kubelet.pid not in (None, killed)


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


@pytest.mark.tools("mpi-operator")
def test_the_mpi_operator_gives_its_launcher_a_hostfile_and_ends_with_it(testbed: Cluster, namespace: str) -> None:
    image = testbed.images["base"]

    def replica(count: int, command: list[str]) -> Object:
        return {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod_spec(image, command)}}

    replicas = {"Launcher": replica(1, ["cat", "/etc/mpi/hostfile"]), "Worker": replica(2, ["sleep", "60"])}
    spec = {"slotsPerWorker": 1, "sshAuthMountPath": "/home/spotmpi/.ssh", "mpiReplicaSpecs": replicas}
    job: Object = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "sum"}, "spec": spec}
    with MpiOperator(testbed.plane).running():
        testbed.apply(job, namespace=namespace)
        testbed.kubectl("wait", "-n", namespace, "mpijob/sum", "--for=condition=Succeeded", "--timeout=60s")
        selector = "training.kubeflow.org/job-role=launcher"
        hosts = testbed.kubectl("logs", "-n", namespace, "--selector", selector).split()
        assert [host.partition(".")[0] for host in hosts if not host.startswith("slots")] == [
            "sum-worker-0",
            "sum-worker-1",
        ]
