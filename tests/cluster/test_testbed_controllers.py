"""The controllers that tests may add to the cluster: Kueue, kwok and the MPI Operator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.testbed.cluster import Cluster
from tests.testbed.kubernetes import Object
from tests.testbed.kueue import Kueue
from tests.testbed.kwok import Kwok
from tests.testbed.mpi_operator import MpiOperator
from tests.testbed.objects import container, indexed_job, jobset, pod_spec
from tests.testbed.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.tools("kueue", "kwok", "mpi-operator"),
    pytest.mark.nightly("builds three controllers, 4 minutes where they are missing"),
]


@pytest.fixture
def kueue(testbed: Cluster) -> Iterator[Kueue]:
    controller = Kueue(testbed.plane)
    with controller.running():
        yield controller


@pytest.fixture
def kwok(testbed: Cluster) -> Iterator[Kwok]:
    controller = Kwok(testbed.plane)
    with controller.running():
        yield controller
        controller.remove_nodes()


def is_suspended(testbed: Cluster, namespace: str, name: str) -> bool:
    return bool(testbed.get("jobset", name, "-n", namespace)["spec"].get("suspend"))


def test_kueue_holds_the_second_of_two_jobsets_until_the_first_is_gone(
    testbed: Cluster, namespace: str, kueue: Kueue
) -> None:
    kueue.queue(namespace, "one-at-a-time", {"cpu": "200m"})
    spec = pod_spec(testbed.images["base"], ["sleep", "60"])
    spec["containers"][0]["resources"] = {"requests": {"cpu": "100m"}}
    for name in ("first", "second"):
        queued = jobset(name, 2, spec)
        queued["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "one-at-a-time"}
        testbed.apply(queued, namespace=namespace)
        if name == "first":
            wait_for("the first is admitted", lambda: not is_suspended(testbed, namespace, "first"))

    def reason() -> str:
        workloads = testbed.get("workloads", "-n", namespace)["items"]
        (second,) = (each for each in workloads if each["metadata"]["name"].startswith("jobset-second"))
        return " ".join(each["message"] for each in second.get("status", {}).get("conditions", []))

    wait_for("the second waits for quota", lambda: "insufficient unused quota" in reason())
    assert is_suspended(testbed, namespace, "second")
    testbed.kubectl("delete", "jobset", "first", "-n", namespace)
    wait_for("the second is admitted", lambda: not is_suspended(testbed, namespace, "second"))


def test_kwok_nodes_simulate_pods_until_they_are_deleted(testbed: Cluster, namespace: str, kwok: Kwok) -> None:
    kwok.add_nodes(10, {"nvidia.com/gpu": "8"})
    tolerations = [{"key": "kwok", "operator": "Exists"}]
    one_per_node = {"limits": {"nvidia.com/gpu": "8"}}
    fake = container("no.such/image:1", ["true"], resources=one_per_node)
    spec = pod_spec("", [], containers=[fake], tolerations=tolerations)
    testbed.apply(indexed_job("many", 10, spec), namespace=namespace)

    def nodes() -> set[str]:
        pods = testbed.pods(namespace)
        return {each["spec"]["nodeName"] for each in pods if each["status"]["phase"] == "Running"}

    wait_for("all pods run", lambda: len(nodes()) == 10)
    assert all(node.startswith("kwok-") for node in nodes())
    testbed.kubectl("delete", "job", "many", "-n", namespace)
    wait_for("all pods are gone", lambda: not testbed.pods(namespace))


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
