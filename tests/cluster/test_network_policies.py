"""What pods reach in an environment's namespace: their own run, names, and HTTPS where it is allowed; nothing else."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spotmpi.agent import peers
from tests.cluster.environment_namespace import environment_namespace
from tests.cluster.runs import FollowedRun, Runs, plain, runs_in
from tests.testbed.cluster import Cluster
from tests.testbed.network_policies import NAME_LABEL
from tests.testbed.objects import pod, pod_spec
from tests.testbed.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.pod_images("base"), pytest.mark.timeout(300)]

DROPPED = 3.0  # seconds without an answer
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), {wait}).close()
    print("open")
except ConnectionRefusedError:
    print("open")  # a packet came back
except OSError as error:
    print("closed:", error)
"""


@contextmanager
def outside(testbed: Cluster, *ports: int) -> Iterator[str]:
    """The address of a host outside the cluster that pods reach by way of their gateway, with listeners on its ports.

    It is for documentation (RFC 5737), and this machine's for as long; each cluster has its own.
    """
    address = f"198.51.100.{1 + testbed.slot.index}"
    subprocess.run(["ip", "address", "add", f"{address}/32", "dev", testbed.slot.bridge], check=True)
    listeners = [socket.create_server((address, port)) for port in ports]
    try:
        yield address
    finally:
        for each in listeners:
            each.close()
        subprocess.run(["ip", "address", "delete", f"{address}/32", "dev", testbed.slot.bridge], check=True)


def waiting_run(runs: Runs) -> FollowedRun:
    """A run of two pods that stay."""
    run = runs.start(plain("sleep", "600", nodes=2, run_on="all"), image="base")
    run.until_kind("started")
    return run


def reaches(testbed: Cluster, namespace: str, pod_name: str, address: str, port: int, wait: float = DROPPED) -> bool:
    """Whether a packet from a pod, which has one container, comes to that address and back."""
    command = ("python3", "-c", CONNECT.format(wait=wait), address, str(port))
    return testbed.kubectl("exec", "-n", namespace, pod_name, "--", *command).strip() == "open"


def test_pods_of_a_run_reach_each_other_both_ways_and_nothing_else(
    testbed: Cluster, runs_namespace: str, tmp_path: Path
) -> None:
    with runs_in(testbed, runs_namespace, tmp_path / "copies") as runs, outside(testbed, 443) as host:
        one, other = waiting_run(runs), waiting_run(runs)
        first, second, stranger = one.pod(0), one.pod(1), other.pod(0)

        def tried(source: dict, target: dict, port: int = peers.PORT) -> bool:  # type: ignore[type-arg]
            address = target["status"]["podIP"]
            return reaches(testbed, runs_namespace, source["metadata"]["name"], address, port)

        assert tried(second, first) and tried(first, second), "a run's own pods"
        assert not tried(stranger, first) and not tried(first, stranger), "another run's"
        name = first["metadata"]["name"]
        assert not reaches(testbed, runs_namespace, name, host, 443), "outside, where https_out is off"
        assert not reaches(testbed, runs_namespace, name, testbed.slot.node_address(0), 22), "a node"


def test_with_https_out_pods_reach_port_443_outside_and_no_other(testbed: Cluster, tmp_path: Path) -> None:
    with (
        environment_namespace(testbed, https_out=True) as namespace,
        runs_in(testbed, namespace, tmp_path / "copies") as runs,
        outside(testbed, 443, 80) as host,
    ):
        name = waiting_run(runs).pod(0)["metadata"]["name"]
        assert reaches(testbed, namespace, name, host, 443)
        assert not reaches(testbed, namespace, name, host, 80)


def test_the_cluster_enforces_the_policies_of_a_namespace(testbed: Cluster, namespace: str) -> None:
    """What the two tests above rest on, by plain pods and in both directions."""
    sleeping = pod_spec(testbed.images["base"], ["sleep", "600"])
    for name in ("asking", "asked"):
        testbed.apply(pod(name, sleeping, {"name": name}), namespace=namespace)
    running = ("--for=jsonpath={.status.phase}=Running", "--timeout=60s")
    testbed.kubectl("wait", "pod/asking", "pod/asked", "-n", namespace, *running, limit=90)
    address = testbed.get("pod", "asked", "-n", namespace)["status"]["podIP"]

    def passes() -> bool:
        return reaches(testbed, namespace, "asking", address, 80, wait=1.0)

    assert passes()
    for direction, of in (("Ingress", "asked"), ("Egress", "asking")):
        spec = {"podSelector": {"matchLabels": {"name": of}}, "policyTypes": [direction]}
        denied = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "deny"}}
        testbed.apply({**denied, "spec": spec}, namespace=namespace)
        wait_for(f"{direction} is denied", lambda: not passes())
        peers = {"namespaceSelector": {"matchLabels": {NAME_LABEL: namespace}}}
        rule = {"Ingress": {"ingress": [{"from": [peers]}]}, "Egress": {"egress": [{"to": [peers]}]}}[direction]
        allowed = {**denied, "metadata": {"name": "allow"}, "spec": {**spec, **rule}}
        testbed.apply(allowed, namespace=namespace)
        wait_for(f"{direction} is allowed", passes)
        testbed.kubectl("delete", "networkpolicies", "--all", "-n", namespace)
