"""Each rule of the stand-in cloud, called directly: what passes, and what the real service would refuse."""

from typing import Any

import pytest

from tests.engine.cloud_builder import CloudBuilder, trust
from tests.engine.providers.aws_cluster import (
    ACCESS_ENTRY,
    ADDON,
    GROUPS_PER_CLUSTER,
    KEY,
    LOG_GROUP,
    ROLE,
    SCALING_TAG,
)
from tests.engine.providers.aws_network import (
    ADDRESS,
    CLUSTER,
    GATEWAY,
    LAUNCH_TEMPLATE,
    NAT,
    NODE_GROUP,
    PLACEMENT_GROUP,
    ROUTE,
    SUBNET,
    VPC,
)
from tests.engine.providers.aws_services import FILE_SYSTEM, MOUNT_TARGET
from tests.engine.providers.records import Refusal
from tests.engine.providers.schema import UNKNOWN

_RULE = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
_TRUST = trust("ec2.amazonaws.com")
_NO_NODES = {"minSize": 0, "desiredSize": 0, "maxSize": 1}
_NODES = {"clusterName": UNKNOWN, "nodeRoleArn": UNKNOWN, "subnetIds": [UNKNOWN], "scalingConfig": _NO_NODES}
_NETWORK = {"cidrBlock": "10.0.0.0/16"}


def test_a_whole_cluster_can_be_made(eks: CloudBuilder) -> None:
    group = eks.nodes()
    scaling_group = group.outputs["resources"][0]["autoscalingGroups"][0]["name"]
    eks.make(
        SCALING_TAG, autoscalingGroupName=scaling_group, tag={"key": "a", "value": "b", "propagateAtLaunch": False}
    )
    eks.make(ADDON, clusterName="lab", addonName="coredns")
    assert scaling_group.startswith("eks-work-")


@pytest.mark.parametrize(
    ("cidr", "zone", "message"),
    [
        ("10.1.0.0/24", "us-east-1a", "outside"),
        ("10.0.0.128/25", "us-east-1a", "Conflict"),
        ("10.0.2.0/24", "eu-west-1a", "parameter availabilityZone is invalid"),
        ("10.0.2.0/24", "us-east-1g", "parameter availabilityZone is invalid"),
        ("10.0.2.0/24", "us-west-2a", "us-east-1a, us-"),
    ],
)
def test_subnets_lie_in_their_network_in_its_region_and_apart(
    builder: CloudBuilder, cidr: str, zone: str, message: str
) -> None:
    builder.network()
    with pytest.raises(Refusal, match=message):
        builder.make(SUBNET, vpcId=builder.only(VPC).id, cidrBlock=cidr, availabilityZone=zone)


@pytest.mark.parametrize(
    ("token", "inputs", "message"),
    [
        pytest.param(
            VPC,
            {**_NETWORK, "enableDnsSupport": "yes"},
            "enableDnsSupport: bool is wanted",
            id="a value of another type",
        ),
        pytest.param(MOUNT_TARGET, {"fileSystemId": "fs-1"}, "subnetId: required, and not given", id="no required key"),
        pytest.param("aws:ec2/vpn:Vpn", {}, "the SDK has no such resource", id="a type that no SDK has"),
        pytest.param(SUBNET, {**_NETWORK, "vpcId": "vpc-0"}, "no aws:ec2/vpc:Vpc has that id", id="an unknown id"),
        pytest.param(
            ADDON,
            {"clusterName": "no", "addonName": "a"},
            "no aws:eks/cluster:Cluster has that name",
            id="an unknown name",
        ),
        pytest.param(
            LOG_GROUP,
            {"kmsKeyId": "arn:aws:kms:us-east-1:123456789012:key/0"},
            "was never handed out",
            id="an unknown ARN",
        ),
        pytest.param(VPC, {**_NETWORK, "tags": {f"k{n}": "v" for n in range(51)}}, "AWS takes 50", id="51 tags"),
        pytest.param(ROLE, {"name": "r" * 65, "assumeRolePolicy": _TRUST}, "longer than 64", id="too long a name"),
        pytest.param(NODE_GROUP, {**_NODES, "nodeGroupName": "n" * 64}, "longer than 63", id="too long a group name"),
        pytest.param(LAUNCH_TEMPLATE, {"name": "a b"}, "does not match", id="a space in its name"),
        pytest.param(ROLE, {"assumeRolePolicy": "{"}, "MalformedPolicyDocument", id="a policy without JSON"),
        pytest.param(ROLE, {"assumeRolePolicy": "{}"}, "MalformedPolicyDocument", id="a policy without version"),
        pytest.param(
            ROLE,
            {"assumeRolePolicy": _TRUST.replace("Action", "Acton")},
            "MalformedPolicyDocument",
            id="a wrong key in its policy",
        ),
        pytest.param(_RULE, {"ipProtocol": "tcp", "cidrIpv4": "10.0.0.0/8"}, "fromPort", id="no ports"),
        pytest.param(_RULE, {"ipProtocol": "-1"}, "one source", id="no source"),
        pytest.param(
            _RULE, {"ipProtocol": "-1", "referencedSecurityGroupId": "sg-0"}, "NotFound", id="an unknown source"
        ),
    ],
)
def test_a_resource_is_refused_that_has(
    builder: CloudBuilder, token: str, inputs: dict[str, Any], message: str
) -> None:
    more = {"securityGroupId": UNKNOWN} if token == _RULE else {}
    with pytest.raises(Refusal, match=message):
        builder.make(token, **inputs, **more)


def test_a_nat_gateway_asks_for_an_internet_gateway(builder: CloudBuilder) -> None:
    subnets = builder.network()
    address = builder.make(ADDRESS, domain="vpc").id
    with pytest.raises(Refusal, match="no internet gateway"):
        builder.make(NAT, subnetId=subnets[0], allocationId=address)


def test_an_internet_gateway_stays_while_nodes_use_it(eks: CloudBuilder) -> None:
    gateway, route, nodes = eks.only(GATEWAY), eks.only(ROUTE), eks.nodes()
    with pytest.raises(Refusal, match="public addresses"):
        eks.delete(gateway)
    eks.delete(nodes)
    eks.delete(route)
    eks.delete(gateway)


def test_a_cluster_needs_two_zones_and_a_role_with_its_policy(builder: CloudBuilder) -> None:
    subnets = builder.network()
    with pytest.raises(Refusal, match="two different AZs"):
        builder.cluster(subnets[:1])
    weak = builder.role("weak", "eks.amazonaws.com")
    with pytest.raises(Refusal, match="AmazonEKSClusterPolicy"):
        builder.make(CLUSTER, name="weak", roleArn=weak, vpcConfig={"subnetIds": subnets})


def test_nodes_do_not_join_without_policies_addons_and_an_internet_route(builder: CloudBuilder) -> None:
    subnets = builder.network()
    builder.cluster(subnets)
    builder.role("nodes", "ec2.amazonaws.com")
    with pytest.raises(Refusal, match="failed to join") as refusal:
        builder.nodes()
    for missing in ("vpc-cni", "kube-proxy", "AmazonEKS_CNI_Policy", "ContainerRegistry", "a way out of"):
        assert missing in str(refusal.value)
    builder.nodes(desired=0)


@pytest.mark.parametrize("size", [{"minSize": 3}, {"desiredSize": 3}, {"maxSize": 0}, {"maxSize": 451}])
def test_a_node_group_keeps_to_its_sizes(eks: CloudBuilder, size: dict[str, int]) -> None:
    with pytest.raises(Refusal):
        eks.nodes(size=size)


def test_a_cluster_has_a_quota_of_node_groups(eks: CloudBuilder) -> None:
    for number in range(GROUPS_PER_CLUSTER):
        eks.nodes(f"g{number}", desired=0)
    with pytest.raises(Refusal, match="ResourceLimitExceeded"):
        eks.nodes("more", desired=0)


def test_missing_capacity_refuses_only_who_needs_machines_now(eks: CloudBuilder) -> None:
    eks.cloud.records.without_capacity.add("p3.2xlarge")
    eks.nodes("later", desired=0, instanceTypes=["p3.2xlarge"])
    with pytest.raises(Refusal, match="InsufficientInstanceCapacity"):
        eks.nodes("now", desired=1, instanceTypes=["p3.2xlarge"])


def test_a_placement_group_takes_no_burstable_machines_and_stays_while_used(eks: CloudBuilder) -> None:
    placement = eks.make(PLACEMENT_GROUP, name="close", strategy="cluster")
    template = eks.make(LAUNCH_TEMPLATE, name="close", placement={"groupName": "close"})
    chosen = {"id": template.id, "version": "1"}
    with pytest.raises(Refusal, match="t3"):
        eks.nodes(launchTemplate=chosen, instanceTypes=["t3.medium"])
    eks.nodes(launchTemplate=chosen, instanceTypes=["p3.2xlarge"])
    with pytest.raises(Refusal, match="in use"):
        eks.delete(placement)


def test_a_launch_template_has_only_the_versions_that_were_made(eks: CloudBuilder) -> None:
    template = eks.make(LAUNCH_TEMPLATE, name="plain")
    with pytest.raises(Refusal, match="no version 2"):
        eks.nodes(launchTemplate={"id": template.id, "version": "2"})
    assert eks.change(template, ebsOptimized="true").outputs["latestVersion"] == 2
    eks.nodes(launchTemplate={"id": template.id, "version": "2"})


def test_addons_with_pods_need_nodes_that_take_them(eks: CloudBuilder) -> None:
    taint = {"key": "gpu", "value": "yes", "effect": "NO_SCHEDULE"}
    eks.nodes("tainted", taints=[taint])
    with pytest.raises(Refusal, match="DEGRADED"):
        eks.make(ADDON, clusterName="lab", addonName="coredns")


def test_logs_of_a_cluster_stay_unless_somebody_holds_their_group_longer(builder: CloudBuilder) -> None:
    cluster = builder.cluster(enabledClusterLogTypes=["api"])
    with pytest.raises(Refusal, match="already"):
        builder.make(LOG_GROUP, name="/aws/eks/lab/cluster")
    builder.delete(cluster)
    assert builder.cloud.leftovers == ["log group /aws/eks/lab/cluster, which EKS made"]


def test_eks_refuses_subnets_in_certain_zone_ids(builder: CloudBuilder) -> None:
    subnets = builder.network()
    vpc = builder.only(VPC)
    other = builder.make(SUBNET, vpcId=vpc.id, cidrBlock="10.0.2.0/24", availabilityZone="us-east-1e").id
    with pytest.raises(Refusal, match="UnsupportedAvailabilityZoneException"):
        builder.cluster([subnets[0], other])


def test_the_log_group_of_a_deleted_cluster_is_recreated_and_blocks_a_new_one(builder: CloudBuilder) -> None:
    group = builder.make(LOG_GROUP, name="/aws/eks/lab/cluster")
    builder.delete(builder.cluster(enabledClusterLogTypes=["api"]))
    builder.delete(group)
    assert builder.cloud.deleted_resources.log_groups == {"/aws/eks/lab/cluster"} and builder.cloud.leftovers == []
    with pytest.raises(Refusal, match="EKS made /aws/eks/lab/cluster again after its deletion"):
        builder.make(LOG_GROUP, name="/aws/eks/lab/cluster")


def test_instances_disks_and_keys_are_listed_after_their_end(eks: CloudBuilder) -> None:
    group = eks.nodes(tags={"spotmpi:environment": "spotmpi-lab"})
    key = eks.make(KEY, tags={"spotmpi:environment": "spotmpi-lab"})
    assert eks.cloud.deleted_resources.tagged == {}
    eks.delete(group)
    eks.delete(key)
    kinds = [arn.split(":")[5].partition("/")[0] for arn in eks.cloud.deleted_resources.tagged]
    assert kinds == ["instance", "volume", "key"]
    assert set(eks.cloud.deleted_resources.tagged.values()) == {"spotmpi-lab"}


def test_a_one_zone_file_system_is_mounted_in_its_zone_once(builder: CloudBuilder) -> None:
    subnets = builder.network()
    system = builder.make(FILE_SYSTEM, availabilityZoneName="us-east-1b").id
    with pytest.raises(Refusal, match="AvailabilityZonesMismatch"):
        builder.make(MOUNT_TARGET, fileSystemId=system, subnetId=subnets[0])
    builder.make(MOUNT_TARGET, fileSystemId=system, subnetId=subnets[1])
    with pytest.raises(Refusal, match="MountTargetConflict"):
        builder.make(MOUNT_TARGET, fileSystemId=system, subnetId=subnets[1])


def test_a_generated_name_that_is_too_long_is_refused_too(builder: CloudBuilder) -> None:
    with pytest.raises(Refusal, match="longer than 64"):
        builder.make(ROLE, "r" * 60, assumeRolePolicy=_TRUST)


def test_what_is_used_is_not_deleted(eks: CloudBuilder) -> None:
    eks.nodes()
    for token in (VPC, CLUSTER):
        with pytest.raises(Refusal, match="DependencyViolation"):
            eks.delete(eks.only(token))


def test_a_principal_has_one_access_entry_and_the_builder_has_it_from_the_start(builder: CloudBuilder) -> None:
    builder.cluster()
    somebody = "arn:aws:iam::123456789012:role/somebody"
    builder.cloud.existing_arns.add(somebody)
    builder.make(ACCESS_ENTRY, clusterName="lab", principalArn=somebody, type="STANDARD")
    for principal in (somebody, builder.cloud.builder):
        with pytest.raises(Refusal, match="409, ResourceInUseException: The specified access entry"):
            builder.make(ACCESS_ENTRY, clusterName="lab", principalArn=principal, type="STANDARD")


def test_a_second_resource_of_one_name_is_refused(builder: CloudBuilder) -> None:
    builder.make(PLACEMENT_GROUP, name="close", strategy="cluster")
    with pytest.raises(Refusal, match="already exists"):
        builder.make(PLACEMENT_GROUP, name="close", strategy="cluster")


def test_a_fault_comes_at_the_call_that_it_was_planned_for(builder: CloudBuilder) -> None:
    script = builder.cloud.script
    script.fail("create", "aws:ec2/*", nth=2)
    assert script.before("create", VPC) is None
    assert script.before("create", ROLE) is None
    with pytest.raises(Refusal, match="injected fault"):
        script.before("create", SUBNET)
    assert script.before("create", SUBNET) is None
    late = script.fail("delete", VPC, after_success=True)
    assert script.before("delete", VPC) is late
