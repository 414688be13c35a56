"""What `spotmpi doctor` says of a live environment's cluster: of a real one in which all is well, and of each fault."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from spotmpi.backends.kubernetes import volume_access
from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.client.view import ClusterView
from spotmpi.backends.kubernetes.submit.objects import generate_keys
from spotmpi.core import environment
from spotmpi.core.certificates import run_certificates
from spotmpi.environments import probe
from spotmpi.environments.checks import cluster
from spotmpi.environments.checks.check import Finding, LiveEnvironment, Subject
from spotmpi.environments.doctor import run_check
from spotmpi.plan.volume_pod import Volume
from tests.cloud.account.fake_account import FakeAccount
from tests.cluster.applying_provider import join_group, leave_group
from tests.testbed.cluster import Cluster
from tests.testbed.waiting import wait_for
from tests.unit.core.test_environment import OUTPUTS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NODE, SYSTEM, JOBSET = "node-1", "kube-system", "jobset-system"
LIMIT = 180.0  # seconds for anything that a test waits for


class LabCluster:
    """An environment whose cluster is the test cluster, with pods in place of controllers that can't run there."""

    def __init__(self, testbed: Cluster, namespace: str) -> None:
        self.testbed, self.namespace = testbed, namespace
        self.environment = environment.parse({**OUTPUTS, "namespace": namespace, "volume_claim": "shared"})
        account = FakeAccount()
        account.refuse("DescribeInstances", "UnauthorizedOperation")
        live = LiveEnvironment(self.environment, ClusterView(None))
        self.subject = Subject(account, self.environment.region, None, lambda command: None, live)

    def findings(self) -> dict[str, Finding]:
        """What every check of a live cluster says, by name."""
        return {finding.check: finding for check in cluster.CHECKS for finding in run_check(check, self.subject)}

    def well(self) -> set[str]:
        """The names of the checks that find nothing wrong."""
        return {name for name, each in self.findings().items() if each.level == "ok"}

    def assert_finding(self, check: str, level: str, words: str) -> None:
        """Wait until a check says that; pods and controllers take a moment."""

        def says() -> bool:
            finding = self.findings().get(check)
            return finding is not None and finding.level == level and words in finding.message

        wait_for(f"{check}: {words}", says, LIMIT)

    def change(self, *words: str) -> None:
        """Change the cluster by kubectl."""
        self.testbed.kubectl(*words, limit=LIMIT)


def pods_of(kind: str, name: str, namespace: str, image: str, selector: dict[str, str]) -> dict[str, Any]:
    """A Deployment or DaemonSet whose pods do nothing."""
    labels = {"spotmpi-test": name}
    container = {"name": "it", "image": image, "imagePullPolicy": "Never", "command": ["sleep", "infinity"]}
    pod = {
        "containers": [container],
        "nodeSelector": selector,
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 0,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }


@pytest.fixture
def lab_cluster(testbed: Cluster, runs_namespace: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[LabCluster]:
    monkeypatch.setenv("KUBECONFIG", str(testbed.kubeconfig))
    lab_cluster = LabCluster(testbed, runs_namespace)
    environment, image = lab_cluster.environment, testbed.images["base"]
    testbed.shared_volume(runs_namespace)
    status = {"status": "autoscalerStatus: Running\nclusterWide:\n  health:\n    status: Healthy\n"}
    status_metadata = {"name": "cluster-autoscaler-status", "namespace": SYSTEM}
    gpu = {"spotmpi.dev/group": environment.node_groups[0].name}
    objects: list[dict[str, Any]] = [
        pods_of("Deployment", "cluster-autoscaler", SYSTEM, image, {}),
        pods_of("Deployment", "coredns", SYSTEM, image, {}),
        pods_of("DaemonSet", "nvidia-device-plugin", SYSTEM, image, gpu),
        pods_of("Deployment", "spotmpi-test-jobset", JOBSET, image, {}),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": status_metadata, "data": status},
    ]
    testbed.try_kubectl("create", "namespace", JOBSET)
    keys = generate_keys()
    secret_metadata = {"name": environment.ssh_secret, "namespace": runs_namespace}
    parts = {"id": keys["id"], "id.pub": keys["authorized_keys"], "authorized_keys": keys["authorized_keys"]}
    parts |= run_certificates("shared")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": secret_metadata, "stringData": parts}
    for each in (*objects, secret):
        testbed.apply(each, namespace=each["metadata"]["namespace"])
    join_group(testbed, NODE, environment)
    yield lab_cluster
    leave_group(testbed, NODE, environment)
    for each in objects:
        where = each["metadata"]
        testbed.kubectl("delete", each["kind"], where["name"], "-n", where["namespace"], "--ignore-not-found")


def test_doctor_finds_no_fault_in_a_healthy_cluster_and_then_each_fault(lab_cluster: LabCluster) -> None:
    environment, testbed = lab_cluster.environment, lab_cluster.testbed
    well = {"API", f"node {NODE}", "JobSet", "autoscaler", "DNS", "device plugin", "scaling", "SSH key", "volume"}
    wait_for("all to be well", lambda: lab_cluster.well() == well, LIMIT)

    testbed.node(NODE).set_gpus(0)
    lab_cluster.assert_finding(f"node {NODE}", "error", "has 0 of 1 GPU")
    testbed.node(NODE).set_gpus(1)
    lab_cluster.change("label", "node", NODE, "--overwrite", "topology.kubernetes.io/zone=us-east-1f")
    lab_cluster.assert_finding(f"node {NODE}", "error", "is in us-east-1f, but group g4dn is in us-east-1a")

    lab_cluster.change("scale", "deployment", "coredns", "-n", SYSTEM, "--replicas=0")
    lab_cluster.assert_finding("DNS", "error", "is not running")
    lab_cluster.change("delete", "deployment", "spotmpi-test-jobset", "-n", JOBSET)
    lab_cluster.assert_finding("JobSet", "error", "is not installed")
    lab_cluster.change("delete", "deployment", "cluster-autoscaler", "-n", SYSTEM)
    lab_cluster.assert_finding("autoscaler", "error", "is not installed")
    lab_cluster.change("set", "image", "daemonset/nvidia-device-plugin", "it=nowhere.invalid/none:1", "-n", SYSTEM)
    lab_cluster.assert_finding("device plugin", "error", "runs on 0 of 1 GPU node")
    unwell = '{"data": {"status": "clusterWide:\\n  health:\\n    status: Unhealthy\\n"}}'
    lab_cluster.change("patch", "configmap", "cluster-autoscaler-status", "-n", SYSTEM, "-p", unwell)
    lab_cluster.assert_finding("scaling", "error", "reports the cluster as Unhealthy")

    lab_cluster.change(
        "patch", "secret", environment.ssh_secret, "-n", lab_cluster.namespace, "-p", '{"data": {"id": ""}}'
    )
    lab_cluster.assert_finding("SSH key", "error", "lacks id")
    lab_cluster.change("delete", "pvc", "shared", "-n", lab_cluster.namespace)
    lab_cluster.assert_finding("volume", "error", "claim shared is missing")


@pytest.mark.nightly("three helper pods one after the other; test_probe has each answer on a scripted pod")
def test_the_probe_checks_storage_and_names_and_reports_each_failure(
    testbed: Cluster, runs_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(testbed.kubeconfig))
    monkeypatch.setattr(probe, "TIMEOUT", LIMIT)
    monkeypatch.setattr(probe, "SLOW", LIMIT)
    folder = testbed.shared_volume(runs_namespace)

    def probed(claim: str = "shared") -> dict[str, tuple[str, str]]:
        volume = Volume(claim, testbed.images["base"])
        api = ClusterApi(None, runs_namespace)
        findings = probe.probe(lambda: volume_access.volume_access(api, volume, lambda text: None))
        return {each.check: (each.level, each.message) for each in findings}

    assert {name: level for name, (level, _) in probed().items()} == {"probe of storage": "ok", "probe of names": "ok"}
    monkeypatch.setattr(probe, "NAME", "nowhere.invalid")
    level, message = probed()["probe of names"]
    assert level == "error" and "nowhere.invalid does not resolve in a pod" in message
    os.chown(folder, 0, 0)
    folder.chmod(0o755)
    level, message = probed()["probe"]
    assert level == "error" and "Permission denied" in message
