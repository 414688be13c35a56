"""Each rule of the stand-in cloud, asked directly: what passes, and what the real service would refuse."""

from typing import Any

import pytest

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
from tests.engine.providers.cloud import Asked
from tests.engine.providers.records import Refused
from tests.engine.providers.schema import UNKNOWN
from tests.engine.world import World, trust

_RULE = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
_GROUP = "aws:ec2/securityGroup:SecurityGroup"


def test_a_whole_cluster_can_be_made(world: World) -> None:
    subnets = world.ready()
    group = world.nodes(subnets)
    scaling_group = group.outputs["resources"][0]["autoscalingGroups"][0]["name"]
    world.make(
        SCALING_TAG, autoscalingGroupName=scaling_group, tag={"key": "a", "value": "b", "propagateAtLaunch": False}
    )
    world.make(ADDON, clusterName="lab", addonName="coredns")
    assert scaling_group.startswith("eks-work-")


def test_subnets_lie_in_their_network_in_its_region_and_apart(world: World) -> None:
    vpc = world.make(VPC, cidrBlock="10.0.0.0/16").id
    world.make(SUBNET, vpcId=vpc, cidrBlock="10.0.0.0/24", availabilityZone="us-east-1a")
    for cidr, zone, message in (
        ("10.1.0.0/24", "us-east-1a", "outside"),
        ("10.0.0.128/25", "us-east-1a", "Conflict"),
        ("10.0.2.0/24", "eu-west-1a", "parameter availabilityZone is invalid"),
    ):
        with pytest.raises(Refused, match=message):
            world.make(SUBNET, vpcId=vpc, cidrBlock=cidr, availabilityZone=zone)


def test_a_nat_gateway_asks_for_an_internet_gateway(world: World) -> None:
    subnets = world.network()
    address = world.make(ADDRESS, domain="vpc").id
    with pytest.raises(Refused, match="no internet gateway"):
        world.make(NAT, subnetId=subnets[0], allocationId=address)


def test_an_internet_gateway_stays_while_nodes_use_it(world: World) -> None:
    subnets = world.ready()
    (gateway,) = world.cloud.records.of(GATEWAY)
    (route,) = world.cloud.records.of(ROUTE)
    nodes = world.nodes(subnets)
    with pytest.raises(Refused, match="public addresses"):
        world.drop(gateway)
    world.drop(nodes)
    world.drop(route)
    world.drop(gateway)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"ipProtocol": "tcp", "cidrIpv4": "10.0.0.0/8"}, "fromPort"),
        ({"ipProtocol": "-1"}, "one source"),
        ({"ipProtocol": "-1", "referencedSecurityGroupId": "sg-0123456789abcdef0"}, "NotFound"),
    ],
)
def test_a_security_group_rule_is_whole(world: World, inputs: dict[str, Any], message: str) -> None:
    vpc = world.make(VPC, cidrBlock="10.0.0.0/16").id
    group = world.make(_GROUP, vpcId=vpc).id
    with pytest.raises(Refused, match=message):
        world.make(_RULE, securityGroupId=group, **inputs)


def test_a_cluster_wants_two_zones_and_a_role_with_its_policy(world: World) -> None:
    subnets = world.network()
    with pytest.raises(Refused, match="two different AZs"):
        world.cluster(subnets[:1])
    weak = world.role("weak", "eks.amazonaws.com")
    with pytest.raises(Refused, match="AmazonEKSClusterPolicy"):
        world.make(CLUSTER, name="weak", roleArn=weak, vpcConfig={"subnetIds": subnets})


def test_nodes_do_not_join_without_policies_addons_and_a_way_out(world: World) -> None:
    subnets = world.network()
    world.cluster(subnets)
    world.role("nodes", "ec2.amazonaws.com")
    with pytest.raises(Refused, match="failed to join") as refusal:
        world.nodes(subnets)
    for missing in ("vpc-cni", "kube-proxy", "AmazonEKS_CNI_Policy", "ContainerRegistry", "a way out of"):
        assert missing in str(refusal.value)
    world.nodes(subnets, desired=0)


@pytest.mark.parametrize("size", [{"minSize": 3}, {"desiredSize": 3}, {"maxSize": 0}, {"maxSize": 451}])
def test_a_node_group_keeps_to_its_sizes(world: World, size: dict[str, int]) -> None:
    with pytest.raises(Refused):
        world.nodes(world.ready(), size=size)


def test_a_cluster_has_a_quota_of_node_groups(world: World) -> None:
    subnets = world.ready()
    for number in range(GROUPS_PER_CLUSTER):
        world.nodes(subnets, f"g{number}", desired=0)
    with pytest.raises(Refused, match="ResourceLimitExceeded"):
        world.nodes(subnets, "more", desired=0)


def test_missing_capacity_refuses_only_who_wants_machines_now(world: World) -> None:
    subnets = world.ready()
    world.cloud.records.without_capacity.add("p3.2xlarge")
    world.nodes(subnets, "later", desired=0, instanceTypes=["p3.2xlarge"])
    with pytest.raises(Refused, match="InsufficientInstanceCapacity"):
        world.nodes(subnets, "now", desired=1, instanceTypes=["p3.2xlarge"])


def test_a_placement_group_takes_no_burstable_machines_and_stays_while_used(world: World) -> None:
    subnets = world.ready()
    placement = world.make(PLACEMENT_GROUP, name="close", strategy="cluster")
    template = world.make(LAUNCH_TEMPLATE, name="close", placement={"groupName": "close"})
    chosen = {"id": template.id, "version": "1"}
    with pytest.raises(Refused, match="t3"):
        world.nodes(subnets, launchTemplate=chosen, instanceTypes=["t3.medium"])
    world.nodes(subnets, launchTemplate=chosen, instanceTypes=["p3.2xlarge"])
    with pytest.raises(Refused, match="in use"):
        world.drop(placement)


def test_a_launch_template_has_only_the_versions_that_were_made(world: World) -> None:
    subnets = world.ready()
    template = world.make(LAUNCH_TEMPLATE, name="plain")
    with pytest.raises(Refused, match="no version 2"):
        world.nodes(subnets, launchTemplate={"id": template.id, "version": "2"})
    asked = Asked(LAUNCH_TEMPLATE, "it", template.urn)
    changed = world.aws.update(asked, template.id, {"name": "plain", "ebsOptimized": "true"}, template.outputs)
    assert changed.outputs["latestVersion"] == 2
    world.nodes(subnets, launchTemplate={"id": template.id, "version": "2"})


def test_addons_with_pods_want_nodes_that_take_them(world: World) -> None:
    subnets = world.ready()
    taint = {"key": "gpu", "value": "yes", "effect": "NO_SCHEDULE"}
    world.nodes(subnets, "tainted", taints=[taint])
    with pytest.raises(Refused, match="DEGRADED"):
        world.make(ADDON, clusterName="lab", addonName="coredns")


def test_logs_of_a_cluster_stay_unless_somebody_holds_their_group_longer(world: World) -> None:
    subnets = world.network()
    cluster = world.cluster(subnets, enabledClusterLogTypes=["api"])
    with pytest.raises(Refused, match="already"):
        world.make(LOG_GROUP, name="/aws/eks/lab/cluster")
    world.drop(cluster)
    assert world.cloud.leftovers == ["log group /aws/eks/lab/cluster, which EKS made"]


@pytest.mark.parametrize(("zone", "said"), [("us-east-1g", "InvalidParameterValue"), ("us-west-2a", "us-east-1a, us-")])
def test_a_letter_that_the_region_does_not_have_is_refused(world: World, zone: str, said: str) -> None:
    vpc = world.make(VPC, cidrBlock="10.0.0.0/16").id
    with pytest.raises(Refused, match=said):
        world.make(SUBNET, vpcId=vpc, cidrBlock="10.0.0.0/24", availabilityZone=zone)


def test_eks_takes_no_subnet_in_a_zone_of_a_certain_id(world: World) -> None:
    subnets = world.network()
    vpc = world.cloud.records.of(VPC)[0].id
    other = world.make(SUBNET, vpcId=vpc, cidrBlock="10.0.2.0/24", availabilityZone="us-east-1e").id
    with pytest.raises(Refused, match="UnsupportedAvailabilityZoneException"):
        world.cluster([subnets[0], other])


def test_the_log_group_of_a_deleted_cluster_is_made_again_and_in_the_way(world: World) -> None:
    subnets = world.network()
    group = world.make(LOG_GROUP, name="/aws/eks/lab/cluster")
    world.drop(world.cluster(subnets, enabledClusterLogTypes=["api"]))
    world.drop(group)
    assert world.cloud.memories.log_groups == {"/aws/eks/lab/cluster"} and world.cloud.leftovers == []
    with pytest.raises(Refused, match="EKS made /aws/eks/lab/cluster again after its deletion"):
        world.make(LOG_GROUP, name="/aws/eks/lab/cluster")


def test_machines_disks_and_keys_are_told_of_after_their_end(world: World) -> None:
    group = world.nodes(world.ready(), tags={"spotmpi:environment": "spotmpi-lab"})
    key = world.make(KEY, tags={"spotmpi:environment": "spotmpi-lab"})
    assert world.cloud.memories.tagged == {}
    world.drop(group)
    world.drop(key)
    kinds = [arn.split(":")[5].partition("/")[0] for arn in world.cloud.memories.tagged]
    assert kinds == ["instance", "volume", "key"]
    assert set(world.cloud.memories.tagged.values()) == {"spotmpi-lab"}


def test_a_one_zone_file_system_is_mounted_in_its_zone_once(world: World) -> None:
    subnets = world.network()
    system = world.make(FILE_SYSTEM, availabilityZoneName="us-east-1b").id
    with pytest.raises(Refused, match="AvailabilityZonesMismatch"):
        world.make(MOUNT_TARGET, fileSystemId=system, subnetId=subnets[0])
    world.make(MOUNT_TARGET, fileSystemId=system, subnetId=subnets[1])
    with pytest.raises(Refused, match="MountTargetConflict"):
        world.make(MOUNT_TARGET, fileSystemId=system, subnetId=subnets[1])


@pytest.mark.parametrize(
    "document", ["{", "{}", '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Acton": "x"}]}']
)
def test_a_role_wants_a_policy_that_is_one(world: World, document: str) -> None:
    with pytest.raises(Refused, match="MalformedPolicyDocument"):
        world.make(ROLE, name="r", assumeRolePolicy=document)


@pytest.mark.parametrize(("token", "name"), [(ROLE, "r" * 65), (NODE_GROUP, "n" * 64), (LAUNCH_TEMPLATE, "a b")])
def test_a_name_has_its_greatest_length_and_letters(world: World, token: str, name: str) -> None:
    wanted: dict[str, Any] = {
        ROLE: {"name": name, "assumeRolePolicy": trust("ec2.amazonaws.com")},
        LAUNCH_TEMPLATE: {"name": name},
        NODE_GROUP: {
            "nodeGroupName": name,
            "clusterName": UNKNOWN,
            "nodeRoleArn": UNKNOWN,
            "subnetIds": [UNKNOWN],
            "scalingConfig": {"minSize": 0, "desiredSize": 0, "maxSize": 1},
        },
    }
    with pytest.raises(Refused, match=r"longer than|does not match"):
        world.make(token, **wanted[token])


def test_a_made_up_name_that_grows_too_long_is_refused_too(world: World) -> None:
    with pytest.raises(Refused, match="longer than 64"):
        world.make(ROLE, "r" * 60, assumeRolePolicy=trust("ec2.amazonaws.com"))


def test_fifty_tags_are_enough(world: World) -> None:
    with pytest.raises(Refused, match="AWS takes 50"):
        world.make(VPC, cidrBlock="10.0.0.0/16", tags={f"k{n}": "v" for n in range(51)})


def test_what_is_used_is_not_deleted(world: World) -> None:
    subnets = world.ready()
    world.nodes(subnets)
    for token in (VPC, CLUSTER):
        with pytest.raises(Refused, match="DependencyViolation"):
            world.drop(world.cloud.records.of(token)[0])


def test_a_principal_has_one_access_entry_and_the_builder_has_it_from_the_start(world: World) -> None:
    world.cluster(world.network())
    somebody = "arn:aws:iam::123456789012:role/somebody"
    world.cloud.given.add(somebody)
    world.make(ACCESS_ENTRY, clusterName="lab", principalArn=somebody, type="STANDARD")
    for principal in (somebody, world.cloud.builder):
        with pytest.raises(Refused, match="409, ResourceInUseException: The specified access entry"):
            world.make(ACCESS_ENTRY, clusterName="lab", principalArn=principal, type="STANDARD")


def test_a_second_thing_of_one_name_is_refused(world: World) -> None:
    world.make(PLACEMENT_GROUP, name="close", strategy="cluster")
    with pytest.raises(Refused, match="already exists"):
        world.make(PLACEMENT_GROUP, name="close", strategy="cluster")


def test_a_fault_comes_at_the_call_that_it_was_planned_for(world: World) -> None:
    script = world.cloud.script
    script.fail("create", "aws:ec2/*", nth=2)
    assert script.before("create", VPC, "a") is None
    assert script.before("create", ROLE, "b") is None
    with pytest.raises(Refused, match="told to fail"):
        script.before("create", SUBNET, "c")
    assert script.before("create", SUBNET, "c") is None
    late = script.fail("delete", VPC, done_anyway=True)
    assert script.before("delete", VPC, "a") is late
