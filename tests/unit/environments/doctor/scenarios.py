"""What the doctor examines: an account in which nothing is built, and a live environment with its cluster."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from spotmpi.core import environment
from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.checks.check import Finding, LiveEnvironment
from spotmpi.environments.doctor import doctor
from tests.cloud.account.ec2 import machine
from tests.cloud.account.eks import STANDARD
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import node, of_kind
from tests.cloud.cluster.store import Object
from tests.unit.core.test_environment import OUTPUTS

STACK = """config:
  aws:region: us-east-1
  spotmpi:zones: [us-east-1a]
  spotmpi:second_zone: us-east-1c
  spotmpi:groups:
    - {name: gpus, type: g5.xlarge, max: 8}
"""
TOOLS = {"pulumi": "v3.200.0\n", "kubectl": "Client Version: v1.35.4\n", "podman": "podman version 4.3.1\n"}
TAGS = {"spotmpi:environment": "spotmpi-mine"}

PUBLIC = f"ssh-ed25519 {'A' * 68} spotmpi"
PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nthisIsTheKey\n-----END OPENSSH PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n"
TLS = {"ca.pem": CERTIFICATE, "cert.pem": CERTIFICATE, "key.pem": "-----BEGIN PRIVATE KEY-----\nMIGH\n"}
KEY = {"id": PRIVATE, "id.pub": PUBLIC, "authorized_keys": PUBLIC, **TLS}
TEMPLATE = "k8s.io/cluster-autoscaler/node-template"
AUTOSCALER_TAGS = {
    f"{TEMPLATE}/label/spotmpi.dev/group": "g4dn",
    f"{TEMPLATE}/taint/nvidia.com/gpu": "present:NoSchedule",
    f"{TEMPLATE}/resources/nvidia.com/gpu": "1",
    "k8s.io/cluster-autoscaler/enabled": "true",
    "k8s.io/cluster-autoscaler/spotmpi-mine": "owned",
}
GROUP_TAGS = {"eks:cluster-name": "spotmpi-mine", **AUTOSCALER_TAGS}
NODE_GROUP = {
    "version": "1.35",
    "releaseVersion": "1.35.2-20260901",
    "amiType": "AL2023_x86_64_NVIDIA",
    "status": "ACTIVE",
    "health": {"issues": []},
    "scalingConfig": {"minSize": 0, "maxSize": 2},
    "resources": {"autoScalingGroups": [{"name": "eks-g4dn"}]},
}
ADDONS = ("vpc-cni", "coredns", "kube-proxy", "eks-pod-identity-agent", "aws-efs-csi-driver")
MOUNT_TARGET = {"MountTargetId": "fsmt-12345678", "AvailabilityZoneName": "us-east-1a", "LifeCycleState": "available"}
FROM_NODES = {"ReferencedGroupInfo": {"GroupId": "sg-nodes"}}
NFS_RULE = {**FROM_NODES, "IsEgress": False, "IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049}


def write_stack(text: str = STACK) -> None:
    Path("stacks/Pulumi.mine.yaml").write_text(text)


def tool_output(command: Sequence[str]) -> str | None:
    return TOOLS.get(command[0])


def finding_of(account: FakeAccount, check: str, tools: Any = tool_output) -> Finding:
    (one,) = [finding for finding in doctor("mine", account, tools) if finding.check == check]
    return one


def secret(values: Mapping[str, str]) -> Object:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    return of_kind("Secret", "mpi-ssh", "training", data=data)


CONTROLLED: Object = {"selector": {}, "template": {"spec": {"containers": []}}}


def deployment(name: str, replicas: int = 1, namespace: str = "kube-system") -> Object:
    return of_kind("Deployment", name, namespace, spec=CONTROLLED, status={"availableReplicas": replicas})


def device_plugin(ready: int = 1) -> Object:
    counts = {"currentNumberScheduled": 1, "desiredNumberScheduled": 1, "numberMisscheduled": 0, "numberReady": ready}
    return of_kind("DaemonSet", "nvidia-device-plugin", "kube-system", spec=CONTROLLED, status=counts)


def autoscaler_status(health: str = "Healthy") -> Object:
    status = f"time: 2026-11-20\nautoscalerStatus: Running\nclusterWide:\n  health:\n    status: {health}\n"
    return of_kind("ConfigMap", "cluster-autoscaler-status", "kube-system", data={"status": status})


def claim(phase: str = "Bound") -> Object:
    return of_kind("PersistentVolumeClaim", "runs", "training", status={"phase": phase})


CONTROLLERS = {
    "jobset-controller": deployment("jobset-controller", namespace="jobset-system"),
    "cluster-autoscaler": deployment("cluster-autoscaler"),
    "coredns": deployment("coredns", 2),
    "nvidia-device-plugin": device_plugin(),
}


def make_healthy(cluster: FakeCluster) -> None:
    """Let all be well in a cluster."""
    system = {**node("system", gpus=0), "metadata": {"name": "system", "labels": {}}}
    cluster.put(node("a"), system, *CONTROLLERS.values(), autoscaler_status(), secret(KEY), claim())


class HealthyEnvironment:
    """A built environment in which all is well with its cluster, its stack, and the doctor's findings about them."""

    def __init__(self, account: FakeAccount, cluster: FakeCluster) -> None:
        self.account, self.cluster = account, cluster
        make_healthy(cluster)
        group = {**OUTPUTS["node_groups"][0], "placement_group": True}
        arn = "arn:aws:eks:us-east-1:123456789012:cluster/spotmpi-mine"
        named = {"name": "spotmpi-mine", "cluster": "spotmpi-mine", "cluster_arn": arn, "node_groups": [group]}
        self.environment = environment.parse({**OUTPUTS, **named})
        self.failure: SpotmpiError | None = None
        write_stack(STACK.replace("gpus, type: g5.xlarge, max: 8", "g4dn, type: g4dn.xlarge, max: 2"))
        account.script("DescribeImages", imageDetails=[])
        account.script("DescribeMountTargets", MountTargets=[MOUNT_TARGET])
        account.script("DescribeMountTargetSecurityGroups", SecurityGroups=["sg-nfs"])
        rules = [{**FROM_NODES, "IsEgress": True, "IpProtocol": "-1"}, NFS_RULE]
        account.script("DescribeSecurityGroupRules", SecurityGroupRules=rules)
        account.eks.version = "1.35"
        account.eks.offered["1.35"] = (STANDARD, datetime.now(UTC) + timedelta(days=200))
        account.eks.addons = dict.fromkeys(ADDONS, "v1.2")
        account.eks.groups["spotmpi-mine-g4dn-1234567"] = NODE_GROUP
        account.autoscaling.add("eks-g4dn", GROUP_TAGS, nodes=1)
        account.autoscaling.activities["eks-g4dn"] = [{"Description": "Terminating EC2 instance: i-0"}]
        place = {"AvailabilityZone": "us-east-1a", "GroupName": "spotmpi-mine-g4dn"}
        account.ec2.machines[f"i-{'a':0>17}"] = machine(Placement=place)

    def open_live(self, stack: str) -> LiveEnvironment:
        assert stack == "mine"
        if self.failure:
            raise self.failure
        return LiveEnvironment(self.environment, self.cluster.view())

    def findings(self) -> dict[str, Finding]:
        return {finding.check: finding for finding in doctor("mine", self.account, tool_output, self.open_live)}
