"""EKS as AWS answers it: control planes, node groups, add-ons, access, and the tags of their Auto Scaling groups."""

import json
from collections.abc import Iterator
from ipaddress import IPv4Network, ip_network
from typing import Any

from tests.engine.providers import eks_versions
from tests.engine.providers.aws_network import (
    CLUSTER,
    LAUNCH_TEMPLATE,
    NODE_GROUP,
    PLACEMENT_GROUP,
    SECURITY_GROUPS,
    SUBNET,
    internet_route,
    zone_of,
)
from tests.engine.providers.kinds import Kind, Name, Target
from tests.engine.providers.records import Record, Records, Refusal, value_at
from tests.engine.providers.zones import require_eks

ROLE = "aws:iam/role:Role"
ATTACHMENT = "aws:iam/rolePolicyAttachment:RolePolicyAttachment"
KEY = "aws:kms/key:Key"
ADDON = "aws:eks/addon:Addon"
ACCESS_ENTRY = "aws:eks/accessEntry:AccessEntry"
LOG_GROUP = "aws:cloudwatch/logGroup:LogGroup"
SCALING_TAG = "aws:autoscaling/tag:Tag"
# EKS's default quotas: managed node groups of a cluster, nodes of a group.
GROUPS_PER_CLUSTER, NODES_PER_GROUP = 30, 450
_NODE_POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy")
_IMAGE_POLICIES = ("AmazonEC2ContainerRegistryReadOnly", "AmazonEC2ContainerRegistryPullOnly")
_ADDONS_WITH_PODS = ("coredns", "metrics-server", "aws-efs-csi-driver")
_ADDONS_FOR_NODES = ("vpc-cni", "kube-proxy")
_FIXED_OF_NODE_GROUPS = (
    *("clusterName", "nodeGroupName", "nodeRoleArn", "subnetIds", "instanceTypes"),
    *("amiType", "capacityType", "diskSize", "launchTemplate.id"),
)
# EKS user guide, config-cluster-endpoint: "The block cannot include reserved addresses."
_PRIVATE = [ip_network(each) for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")]
_OF_CLUSTER = {"clusterName": (Target(CLUSTER, "name"),)}


def policies_of(role_name: str, records: Records) -> set[str]:
    """The last parts of the ARNs of the policies that a role has."""
    return {
        attachment.inputs["policyArn"].rsplit("/", 1)[-1]
        for attachment in records.of(ATTACHMENT)
        if attachment.inputs["role"] == role_name
    }


def _cluster_rule(inputs: dict[str, Any], records: Records) -> None:
    for cidr in inputs["vpcConfig"].get("publicAccessCidrs") or []:
        if any(ip_network(cidr).subnet_of(private) for private in _PRIVATE):  # type: ignore[arg-type]
            raise Refusal(f"InvalidParameterException: public access from reserved addresses: {cidr}")
    subnets = [records.get(SUBNET, identity) for identity in inputs["vpcConfig"]["subnetIds"]]
    if len({zone_of(subnet.inputs) for subnet in subnets if subnet}) < 2:
        raise Refusal("InvalidParameterException: subnets specified must be in at least two different AZs")
    for subnet in subnets:
        if subnet:
            require_eks(records.region, zone_of(subnet.inputs))
    if "AmazonEKSClusterPolicy" not in policies_of(inputs["roleArn"].rsplit("/", 1)[-1], records):
        raise Refusal(f"InvalidParameterException: {inputs['roleArn']} lacks AmazonEKSClusterPolicy")


def _cluster_answers(inputs: dict[str, Any], identity: str, records: Records) -> dict[str, Any]:
    vpc = records.get(SUBNET, inputs["vpcConfig"]["subnetIds"][0])
    assert vpc
    group = f"sg-{records.new_hex(identity)}"
    endpoint = f"https://{records.new_hex(identity, 32).upper()}.gr7.{records.region}.eks.amazonaws.com"
    return {
        "vpcConfig": {**inputs["vpcConfig"], "clusterSecurityGroupId": group, "vpcId": vpc.inputs["vpcId"]},
        "endpoint": records.endpoint or endpoint,
        "certificateAuthorities": [{"data": records.authority}],
        "certificateAuthority": {"data": records.authority},
        "status": "ACTIVE",
        "version": eks_versions.new_cluster(inputs),
    }


def nodes_of(cluster: str, records: Records) -> list[Record]:
    """The node groups of a cluster that hold machines any pod may run on."""
    return [
        group
        for group in records.of(NODE_GROUP)
        if group.inputs["clusterName"] == cluster
        and group.inputs["scalingConfig"]["desiredSize"]
        and not group.inputs.get("taints")
    ]


def _node_group_rule(inputs: dict[str, Any], records: Records) -> None:
    size, cluster = inputs["scalingConfig"], inputs["clusterName"]
    if not 0 <= size["minSize"] <= size["desiredSize"] <= size["maxSize"] or size["maxSize"] < 1:
        raise Refusal(f"InvalidParameterException: min <= desired <= max does not hold for {size}")
    if size["maxSize"] > NODES_PER_GROUP:
        raise Refusal(f"ResourceLimitExceededException: {size['maxSize']} nodes, the limit is {NODES_PER_GROUP}")
    _check_template(inputs, records)
    if size["desiredSize"]:
        _check_nodes_can_join(cluster, inputs, records)


def _new_node_group_rule(inputs: dict[str, Any], records: Records) -> None:
    peers = [group for group in records.of(NODE_GROUP) if group.inputs["clusterName"] == inputs["clusterName"]]
    if len(peers) >= GROUPS_PER_CLUSTER:
        raise Refusal(f"ResourceLimitExceededException: {GROUPS_PER_CLUSTER} node groups is the limit")
    _node_group_rule(inputs, records)


def _check_template(inputs: dict[str, Any], records: Records) -> None:
    template = records.get(LAUNCH_TEMPLATE, str(value_at(inputs, "launchTemplate.id")))
    _check_capacity_block(inputs, template.inputs if template else {})
    if template is None:
        return
    if inputs.get("diskSize"):
        raise Refusal("InvalidParameterException: disk size belongs into the launch template")
    version = inputs["launchTemplate"]["version"]
    if version not in ("$Latest", "$Default") and int(version) > template.outputs["latestVersion"]:
        raise Refusal(f"InvalidLaunchTemplateId.VersionNotFound: {template.id} has no version {version}")
    group = value_at(template.inputs, "placement.groupName")
    families = {kind.split(".")[0] for kind in inputs.get("instanceTypes") or []}
    if group and (burstable := families & {"t2", "t3", "t3a", "t4g"}):
        raise Refusal(f"InvalidParameterCombination: {burstable} can't join placement group {group}")
    zones = {zone_of(subnet.inputs) for one in inputs["subnetIds"] if (subnet := records.get(SUBNET, one))}
    if group and len(zones) > 1 and records.get(PLACEMENT_GROUP, group):
        raise Refusal(f"InvalidParameterValue: cluster placement group {group} can't span {sorted(zones)}")


def _check_capacity_block(inputs: dict[str, Any], template: dict[str, Any]) -> None:
    """What a group in a Capacity Block needs in its template, and others may not have there.

    EKS rejects a group of type CAPACITY_BLOCK without one of these values (EKS user guide, capacity-blocks-mng), a
    template with market options for any other group, and an instance type in both places (launch-templates).
    """
    if template.get("instanceType") and inputs.get("instanceTypes"):
        raise Refusal("InvalidParameterException: instance types are in the launch template and in the group")
    market = value_at(template, "instanceMarketOptions.marketType")
    if inputs.get("capacityType") != "CAPACITY_BLOCK":
        if market:
            raise Refusal("InvalidParameterException: remove InstanceMarketOptions from the launch template")
        return
    target = value_at(template, "capacityReservationSpecification.capacityReservationTarget.capacityReservationId")
    if market != "capacity-block" or not target or not template.get("instanceType"):
        raise Refusal("InvalidParameterException: CAPACITY_BLOCK needs a template with market, reservation and type")
    if value_at(template, "placement.groupName"):
        raise Refusal("InvalidParameterCombination: the reservation is in no placement group")


def _check_nodes_can_join(cluster: str, inputs: dict[str, Any], records: Records) -> None:
    """Machines that start now have to be had, and to find image registry, API and network plug-in."""
    if types := records.without_capacity & set(inputs.get("instanceTypes") or []):
        raise Refusal(f"InsufficientInstanceCapacity: no {', '.join(sorted(types))} in this zone now")
    missing = [what for what in _ADDONS_FOR_NODES if records.get(ADDON, f"{cluster}:{what}") is None]
    policies = policies_of(inputs["nodeRoleArn"].rsplit("/", 1)[-1], records)
    missing += [policy for policy in _NODE_POLICIES if policy not in policies]
    missing += [] if policies & set(_IMAGE_POLICIES) else [_IMAGE_POLICIES[0]]
    missing += [f"a way out of {subnet}" for subnet in inputs["subnetIds"] if internet_route(subnet, records) is None]
    missing += _interfaces_without(inputs, records)
    if missing:
        raise Refusal(f"NodeCreationFailure: instances failed to join the cluster, without {', '.join(missing)}")


def _interfaces_without(inputs: dict[str, Any], records: Records) -> list[str]:
    """What the interfaces of machines that start now lack: addresses in their subnets, or a public one.

    An efa-only interface takes no address (EC2 user guide, create-efa), and EC2 gives public addresses to machines with
    a single interface only (EC2 user guide, using-instance-addressing).
    """
    template = records.get(LAUNCH_TEMPLATE, str(value_at(inputs, "launchTemplate.id")))
    interfaces = (template.inputs.get("networkInterfaces") if template else None) or [{}]
    subnets = [subnet for each in inputs["subnetIds"] if (subnet := records.get(SUBNET, each))]
    free = sum(IPv4Network(subnet.inputs["cidrBlock"]).num_addresses - 5 for subnet in subnets)
    needed = inputs["scalingConfig"]["desiredSize"] * sum(
        each.get("interfaceType") != "efa-only" for each in interfaces
    )
    if needed > free:
        raise Refusal(f"InsufficientFreeAddressesInSubnet: {needed} addresses, {free} are free")
    public = [subnet.id for subnet in subnets if subnet.inputs.get("mapPublicIpOnLaunch")]
    return [f"a public address in {each}" for each in public if len(interfaces) > 1]


def _node_group_answers(inputs: dict[str, Any], identity: str, records: Records) -> dict[str, Any]:
    name = f"eks-{inputs['nodeGroupName']}-{records.new_hex(identity, 32)}"
    versions = eks_versions.new_node_group(inputs, records)
    return {"resources": [{"autoscalingGroups": [{"name": name}]}], "status": "ACTIVE", **versions}


def _addon_rule(inputs: dict[str, Any], records: Records) -> None:
    if (values := inputs.get("configurationValues")) and not isinstance(json.loads(values), dict):
        raise Refusal(f"InvalidParameterException: configuration values are an object, not {values}")
    if inputs["addonName"] in _ADDONS_WITH_PODS and not nodes_of(inputs["clusterName"], records):
        raise Refusal(f"addon {inputs['addonName']} stays DEGRADED: no node in {inputs['clusterName']} takes its pods")


def _tag_rule(inputs: dict[str, Any], records: Records) -> None:
    owner = records.owner_of(inputs["autoscalingGroupName"])
    if owner is None or owner.token != NODE_GROUP:
        raise Refusal(f"ValidationError: no Auto Scaling group {inputs['autoscalingGroupName']!r}")


def _attached_rule(cluster: Record, records: Records) -> None:
    """EKS refuses to delete a cluster with node groups (EKS API Reference, DeleteCluster)."""
    if any(user.token == NODE_GROUP for user in records.users_of(cluster)):
        head = f"deleting EKS Cluster ({cluster.id}): operation error EKS: DeleteCluster, https response error "
        raise Refusal(
            f"{head}StatusCode: 409, RequestID: 6bd3b1c6, ResourceInUseException: Cluster has nodegroups attached"
        )


def _control_planes() -> Iterator[tuple[str, Kind]]:
    yield (
        CLUSTER,
        Kind(
            "{name}",
            "arn:aws:eks:{region}:{account}:cluster/{name}",
            name=Name("name", 100, pattern=r"[A-Za-z0-9][A-Za-z0-9_-]*"),
            # ForceNew in the schema of internal/service/eks/cluster.go, terraform-provider-aws.
            replaces=(
                *("name", "roleArn", "bootstrapSelfManagedAddons"),
                "accessConfig.bootstrapClusterCreatorAdminPermissions",
            ),
            # AWS adds encryption (AssociateEncryptionConfig) and never takes it away: "You cannot disable envelope
            # encryption after enabling it" (CustomizeDiff in internal/service/eks/cluster.go, terraform-provider-aws).
            replaced_without=("encryptionConfig",),
            delete_rule=_attached_rule,
            refers={
                "roleArn": (Target(ROLE, "arn"),),
                "vpcConfig.subnetIds[]": (Target(SUBNET),),
                "vpcConfig.securityGroupIds[]": SECURITY_GROUPS,
                "encryptionConfig.provider.keyArn": (Target(KEY, "arn"),),
            },
            answers=_cluster_answers,
            unknown=("vpcConfig", "endpoint", "certificateAuthority", "certificateAuthorities"),
            computed=("version",),
            revised=eks_versions.changed_cluster,
            create_rule=_cluster_rule,
        ),
    )


def _node_groups() -> Iterator[tuple[str, Kind]]:
    yield (
        NODE_GROUP,
        Kind(
            "{clusterName}:{nodeGroupName}",
            "arn:aws:eks:{region}:{account}:nodegroup/{clusterName}/{nodeGroupName}/{hex}",
            name=Name("nodeGroupName", 63, pattern=r"[A-Za-z0-9][A-Za-z0-9_-]*"),
            replaces=_FIXED_OF_NODE_GROUPS,
            refers={
                **_OF_CLUSTER,
                "nodeRoleArn": (Target(ROLE, "arn"),),
                "subnetIds[]": (Target(SUBNET),),
                "launchTemplate.id": (Target(LAUNCH_TEMPLATE),),
            },
            answers=_node_group_answers,
            unknown=("resources",),
            computed=("version", "releaseVersion"),
            revised=eks_versions.changed_node_group,
            create_rule=_new_node_group_rule,
            change_rule=_node_group_rule,
        ),
    )


def _addons() -> Iterator[tuple[str, Kind]]:
    yield (
        ADDON,
        Kind(
            "{clusterName}:{addonName}",
            "arn:aws:eks:{region}:{account}:addon/{clusterName}/{addonName}/{hex}",
            replaces=("clusterName", "addonName"),
            refers={**_OF_CLUSTER, "podIdentityAssociations[].roleArn": (Target(ROLE, "arn"),)},
            create_rule=_addon_rule,
            answers=lambda inputs, identity, records: eks_versions.addon(inputs, None, records),
            computed=("addonVersion",),
            revised=lambda old, inputs, records: eks_versions.addon(inputs, old.outputs["addonVersion"], records),
        ),
    )


def _kinds() -> Iterator[tuple[str, Kind]]:
    yield (
        "aws:eks/podIdentityAssociation:PodIdentityAssociation",
        Kind(
            "{clusterName},a-{hex}",
            replaces=("clusterName", "namespace", "serviceAccount"),
            refers={**_OF_CLUSTER, "roleArn": (Target(ROLE, "arn"),)},
        ),
    )
    yield (
        ACCESS_ENTRY,
        Kind("{clusterName}:{principalArn}", replaces=("clusterName", "principalArn", "type"), refers=_OF_CLUSTER),
    )
    yield (
        "aws:eks/accessPolicyAssociation:AccessPolicyAssociation",
        Kind(
            "{clusterName}#{principalArn}#{policyArn}",
            replaces=("clusterName", "principalArn", "policyArn", "accessScope"),
            refers={**_OF_CLUSTER, "principalArn": (Target(ACCESS_ENTRY, "principalArn"),)},
        ),
    )
    yield (
        SCALING_TAG,
        Kind(
            "{autoscalingGroupName},{tag[key]}",
            replaces=("autoscalingGroupName", "tag.key"),
            create_rule=_tag_rule,
        ),
    )


def kinds() -> Iterator[tuple[str, Kind]]:
    """Every type of EKS that the stand-in has."""
    yield from _control_planes()
    yield from _node_groups()
    yield from _addons()
    yield from _kinds()
