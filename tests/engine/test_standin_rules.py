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
from tests.engine.providers.cloud import ResourceRequest
from tests.engine.providers.records import Refusal
from tests.engine.providers.schema import UNKNOWN

_RULE = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
_GROUP = "aws:ec2/securityGroup:SecurityGroup"


def test_a_whole_cluster_can_be_made(cloud_builder: CloudBuilder) -> None:
    subnets = cloud_builder.node_group_requirements()
    group = cloud_builder.nodes(subnets)
    scaling_group = group.outputs["resources"][0]["autoscalingGroups"][0]["name"]
    cloud_builder.make(
        SCALING_TAG, autoscalingGroupName=scaling_group, tag={"key": "a", "value": "b", "propagateAtLaunch": False}
    )
    cloud_builder.make(ADDON, clusterName="lab", addonName="coredns")
    assert scaling_group.startswith("eks-work-")


def test_subnets_lie_in_their_network_in_its_region_and_apart(cloud_builder: CloudBuilder) -> None:
    vpc = cloud_builder.make(VPC, cidrBlock="10.0.0.0/16").id
    cloud_builder.make(SUBNET, vpcId=vpc, cidrBlock="10.0.0.0/24", availabilityZone="us-east-1a")
    for cidr, zone, message in (
        ("10.1.0.0/24", "us-east-1a", "outside"),
        ("10.0.0.128/25", "us-east-1a", "Conflict"),
        ("10.0.2.0/24", "eu-west-1a", "parameter availabilityZone is invalid"),
    ):
        with pytest.raises(Refusal, match=message):
            cloud_builder.make(SUBNET, vpcId=vpc, cidrBlock=cidr, availabilityZone=zone)


def test_a_nat_gateway_asks_for_an_internet_gateway(cloud_builder: CloudBuilder) -> None:
    subnets = cloud_builder.network()
    address = cloud_builder.make(ADDRESS, domain="vpc").id
    with pytest.raises(Refusal, match="no internet gateway"):
        cloud_builder.make(NAT, subnetId=subnets[0], allocationId=address)


def test_an_internet_gateway_stays_while_nodes_use_it(cloud_builder: CloudBuilder) -> None:
    subnets = cloud_builder.node_group_requirements()
    (gateway,) = cloud_builder.cloud.records.of(GATEWAY)
    (route,) = cloud_builder.cloud.records.of(ROUTE)
    nodes = cloud_builder.nodes(subnets)
    with pytest.raises(Refusal, match="public addresses"):
        cloud_builder.delete(gateway)
    cloud_builder.delete(nodes)
    cloud_builder.delete(route)
    cloud_builder.delete(gateway)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"ipProtocol": "tcp", "cidrIpv4": "10.0.0.0/8"}, "fromPort"),
        ({"ipProtocol": "-1"}, "one source"),
        ({"ipProtocol": "-1", "referencedSecurityGroupId": "sg-0123456789abcdef0"}, "NotFound"),
        ({"ipProtocol": "-1", "cidrIpv4": "10.0.0.0/8", "description": "the nodes' own"}, "description"),
    ],
)
def test_a_security_group_rule_is_whole(cloud_builder: CloudBuilder, inputs: dict[str, Any], message: str) -> None:
    vpc = cloud_builder.make(VPC, cidrBlock="10.0.0.0/16").id
    group = cloud_builder.make(_GROUP, vpcId=vpc).id
    with pytest.raises(Refusal, match=message):
        cloud_builder.make(_RULE, securityGroupId=group, **inputs)


def test_a_cluster_needs_two_zones_and_a_role_with_its_policy(cloud_builder: CloudBuilder) -> None:
    subnets = cloud_builder.network()
    with pytest.raises(Refusal, match="two different AZs"):
        cloud_builder.cluster(subnets[:1])
    weak = cloud_builder.role("weak", "eks.amazonaws.com")
    with pytest.raises(Refusal, match="AmazonEKSClusterPolicy"):
        cloud_builder.make(CLUSTER, name="weak", roleArn=weak, vpcConfig={"subnetIds": subnets})
    with pytest.raises(Refusal, match="reserved addresses"):
        private = {"subnetIds": subnets, "publicAccessCidrs": ["192.168.1.0/24"]}
        cloud_builder.make(CLUSTER, name="weak", roleArn=weak, vpcConfig=private)


def test_nodes_do_not_join_without_policies_addons_and_an_internet_route(cloud_builder: CloudBuilder) -> None:
    subnets = cloud_builder.network()
    cloud_builder.cluster(subnets)
    cloud_builder.role("nodes", "ec2.amazonaws.com")
    with pytest.raises(Refusal, match="failed to join") as refusal:
        cloud_builder.nodes(subnets)
    for missing in ("vpc-cni", "kube-proxy", "AmazonEKS_CNI_Policy", "ContainerRegistry", "a way out of"):
        assert missing in str(refusal.value)
    cloud_builder.nodes(subnets, desired=0)


@pytest.mark.parametrize("size", [{"minSize": 3}, {"desiredSize": 3}, {"maxSize": 0}, {"maxSize": 451}])
def test_a_node_group_keeps_to_its_sizes(cloud_builder: CloudBuilder, size: dict[str, int]) -> None:
    with pytest.raises(Refusal):
        cloud_builder.nodes(cloud_builder.node_group_requirements(), size=size)


def test_a_cluster_has_a_quota_of_node_groups(cloud_builder: CloudBuilder) -> None:
    subnets = cloud_builder.node_group_requirements()
    for number in range(GROUPS_PER_CLUSTER):
        cloud_builder.nodes(subnets, f"g{number}", desired=0)
    with pytest.raises(Refusal, match="ResourceLimitExceeded"):
        cloud_builder.nodes(subnets, "more", desired=0)


def test_missing_capacity_refuses_only_who_needs_machines_now(cloud_builder: CloudBuilder) -> None:
    subnets = cloud_builder.node_group_requirements()
    cloud_builder.cloud.records.without_capacity.add("p3.2xlarge")
    cloud_builder.nodes(subnets, "later", desired=0, instanceTypes=["p3.2xlarge"])
    with pytest.raises(Refusal, match="InsufficientInstanceCapacity"):
        cloud_builder.nodes(subnets, "now", desired=1, instanceTypes=["p3.2xlarge"])


def test_a_placement_group_takes_no_burstable_machines_and_stays_while_used(cloud_builder: CloudBuilder) -> None:
    subnets = cloud_builder.node_group_requirements()
    placement = cloud_builder.make(PLACEMENT_GROUP, name="close", strategy="cluster")
    template = cloud_builder.make(LAUNCH_TEMPLATE, name="close", placement={"groupName": "close"})
    chosen = {"id": template.id, "version": "1"}
    with pytest.raises(Refusal, match="t3"):
        cloud_builder.nodes(subnets, launchTemplate=chosen, instanceTypes=["t3.medium"])
    cloud_builder.nodes(subnets, launchTemplate=chosen, instanceTypes=["p3.2xlarge"])
    with pytest.raises(Refusal, match="in use"):
        cloud_builder.delete(placement)


def test_a_group_in_a_capacity_block_needs_market_reservation_and_type_in_its_template(
    cloud_builder: CloudBuilder,
) -> None:
    subnets = cloud_builder.node_group_requirements()
    block: dict[str, object] = {
        "instanceType": "p5.48xlarge",
        "instanceMarketOptions": {"marketType": "capacity-block"},
        "capacityReservationSpecification": {"capacityReservationTarget": {"capacityReservationId": "cr-0123abcd"}},
    }

    def nodes(name: str, template: dict[str, object], **group: object) -> None:
        made = cloud_builder.make(LAUNCH_TEMPLATE, name=name, **template)
        cloud_builder.nodes(subnets, name, desired=0, launchTemplate={"id": made.id, "version": "1"}, **group)

    for key in block:
        with pytest.raises(Refusal, match="needs a template with market, reservation and type"):
            nodes(f"no-{key.lower()}", {**block, key: None}, capacityType="CAPACITY_BLOCK")
    cloud_builder.make(PLACEMENT_GROUP, name="close", strategy="cluster")
    with pytest.raises(Refusal, match="in no placement group"):
        nodes("close", {**block, "placement": {"groupName": "close"}}, capacityType="CAPACITY_BLOCK")
    with pytest.raises(Refusal, match="and in the group"):
        nodes("twice", block, capacityType="CAPACITY_BLOCK", instanceTypes=["p5.48xlarge"])
    with pytest.raises(Refusal, match="remove InstanceMarketOptions"):
        nodes("spot", block, capacityType="SPOT")
    nodes("block", block, capacityType="CAPACITY_BLOCK")


def test_a_launch_template_has_only_the_versions_that_were_made(cloud_builder: CloudBuilder) -> None:
    subnets = cloud_builder.node_group_requirements()
    template = cloud_builder.make(LAUNCH_TEMPLATE, name="plain")
    with pytest.raises(Refusal, match="no version 2"):
        cloud_builder.nodes(subnets, launchTemplate={"id": template.id, "version": "2"})
    resource = ResourceRequest(LAUNCH_TEMPLATE, "it", template.urn)
    changed = cloud_builder.aws.update(
        resource, template.id, {"name": "plain", "ebsOptimized": "true"}, template.outputs
    )
    assert changed.outputs["latestVersion"] == 2
    cloud_builder.nodes(subnets, launchTemplate={"id": template.id, "version": "2"})


def test_addons_with_pods_need_nodes_that_take_them(cloud_builder: CloudBuilder) -> None:
    subnets = cloud_builder.node_group_requirements()
    taint = {"key": "gpu", "value": "yes", "effect": "NO_SCHEDULE"}
    cloud_builder.nodes(subnets, "tainted", taints=[taint])
    with pytest.raises(Refusal, match="DEGRADED"):
        cloud_builder.make(ADDON, clusterName="lab", addonName="coredns")


def test_logs_of_a_cluster_stay_unless_somebody_holds_their_group_longer(cloud_builder: CloudBuilder) -> None:
    subnets = cloud_builder.network()
    cluster = cloud_builder.cluster(subnets, enabledClusterLogTypes=["api"])
    with pytest.raises(Refusal, match="already"):
        cloud_builder.make(LOG_GROUP, name="/aws/eks/lab/cluster")
    cloud_builder.delete(cluster)
    assert cloud_builder.cloud.leftovers == ["log group /aws/eks/lab/cluster, which EKS made"]


@pytest.mark.parametrize(
    ("zone", "message"), [("us-east-1g", "InvalidParameterValue"), ("us-west-2a", "us-east-1a, us-")]
)
def test_a_letter_that_the_region_does_not_have_is_refused(
    cloud_builder: CloudBuilder, zone: str, message: str
) -> None:
    vpc = cloud_builder.make(VPC, cidrBlock="10.0.0.0/16").id
    with pytest.raises(Refusal, match=message):
        cloud_builder.make(SUBNET, vpcId=vpc, cidrBlock="10.0.0.0/24", availabilityZone=zone)


def test_eks_refuses_subnets_in_certain_zone_ids(cloud_builder: CloudBuilder) -> None:
    subnets = cloud_builder.network()
    vpc = cloud_builder.cloud.records.of(VPC)[0].id
    other = cloud_builder.make(SUBNET, vpcId=vpc, cidrBlock="10.0.2.0/24", availabilityZone="us-east-1e").id
    with pytest.raises(Refusal, match="UnsupportedAvailabilityZoneException"):
        cloud_builder.cluster([subnets[0], other])


def test_the_log_group_of_a_deleted_cluster_is_recreated_and_blocks_a_new_one(cloud_builder: CloudBuilder) -> None:
    subnets = cloud_builder.network()
    group = cloud_builder.make(LOG_GROUP, name="/aws/eks/lab/cluster")
    cloud_builder.delete(cloud_builder.cluster(subnets, enabledClusterLogTypes=["api"]))
    cloud_builder.delete(group)
    assert (
        cloud_builder.cloud.deleted_resources.log_groups == {"/aws/eks/lab/cluster"}
        and cloud_builder.cloud.leftovers == []
    )
    with pytest.raises(Refusal, match="EKS made /aws/eks/lab/cluster again after its deletion"):
        cloud_builder.make(LOG_GROUP, name="/aws/eks/lab/cluster")


def test_instances_disks_and_keys_are_listed_after_their_end(cloud_builder: CloudBuilder) -> None:
    group = cloud_builder.nodes(cloud_builder.node_group_requirements(), tags={"spotmpi:environment": "spotmpi-lab"})
    key = cloud_builder.make(KEY, tags={"spotmpi:environment": "spotmpi-lab"})
    assert cloud_builder.cloud.deleted_resources.tagged == {}
    cloud_builder.delete(group)
    cloud_builder.delete(key)
    kinds = [arn.split(":")[5].partition("/")[0] for arn in cloud_builder.cloud.deleted_resources.tagged]
    assert kinds == ["instance", "volume", "key"]
    assert set(cloud_builder.cloud.deleted_resources.tagged.values()) == {"spotmpi-lab"}


def test_a_one_zone_file_system_is_mounted_in_its_zone_once(cloud_builder: CloudBuilder) -> None:
    subnets = cloud_builder.network()
    system = cloud_builder.make(FILE_SYSTEM, availabilityZoneName="us-east-1b").id
    with pytest.raises(Refusal, match="AvailabilityZonesMismatch"):
        cloud_builder.make(MOUNT_TARGET, fileSystemId=system, subnetId=subnets[0])
    cloud_builder.make(MOUNT_TARGET, fileSystemId=system, subnetId=subnets[1])
    with pytest.raises(Refusal, match="MountTargetConflict"):
        cloud_builder.make(MOUNT_TARGET, fileSystemId=system, subnetId=subnets[1])


@pytest.mark.parametrize(
    "document", ["{", "{}", '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Acton": "x"}]}']
)
def test_a_role_needs_a_valid_policy(cloud_builder: CloudBuilder, document: str) -> None:
    with pytest.raises(Refusal, match="MalformedPolicyDocument"):
        cloud_builder.make(ROLE, name="r", assumeRolePolicy=document)


@pytest.mark.parametrize(("token", "name"), [(ROLE, "r" * 65), (NODE_GROUP, "n" * 64), (LAUNCH_TEMPLATE, "a b")])
def test_a_name_has_its_greatest_length_and_letters(cloud_builder: CloudBuilder, token: str, name: str) -> None:
    names: dict[str, Any] = {
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
    with pytest.raises(Refusal, match=r"longer than|does not match"):
        cloud_builder.make(token, **names[token])


def test_a_generated_name_that_is_too_long_is_refused_too(cloud_builder: CloudBuilder) -> None:
    with pytest.raises(Refusal, match="longer than 64"):
        cloud_builder.make(ROLE, "r" * 60, assumeRolePolicy=trust("ec2.amazonaws.com"))


def test_fifty_tags_are_enough(cloud_builder: CloudBuilder) -> None:
    with pytest.raises(Refusal, match="AWS takes 50"):
        cloud_builder.make(VPC, cidrBlock="10.0.0.0/16", tags={f"k{n}": "v" for n in range(51)})


def test_what_is_used_is_not_deleted(cloud_builder: CloudBuilder) -> None:
    subnets = cloud_builder.node_group_requirements()
    cloud_builder.nodes(subnets)
    for token, refusal in ((VPC, "DependencyViolation"), (CLUSTER, "ResourceInUseException")):
        with pytest.raises(Refusal, match=refusal):
            cloud_builder.delete(cloud_builder.cloud.records.of(token)[0])


def test_a_principal_has_one_access_entry_and_the_builder_has_it_from_the_start(cloud_builder: CloudBuilder) -> None:
    cloud_builder.cluster(cloud_builder.network())
    somebody = "arn:aws:iam::123456789012:role/somebody"
    cloud_builder.cloud.existing_arns.add(somebody)
    cloud_builder.make(ACCESS_ENTRY, clusterName="lab", principalArn=somebody, type="STANDARD")
    for principal in (somebody, cloud_builder.cloud.builder):
        with pytest.raises(Refusal, match="409, ResourceInUseException: The specified access entry"):
            cloud_builder.make(ACCESS_ENTRY, clusterName="lab", principalArn=principal, type="STANDARD")


def test_a_second_resource_of_one_name_is_refused(cloud_builder: CloudBuilder) -> None:
    cloud_builder.make(PLACEMENT_GROUP, name="close", strategy="cluster")
    with pytest.raises(Refusal, match="already exists"):
        cloud_builder.make(PLACEMENT_GROUP, name="close", strategy="cluster")


def test_a_fault_comes_at_the_call_that_it_was_planned_for(cloud_builder: CloudBuilder) -> None:
    script = cloud_builder.cloud.script
    script.fail("create", "aws:ec2/*", nth=2)
    assert script.before("create", VPC, "a") is None
    assert script.before("create", ROLE, "b") is None
    with pytest.raises(Refusal, match="injected fault"):
        script.before("create", SUBNET, "c")
    assert script.before("create", SUBNET, "c") is None
    late = script.fail("delete", VPC, after_success=True)
    assert script.before("delete", VPC, "a") is late


def test_interfaces_of_machines_have_places_and_addresses(cloud_builder: CloudBuilder) -> None:
    efa = {"deviceIndex": 0, "networkCardIndex": 0, "interfaceType": "efa"}
    for wrong, message in (
        ([{**efa, "interfaceType": "efa-only"}], "can't be efa-only"),
        ([efa, efa], "two network interfaces"),
    ):
        with pytest.raises(Refusal, match=message):
            cloud_builder.make(LAUNCH_TEMPLATE, networkInterfaces=wrong)
    subnets = cloud_builder.node_group_requirements()
    several = [efa, {"deviceIndex": 1, "networkCardIndex": 1, "interfaceType": "efa-only"}]
    template = cloud_builder.make(LAUNCH_TEMPLATE, networkInterfaces=several)
    chosen = {"id": template.id, "version": "1"}
    with pytest.raises(Refusal, match="a public address in"):
        cloud_builder.nodes(subnets, launchTemplate=chosen)
    one = {"id": cloud_builder.make(LAUNCH_TEMPLATE, "one", networkInterfaces=[efa]).id, "version": "1"}
    cloud_builder.nodes(subnets, "single", launchTemplate=one)


def test_encryption_of_a_cluster_is_added_in_place_and_never_taken_away(cloud_builder: CloudBuilder) -> None:
    cluster, key = ResourceRequest(CLUSTER, "it", ""), {"encryptionConfig": {"provider": {"keyArn": "arn"}}}
    assert cloud_builder.aws.replaced_by(cluster, {}, key, {}) == []
    assert cloud_builder.aws.replaced_by(cluster, key, {}, {}) == ["encryptionConfig"]


def test_the_nodes_of_a_group_end_with_it(cloud_builder: CloudBuilder) -> None:
    group = cloud_builder.nodes(cloud_builder.node_group_requirements(), desired=2)
    cloud_builder.delete(group)
    assert cloud_builder.cloud.terminated == [(group.id, 2)]


def test_a_resource_of_another_region_is_replaced_and_a_global_one_is_not(cloud_builder: CloudBuilder) -> None:
    group, role = ResourceRequest(NODE_GROUP, "it", ""), ResourceRequest(ROLE, "it", "")
    states = {"arn": "arn:aws:eks:us-east-1:123456789012:nodegroup/a"}, {"arn": "arn:aws:iam::123456789012:role/a"}
    cloud_builder.cloud.records.region = "us-west-2"
    assert cloud_builder.aws.changed(group, {}, {}, states[0]) == ["region"]
    assert cloud_builder.aws.replaced_by(group, {}, {}, states[0]) == ["region"]
    assert cloud_builder.aws.changed(role, {}, {}, states[1]) == []
