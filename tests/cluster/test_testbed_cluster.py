"""The test cluster does what a real one does: runs pods, names them, refuses, schedules and evicts."""

from __future__ import annotations

import json

import pytest

from tests.testbed.cluster import Cluster
from tests.testbed.daemon import Daemon
from tests.testbed.kubernetes import Object
from tests.testbed.objects import SECURITY, container, headless_service, indexed_job, jobset, pod, pod_spec
from tests.testbed.programs import program
from tests.testbed.waiting import wait_for
from tests.testbed.web import free_ports, http_health

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.nightly("tests the test cluster itself, which every other cluster test does too"),
]


def test_both_nodes_run_pods_that_reach_each_other(testbed: Cluster, namespace: str) -> None:
    serve = pod_spec(testbed.images["base"], ["python3", "-m", "http.server", "8000"], nodeName="node-0")
    testbed.apply(pod("server", serve), namespace=namespace)
    testbed.kubectl("wait", "-n", namespace, "pod/server", "--for=jsonpath={.status.podIP}", "--timeout=30s")
    address = testbed.get("pod", "server", "-n", namespace)["status"]["podIP"]
    ask = f"""
import time, urllib.request
for left in range(50, -1, -1):
    try:
        print(urllib.request.urlopen('http://{address}:8000/', timeout=2).status); break
    except OSError:
        if not left: raise
        time.sleep(0.1)
"""
    client = pod_spec(testbed.images["base"], ["python3", "-c", ask], nodeName="node-1")
    testbed.apply(pod("client", client), namespace=namespace)
    wait_for("the client ends", lambda: testbed.phase(namespace, "client") in ("Succeeded", "Failed"))
    assert testbed.kubectl("logs", "-n", namespace, "client").strip() == "200"


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


def test_an_indexed_job_of_two_pods_runs_to_its_end(testbed: Cluster, namespace: str) -> None:
    spec = pod_spec(testbed.images["base"], ["sh", "-c", "echo index $JOB_COMPLETION_INDEX"])
    testbed.apply(indexed_job("two", 2, spec), namespace=namespace)
    testbed.kubectl("wait", "-n", namespace, "job/two", "--for=condition=Complete", "--timeout=60s")
    logs = {
        item["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]: testbed.kubectl(
            "logs", "-n", namespace, item["metadata"]["name"]
        ).strip()
        for item in testbed.pods(namespace)
    }
    assert logs == {"0": "index 0", "1": "index 1"}


def test_a_jobset_of_two_pods_runs_to_its_end(testbed: Cluster, namespace: str) -> None:
    testbed.apply(jobset("pair", 2, pod_spec(testbed.images["base"], ["true"])), namespace=namespace)
    testbed.kubectl("wait", "-n", namespace, "jobset/pair", "--for=condition=Completed", "--timeout=60s")
    hosts = {item["spec"]["hostname"] for item in testbed.pods(namespace)}
    assert hosts == {"pair-node-0-0", "pair-node-0-1"}


def test_a_restricted_namespace_refuses_a_root_pod_and_admits_ours(testbed: Cluster, namespace: str) -> None:
    image = testbed.images["base"]
    rooted = pod_spec(image, ["true"], securityContext={**SECURITY, "runAsNonRoot": False, "runAsUser": 0})
    refused = testbed.try_kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(pod("rooted", rooted)))
    assert refused.returncode == 1
    assert 'violates PodSecurity "restricted:latest": runAsNonRoot != true' in refused.stderr
    testbed.apply(pod("ours", pod_spec(image, ["id", "-u"])), namespace=namespace)
    wait_for("the pod ends", lambda: testbed.phase(namespace, "ours") == "Succeeded")
    assert testbed.kubectl("logs", "-n", namespace, "ours").strip() == "1000"


def test_a_pod_that_requests_a_gpu_waits_until_a_node_has_one(testbed: Cluster, namespace: str) -> None:
    spec = pod_spec(testbed.images["base"], ["true"])
    spec["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "2"}}
    testbed.apply(pod("wants-gpus", spec), namespace=namespace)

    def refusal() -> str:
        conditions = testbed.get("pod", "wants-gpus", "-n", namespace)["status"].get("conditions", [])
        return " ".join(each.get("message", "") for each in conditions if each["type"] == "PodScheduled")

    wait_for("the scheduler tells why", lambda: "Insufficient nvidia.com/gpu" in refusal())
    testbed.nodes[1].set_gpus(2)
    try:
        wait_for("the pod ends", lambda: testbed.phase(namespace, "wants-gpus") == "Succeeded")
        assert testbed.get("pod", "wants-gpus", "-n", namespace)["spec"]["nodeName"] == "node-1"
    finally:
        testbed.nodes[1].set_gpus(0)


def test_pods_of_both_nodes_share_a_volume_until_it_is_full(testbed: Cluster, namespace: str) -> None:
    folder = testbed.shared_volume(namespace, "runs", megabytes=1)
    for index in range(2):
        write = f"echo from {index} >> /runs/said && dd if=/dev/zero of=/runs/filled bs=600k count={index + 1} 2>&1"
        mounts = [{"name": "runs", "mountPath": "/runs"}]
        spec = pod_spec(
            "",
            [],
            nodeName=f"node-{index}",
            containers=[container(testbed.images["base"], ["sh", "-c", write], volumeMounts=mounts)],
            volumes=[{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}],
        )
        testbed.apply(pod(f"writer-{index}", spec), namespace=namespace)
        condition = "--for=jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"
        testbed.kubectl("wait", "-n", namespace, f"pod/writer-{index}", condition, "--timeout=40s")
    assert (folder / "said").read_text() == "from 0\nfrom 1\n"

    def phases() -> list[str]:
        return [testbed.phase(namespace, f"writer-{index}") for index in range(2)]

    wait_for("one pod fits, the other does not", lambda: phases() == ["Succeeded", "Failed"])
    assert "No space left on device" in testbed.kubectl("logs", "-n", namespace, "writer-1")


def test_a_port_of_a_pod_is_reached_from_outside(testbed: Cluster, namespace: str) -> None:
    serve = pod_spec(testbed.images["base"], ["python3", "-m", "http.server", "8000"])
    testbed.apply(pod("server", serve), namespace=namespace)
    wait_for("the pod runs", lambda: testbed.phase(namespace, "server") == "Running")
    (port,) = free_ports(1)
    forward = Daemon(
        "port-forward",
        [
            program("kubectl"),
            f"--kubeconfig={testbed.kubeconfig}",
            "port-forward",
            "-n",
            namespace,
            "pod/server",
            f"{port}:8000",
        ],
        testbed.slot.folder,
    )
    forward.start()
    try:
        forward.wait_until_ready(lambda: http_health(f"http://127.0.0.1:{port}/"), 20)
    finally:
        forward.stop()


def test_an_evicted_pod_makes_the_whole_jobset_start_again(testbed: Cluster, namespace: str) -> None:
    # A peer that loses the other one must end by itself; here it does so when its name no longer resolves.
    command = "trap 'exit 75' TERM; sleep 300 & wait"
    testbed.apply(jobset("gang", 2, pod_spec(testbed.images["base"], ["sh", "-c", command])), namespace=namespace)

    def running() -> list[Object]:
        return [item for item in testbed.pods(namespace) if item["status"]["phase"] == "Running"]

    wait_for("both pods run", lambda: len(running()) == 2)
    before = {item["metadata"]["uid"] for item in running()}
    testbed.evict(running()[0]["metadata"]["name"], namespace)

    def all_new() -> bool:
        return len(running()) == 2 and before.isdisjoint(item["metadata"]["uid"] for item in running())

    assert wait_for("two new pods run", all_new) < 30
    status = testbed.get("jobset", "gang", "-n", namespace)["status"]
    assert (status["restarts"], status.get("restartsCountTowardsMax", 0)) == (1, 0)
