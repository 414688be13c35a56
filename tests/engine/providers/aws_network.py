"""EC2 networking as AWS answers it: VPC, subnets, ways out, security groups, launch templates, placement groups."""

import re
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any

from tests.engine.providers.kinds import Kind, Name, Target
from tests.engine.providers.records import Record, Records, Refusal, value_at
from tests.engine.providers.zones import zone_id

VPC = "aws:ec2/vpc:Vpc"
SUBNET = "aws:ec2/subnet:Subnet"
ROUTE_TABLE = "aws:ec2/routeTable:RouteTable"
ROUTE = "aws:ec2/route:Route"
ASSOCIATION = "aws:ec2/routeTableAssociation:RouteTableAssociation"
GATEWAY = "aws:ec2/internetGateway:InternetGateway"
NAT = "aws:ec2/natGateway:NatGateway"
ENDPOINT = "aws:ec2/vpcEndpoint:VpcEndpoint"
ADDRESS = "aws:ec2/eip:Eip"
SECURITY_GROUP = "aws:ec2/securityGroup:SecurityGroup"
PLACEMENT_GROUP = "aws:ec2/placementGroup:PlacementGroup"
LAUNCH_TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
CLUSTER = "aws:eks/cluster:Cluster"
NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
# A cluster hands out the security group that its nodes carry.
SECURITY_GROUPS = (Target(SECURITY_GROUP), Target(CLUSTER, "vpcConfig.clusterSecurityGroupId"))
_IN_VPC = {"vpcId": (Target(VPC),)}
# What descriptions of security groups and of their rules may contain; no apostrophe (terraform-provider-aws#18874).
_DESCRIPTION = re.compile(r"[A-Za-z0-9 ._\-:/()#,@\[\]+=&;{}!$*]{0,255}")


def _vpc_rule(inputs: dict[str, Any], records: Records) -> None:
    if not 16 <= ip_network(inputs["cidrBlock"]).prefixlen <= 28:
        raise Refusal(f"InvalidVpc.Range: the CIDR {inputs['cidrBlock']!r} is invalid")


def _subnet_rule(inputs: dict[str, Any], records: Records) -> None:
    own, vpc = ip_network(inputs["cidrBlock"]), records.get(VPC, inputs["vpcId"])
    assert vpc
    if not own.subnet_of(ip_network(vpc.inputs["cidrBlock"])):  # type: ignore[arg-type]
        raise Refusal(f"InvalidSubnet.Range: {own} is outside the VPC's {vpc.inputs['cidrBlock']}")
    for other in records.of(SUBNET):
        if other.inputs["vpcId"] == vpc.id and own.overlaps(ip_network(other.inputs["cidrBlock"])):
            raise Refusal(f"InvalidSubnet.Conflict: {own} conflicts with {other.id}")
    zone_id(records.region, zone_of(inputs))


def zone_of(subnet: dict[str, Any]) -> str:
    """The zone that a subnet's inputs ask for."""
    return str(subnet.get("availabilityZone"))


def internet_route(subnet_id: str, records: Records) -> Record | None:
    """The internet or NAT gateway that a subnet's default route leads to, if machines there can use it."""
    subnet = records.get(SUBNET, subnet_id)
    tables = [a.inputs["routeTableId"] for a in records.of(ASSOCIATION) if a.inputs["subnetId"] == subnet_id]
    for route in records.of(ROUTE):
        if route.inputs["routeTableId"] in tables and route.inputs.get("destinationCidrBlock") == "0.0.0.0/0":
            if nat := route.inputs.get("natGatewayId"):
                return records.get(NAT, nat)
            if subnet and subnet.inputs.get("mapPublicIpOnLaunch"):
                return records.get(GATEWAY, route.inputs.get("gatewayId", ""))
    return None


def _nat_rule(inputs: dict[str, Any], records: Records) -> None:
    subnet = records.get(SUBNET, inputs["subnetId"])
    assert subnet
    if not any(gateway.inputs.get("vpcId") == subnet.inputs["vpcId"] for gateway in records.of(GATEWAY)):
        raise Refusal(f"Gateway.NotAttached: the network of {subnet.id} has no internet gateway")


def _detach_rule(gateway: Record, records: Records) -> None:
    """AWS keeps an internet gateway attached while machines or NAT gateways use public addresses behind it."""
    users = [nat.key for nat in records.of(NAT)]
    for group in records.of(NODE_GROUP):
        ways = [internet_route(subnet, records) for subnet in group.inputs["subnetIds"]]
        if group.inputs["scalingConfig"]["desiredSize"] and any(way and way.id == gateway.id for way in ways):
            users.append(group.key)
    if users:
        raise Refusal(f"DependencyViolation: {gateway.id}'s network has mapped public addresses: {', '.join(users)}")


def _route_rule(inputs: dict[str, Any], records: Records) -> None:
    targets = [key for key in ("gatewayId", "natGatewayId", "vpcEndpointId", "networkInterfaceId") if inputs.get(key)]
    if len(targets) != 1:
        raise Refusal(f"InvalidParameterCombination: a route has one target, not {targets}")


def _description_rule(inputs: dict[str, Any], records: Records) -> None:
    if not _DESCRIPTION.fullmatch(inputs.get("description") or ""):
        raise Refusal(f"InvalidParameterValue: invalid security group or rule description {inputs['description']!r}")


def _ports_rule(inputs: dict[str, Any], records: Records) -> None:
    _description_rule(inputs, records)
    sources = [key for key in ("cidrIpv4", "cidrIpv6", "prefixListId", "referencedSecurityGroupId") if inputs.get(key)]
    if len(sources) != 1:
        raise Refusal(f"InvalidParameterCombination: a rule has one source or destination, not {sources}")
    if inputs["ipProtocol"] in ("tcp", "udp") and (inputs.get("fromPort") is None or inputs.get("toPort") is None):
        raise Refusal("InvalidParameterValue: tcp and udp rules have fromPort and toPort")


def _template_rule(inputs: dict[str, Any], records: Records) -> None:
    places = set()
    for interface in inputs.get("networkInterfaces") or []:
        if interface.get("deviceIndex") is None:
            raise Refusal("InvalidParameterValue: a network interface has a device index")
        place = (interface.get("networkCardIndex", 0), interface["deviceIndex"])
        # EC2 user guide, efa-acc-inst-types: "You can't use an EFA-only network interface as the primary".
        if place == (0, 0) and interface.get("interfaceType") == "efa-only":
            raise Refusal("InvalidParameterCombination: the primary network interface can't be efa-only")
        if place in places:
            raise Refusal(f"InvalidParameterValue: two network interfaces at card and device {place}")
        places.add(place)
    if inputs.get("networkInterfaces") and inputs.get("vpcSecurityGroupIds"):
        raise Refusal("InvalidParameterCombination: security groups belong to the network interfaces")


def _vpc_answers(inputs: dict[str, Any], identity: str, records: Records) -> dict[str, Any]:
    answers = {key: f"{prefix}-{records.new_hex(identity)}" for key, prefix in _VPC_DEFAULTS.items()}
    return {**answers, "ownerId": "123456789012", "enableDnsSupport": inputs.get("enableDnsSupport", True)}


_VPC_DEFAULTS = {
    "defaultSecurityGroupId": "sg",
    "defaultRouteTableId": "rtb",
    "mainRouteTableId": "rtb",
    "defaultNetworkAclId": "acl",
}


def _ec2(prefix: str, kind: str, **more: Any) -> Kind:
    arn = f"arn:aws:ec2:{{region}}:{{account}}:{kind}/{{id}}"
    return Kind(identity=f"{prefix}-{{hex}}", arn=arn, **more)


def _rule_kind() -> Kind:
    refers = {"securityGroupId": SECURITY_GROUPS, "referencedSecurityGroupId": SECURITY_GROUPS}
    answers = lambda inputs, identity, records: {"securityGroupRuleId": identity}  # noqa: E731
    return _ec2(
        "sgr",
        "security-group-rule",
        replaces=("securityGroupId",),
        refers=refers,
        answers=answers,
        unknown=("securityGroupRuleId",),
        create_rule=_ports_rule,
    )


def _places() -> Iterator[tuple[str, Kind]]:
    yield (
        VPC,
        _ec2(
            "vpc",
            "vpc",
            replaces=("cidrBlock",),
            answers=_vpc_answers,
            unknown=tuple(_VPC_DEFAULTS),
            create_rule=_vpc_rule,
        ),
    )
    yield (
        SUBNET,
        _ec2(
            "subnet",
            "subnet",
            replaces=("vpcId", "cidrBlock", "availabilityZone"),
            refers=_IN_VPC,
            create_rule=_subnet_rule,
        ),
    )


def _ways() -> Iterator[tuple[str, Kind]]:
    yield ROUTE_TABLE, _ec2("rtb", "route-table", replaces=("vpcId",), refers=_IN_VPC)
    yield (
        ROUTE,
        Kind(
            "r-{hex}",
            replaces=("routeTableId", "destinationCidrBlock"),
            refers={
                "routeTableId": (Target(ROUTE_TABLE),),
                "gatewayId": (Target(GATEWAY),),
                "natGatewayId": (Target(NAT),),
            },
            create_rule=_route_rule,
        ),
    )
    yield (
        ASSOCIATION,
        Kind(
            "rtbassoc-{hex}",
            replaces=("subnetId",),
            refers={"subnetId": (Target(SUBNET),), "routeTableId": (Target(ROUTE_TABLE),)},
        ),
    )


def _gateways() -> Iterator[tuple[str, Kind]]:
    yield GATEWAY, _ec2("igw", "internet-gateway", refers=_IN_VPC, delete_rule=_detach_rule)
    yield (
        ADDRESS,
        _ec2(
            "eipalloc",
            "elastic-ip",
            answers=lambda inputs, identity, records: {"allocationId": identity, "publicIp": "198.51.100.7"},
            unknown=("allocationId", "publicIp"),
        ),
    )
    yield (
        NAT,
        _ec2(
            "nat",
            "natgateway",
            replaces=("subnetId", "allocationId"),
            refers={"subnetId": (Target(SUBNET),), "allocationId": (Target(ADDRESS),)},
            create_rule=_nat_rule,
        ),
    )
    yield (
        ENDPOINT,
        _ec2(
            "vpce",
            "vpc-endpoint",
            replaces=("vpcId", "serviceName", "vpcEndpointType"),
            refers={**_IN_VPC, "routeTableIds[]": (Target(ROUTE_TABLE),)},
        ),
    )


def _groups() -> Iterator[tuple[str, Kind]]:
    yield (
        SECURITY_GROUP,
        _ec2(
            "sg",
            "security-group",
            name=Name("name", 255),
            replaces=("name", "vpcId", "description"),
            refers=_IN_VPC,
            create_rule=_description_rule,
        ),
    )
    yield (
        "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup",
        _ec2("sgdefault", "security-group", replaces=("vpcId",), refers=_IN_VPC),
    )
    for direction in ("Ingress", "Egress"):
        yield f"aws:vpc/securityGroup{direction}Rule:SecurityGroup{direction}Rule", _rule_kind()


def _machines() -> Iterator[tuple[str, Kind]]:
    yield (
        PLACEMENT_GROUP,
        Kind(
            "{name}",
            "arn:aws:ec2:{region}:{account}:placement-group/{name}",
            name=Name("name", 255),
            replaces=("name", "strategy"),
            answers=lambda inputs, identity, records: {"placementGroupId": f"pg-{records.new_hex(identity)}"},
            unknown=("placementGroupId",),
            delete_rule=_placement_rule,
        ),
    )
    yield (
        LAUNCH_TEMPLATE,
        _ec2(
            "lt",
            "launch-template",
            name=Name("name", 128, pattern=r"[A-Za-z0-9().\-/_]{3,}"),
            replaces=("name",),
            refers={
                "placement.groupName": (Target(PLACEMENT_GROUP, "name"),),
                "vpcSecurityGroupIds[]": SECURITY_GROUPS,
                "networkInterfaces[].securityGroups[]": SECURITY_GROUPS,
            },
            answers=lambda inputs, identity, records: {"latestVersion": 1, "defaultVersion": 1},
            unknown=("latestVersion", "defaultVersion"),
            counted="latestVersion",
            create_rule=_template_rule,
        ),
    )


def kinds() -> Iterator[tuple[str, Kind]]:
    """Every networking type that the stand-in has."""
    yield from _places()
    yield from _ways()
    yield from _gateways()
    yield from _groups()
    yield from _machines()


def _placement_rule(group: Record, records: Records) -> None:
    """AWS keeps a placement group while machines are in it."""
    for nodes in records.of(NODE_GROUP):
        template = records.get(LAUNCH_TEMPLATE, str(value_at(nodes.inputs, "launchTemplate.id")))
        if template and value_at(template.inputs, "placement.groupName") == group.id:
            raise Refusal(f"InvalidPlacementGroup.InUse: {group.id} is in use by {nodes.id}")
