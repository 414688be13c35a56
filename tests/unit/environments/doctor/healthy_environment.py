"""A live environment: scripted AWS, a scripted cluster, and what the doctor says of both."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from spotmpi.core import environment
from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.checks.check import Finding, LiveEnvironment
from spotmpi.environments.doctor import doctor
from tests.cloud.account.ec2 import machine
from tests.cloud.account.eks import STANDARD
from tests.cloud.account.fake_account import FakeAccount
from tests.unit.backends.kubernetes.scripted_cluster import Object, ScriptedCluster, node
from tests.unit.core.test_environment import OUTPUTS
from tests.unit.environments.doctor.unbuilt import stack, tool_output

STACK = """config:
  aws:region: us-east-1
  spotmpi:zone: us-east-1a
  spotmpi:second_zone: us-east-1c
  spotmpi:groups:
    - {name: g4dn, type: g4dn.xlarge, max: 2}
"""
PUBLIC = f"ssh-ed25519 {'A' * 68} spotmpi"
PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nthisIsTheKey\n-----END OPENSSH PRIVATE KEY-----\n"
KEY = {"id": PRIVATE, "id.pub": PUBLIC, "authorized_keys": PUBLIC}
TEMPLATE = "k8s.io/cluster-autoscaler/node-template"
TAGS = {
    "eks:cluster-name": "spotmpi-mine",
    f"{TEMPLATE}/label/spotmpi.dev/group": "g4dn",
    f"{TEMPLATE}/taint/nvidia.com/gpu": "present:NoSchedule",
    f"{TEMPLATE}/resources/nvidia.com/gpu": "1",
    "k8s.io/cluster-autoscaler/enabled": "true",
    "k8s.io/cluster-autoscaler/spotmpi-mine": "owned",
}


def deployment(name: str, namespace: str, running: int = 1, kind: str = "Deployment") -> Object:
    status = {"availableReplicas": running, "desiredNumberScheduled": 1, "numberReady": running}
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace}, "status": status}


def secret(values: Mapping[str, str]) -> Object:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    return {"kind": "Secret", "metadata": {"name": "mpi-ssh", "namespace": "training"}, "data": data}


def healthy_cluster() -> ScriptedCluster:
    """A cluster in which all is well."""
    status = "time: 2026-11-20\nautoscalerStatus: Running\nclusterWide:\n  health:\n    status: Healthy\n"
    return ScriptedCluster(
        [
            node("a"),
            {**node("system", gpus=0), "metadata": {**node("system")["metadata"], "labels": {}}},
            deployment("jobset-controller", "jobset-system"),
            deployment("cluster-autoscaler", "kube-system"),
            deployment("coredns", "kube-system", 2),
            deployment("nvidia-device-plugin", "kube-system", 1, "DaemonSet"),
            {
                "kind": "ConfigMap",
                "metadata": {"name": "cluster-autoscaler-status", "namespace": "kube-system"},
                "data": {"status": status},
            },
            secret(KEY),
            {
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "runs", "namespace": "training"},
                "status": {"phase": "Bound"},
            },
        ]
    )


class HealthyEnvironment:
    """An account with a built environment and its cluster, and the doctor's findings about both."""

    def __init__(self, account: FakeAccount) -> None:
        self.account, self.cluster = account, healthy_cluster()
        group = {**OUTPUTS["node_groups"][0], "placement_group": True}
        named = {"name": "spotmpi-mine", "cluster": "spotmpi-mine", "node_groups": [group]}
        self.environment = environment.parse({**OUTPUTS, **named})
        self.failure: SpotmpiError | None = None

    def open_live(self, stack: str) -> LiveEnvironment:
        assert stack == "mine"
        if self.failure:
            raise self.failure
        return LiveEnvironment(self.environment, self.cluster)

    def findings(self) -> dict[str, Finding]:
        return {finding.check: finding for finding in doctor("mine", self.account, tool_output, self.open_live)}


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
RULE = {"ReferencedGroupInfo": {"GroupId": "sg-nodes"}}
ANSWERS: dict[str, dict[str, Any]] = {
    "DescribeImages": {"imageDetails": []},
    "DescribeMountTargets": {
        "MountTargets": [
            {"MountTargetId": "fsmt-12345678", "AvailabilityZoneName": "us-east-1a", "LifeCycleState": "available"}
        ]
    },
    "DescribeMountTargetSecurityGroups": {"SecurityGroups": ["sg-nfs"]},
    "DescribeSecurityGroupRules": {
        "SecurityGroupRules": [
            {**RULE, "IsEgress": True, "IpProtocol": "-1"},
            {**RULE, "IsEgress": False, "IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049},
        ]
    },
}


def create_healthy_environment(account: FakeAccount) -> HealthyEnvironment:
    """A live environment in which all is well, whose stack is in the current folder."""
    healthy = HealthyEnvironment(account)
    for operation, values in ANSWERS.items():
        account.script(operation, **values)
    account.eks.version = "1.35"
    account.eks.offered["1.35"] = (STANDARD, datetime.now(UTC) + timedelta(days=200))
    account.eks.addons = dict.fromkeys(ADDONS, "v1.2")
    account.eks.groups["spotmpi-mine-g4dn-1234567"] = NODE_GROUP
    account.autoscaling.add("eks-g4dn", TAGS, nodes=1)
    account.autoscaling.activities["eks-g4dn"] = [{"Description": "Terminating EC2 instance: i-0"}]
    place = {"AvailabilityZone": "us-east-1a", "GroupName": "spotmpi-mine-g4dn"}
    account.ec2.machines[f"i-{'a':0>17}"] = machine(Placement=place)
    stack(STACK)
    return healthy
