"""Every guardrail with inputs that pass and inputs that it refuses, and the ready stacks checked by all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from infra.guardrails import rules
from infra.guardrails.pack import policies
from tests.infra.mock_engine import run

GROUP = "aws:eks/nodeGroup:NodeGroup"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
TAGS = {"spotmpi:environment": "spotmpi-lab"}
ON_DEMAND = TAGS | {"spotmpi:on-demand-gpus": "requested"}
GPU_GROUP = {
    "amiType": "AL2023_x86_64_NVIDIA",
    "capacityType": "SPOT",
    "subnetIds": ["subnet-1"],
    "taints": [{"key": "nvidia.com/gpu", "effect": "NO_SCHEDULE"}],
    "tags": TAGS,
}
MACHINE = {
    "metadataOptions": {"httpTokens": "required"},
    "blockDeviceMappings": [{"ebs": {"encrypted": "true"}}],
    "tagSpecifications": [{"resourceType": kind, "tags": TAGS} for kind in ("instance", "volume")],
    "tags": TAGS,
}
INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
SECURITY_GROUP = "aws:ec2/securityGroup:SecurityGroup"
CLUSTER = "aws:eks/cluster:Cluster"
OLD_RULE = "aws:ec2/securityGroupRule:SecurityGroupRule"
SERVICE = "kubernetes:core/v1:Service"
RELEASE = "kubernetes:helm.sh/v3:Release"

# A rule, the type and inputs of a resource, and why it is refused; "" where it passes.
CASES: list[tuple[str, str, Mapping[str, Any], str]] = [
    ("no-world-open-ingress", INGRESS, {"referencedSecurityGroupId": "sg-1", "ipProtocol": "-1"}, ""),
    ("no-world-open-ingress", INGRESS, {"cidrIpv4": "10.0.0.0/8"}, ""),
    ("no-world-open-ingress", SECURITY_GROUP, {"ingress": [{"cidrBlocks": ["10.0.0.0/16"]}]}, ""),
    ("no-world-open-ingress", OLD_RULE, {"type": "egress", "cidrBlocks": ["0.0.0.0/0"]}, ""),
    ("no-world-open-api", CLUSTER, {"vpcConfig": {"publicAccessCidrs": ["198.51.100.7/32"]}}, ""),
    ("no-world-open-api", CLUSTER, {"vpcConfig": {"endpointPublicAccess": False}}, ""),
    ("no-world-open-api", "eks:index:Cluster", {"publicAccessCidrs": ["198.51.100.0/24"]}, ""),
    # The engine checks a remote component without its inputs; its child is checked as well.
    ("no-world-open-api", "eks:index:Cluster", {}, ""),
    ("no-unencrypted-storage", "aws:efs/fileSystem:FileSystem", {"encrypted": True}, ""),
    ("no-unencrypted-storage", "aws:ebs/volume:Volume", {"encrypted": True}, ""),
    ("no-unencrypted-storage", TEMPLATE, MACHINE, ""),
    ("no-imdsv1", TEMPLATE, MACHINE, ""),
    ("gpus-in-one-zone", GROUP, GPU_GROUP, ""),
    ("gpus-in-one-zone", GROUP, {"amiType": "AL2023_x86_64_STANDARD", "subnetIds": ["subnet-1", "subnet-2"]}, ""),
    ("gpus-tainted", GROUP, GPU_GROUP, ""),
    ("gpus-tainted", GROUP, {"amiType": "AL2023_x86_64_STANDARD", "instanceTypes": ["t3.medium"]}, ""),
    ("gpus-on-spot", GROUP, GPU_GROUP, ""),
    ("gpus-on-spot", GROUP, GPU_GROUP | {"capacityType": "ON_DEMAND", "tags": ON_DEMAND}, ""),
    ("gpus-on-spot", GROUP, GPU_GROUP | {"capacityType": "CAPACITY_BLOCK"}, ""),
    ("gpus-on-spot", GROUP, {"amiType": "AL2023_x86_64_STANDARD", "capacityType": "ON_DEMAND"}, ""),
    ("no-load-balancers", SERVICE, {"spec": {"type": "ClusterIP"}}, ""),
    ("no-load-balancers", RELEASE, {"values": {"service": {"type": "ClusterIP"}}}, ""),
    ("tagged", GROUP, GPU_GROUP, ""),
    ("tagged", GROUP, {"tagsAll": TAGS}, ""),
    ("tagged", TEMPLATE, MACHINE, ""),
    ("tagged", "aws:iam/role:Role", {}, ""),
    ("no-world-open-ingress", INGRESS, {"cidrIpv4": "0.0.0.0/0"}, "allows ingress from 0.0.0.0/0"),
    ("no-world-open-ingress", INGRESS, {"cidrIpv4": "128.0.0.0/1"}, "allows ingress from 128.0.0.0/1"),
    ("no-world-open-ingress", INGRESS, {"cidrIpv6": "::/0"}, "allows ingress from ::/0"),
    ("no-world-open-ingress", OLD_RULE, {"type": "ingress", "cidrBlocks": ["0.0.0.0/0"]}, "from 0.0.0.0/0"),
    (
        "no-world-open-ingress",
        SECURITY_GROUP,
        {"ingress": [{"cidrBlocks": ["10.0.0.0/16"], "ipv6CidrBlocks": ["::/0"]}]},
        "allows ingress from ::/0",
    ),
    ("no-world-open-api", CLUSTER, {"vpcConfig": {}}, "opens the Kubernetes API to the world"),
    ("no-world-open-api", "eks:index:Cluster", {"publicAccessCidrs": ["0.0.0.0/0"]}, "API to 0.0.0.0/0"),
    ("no-unencrypted-storage", "aws:efs/fileSystem:FileSystem", {}, "is not encrypted"),
    ("no-unencrypted-storage", "aws:ebs/volume:Volume", {"encrypted": False}, "is not encrypted"),
    ("no-unencrypted-storage", TEMPLATE, {}, "leaves the root disk to the image"),
    ("no-unencrypted-storage", TEMPLATE, {"blockDeviceMappings": [{"ebs": {"encrypted": "false"}}]}, "has a disk"),
    ("no-imdsv1", TEMPLATE, {"metadataOptions": {"httpTokens": "optional"}}, "allows IMDSv1"),
    ("no-imdsv1", TEMPLATE, {}, "allows IMDSv1"),
    ("gpus-in-one-zone", GROUP, GPU_GROUP | {"subnetIds": ["subnet-1", "subnet-2"]}, "spreads GPUs"),
    ("gpus-tainted", GROUP, GPU_GROUP | {"taints": []}, "no taint"),
    ("gpus-tainted", GROUP, GPU_GROUP | {"taints": [{"effect": "PREFER_NO_SCHEDULE"}]}, "no taint"),
    ("gpus-tainted", GROUP, {"amiType": "CUSTOM", "instanceTypes": ["p3.2xlarge"]}, "no taint"),
    ("gpus-on-spot", GROUP, GPU_GROUP | {"capacityType": "ON_DEMAND"}, "buys GPUs on demand"),
    ("gpus-on-spot", GROUP, {"amiType": "AL2023_x86_64_NVIDIA"}, "buys GPUs on demand"),
    ("no-load-balancers", SERVICE, {"spec": {"type": "LoadBalancer"}}, "creates a load balancer"),
    ("no-load-balancers", RELEASE, {"values": {"a": [{"service": {"type": "LoadBalancer"}}]}}, "chart's values"),
    ("tagged", GROUP, {"tags": {"Name": "x"}}, "has no tag spotmpi:environment"),
    ("tagged", "aws:ec2/eip:Eip", {}, "has no tag spotmpi:environment"),
    ("tagged", TEMPLATE, MACHINE | {"tagSpecifications": []}, "starts a volume without tag"),
]
BY_NAME = {rule.name: rule for rule in rules.RULES}


@pytest.mark.parametrize(("name", "kind", "inputs", "message"), CASES)
def test_a_rule_refuses_invalid_inputs_with_a_reason_and_passes_others(
    name: str, kind: str, inputs: Mapping[str, Any], message: str
) -> None:
    findings = list(BY_NAME[name].check(kind, inputs))
    assert any(message in finding for finding in findings) if message else findings == []


def test_every_rule_has_a_passing_and_a_refused_case_and_is_a_policy_of_the_pack() -> None:
    assert {name for name, *_, message in CASES if message} == {name for name, *_, message in CASES if not message}
    assert [policy.name for policy in policies()] == list(BY_NAME)
    assert {name for name, *_ in CASES} == set(BY_NAME)


@pytest.mark.parametrize("stack", ["lab", "p3", "g5", "cpu", "p3-data", "g5-data"])
def test_no_ready_stack_breaks_a_rule(stack: str) -> None:
    for resource in run(stack).resources:
        for rule in rules.RULES:
            assert list(rule.check(resource.kind, resource.inputs)) == [], resource.name
