"""The network: what each kind of stack has, what it must not have, and how addresses are shared out."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from infra import addresses
from tests.infra.mock_engine import run


@pytest.mark.parametrize("prefix", range(16, 25))
def test_the_subnets_are_inside_the_vpc_and_do_not_overlap(prefix: int) -> None:
    vpc = IPv4Network(f"10.0.0.0/{prefix}")
    plan = addresses.plan(str(vpc))
    parts = [plan.nodes, plan.second, plan.gateway]
    assert all(part.subnet_of(vpc) and part.prefixlen <= 28 for part in parts)
    assert not any(one.overlaps(other) for one in parts for other in parts if one is not other)


def test_the_prefix_for_a_number_of_nodes_is_the_smallest_vpc_that_holds_them() -> None:
    assert addresses.nodes_that_fit(addresses.plan("10.0.0.0/16").nodes) == 3274
    prefixes = {1: 24, 10: 24, 11: 23, 100: 21, 512: 18, 3274: 16, 3275: None}
    assert {nodes: addresses.prefix_for(nodes, lambda parts: parts.nodes) for nodes in prefixes} == prefixes


def test_the_lab_has_no_nat_and_no_private_route() -> None:
    recording = run("lab")
    assert recording.of("NatGateway") == recording.of("Eip") == []
    assert [table.name for table in recording.of("RouteTable")] == ["spotmpi-lab-public"]
    assert all(subnet.inputs["mapPublicIpOnLaunch"] for subnet in recording.of("Subnet"))


def test_private_nodes_get_one_nat_in_their_own_zone_and_no_public_address() -> None:
    recording = run("g5")
    nat = recording.one("NatGateway")
    assert nat.inputs["subnetId"] == "spotmpi-g5-gateway-id"
    assert recording.one("Subnet", "spotmpi-g5-gateway").inputs["availabilityZone"] == "us-east-1a"
    assert not any(subnet.inputs["mapPublicIpOnLaunch"] for subnet in recording.of("Subnet"))
    route = recording.one("Route", "spotmpi-g5-private").inputs
    assert route["natGatewayId"] == f"{nat.name}-id" and "gatewayId" not in route


def test_eks_gets_two_zones_with_the_gpus_first() -> None:
    cluster = run("lab").one("eks:index:Cluster")
    assert cluster.inputs["subnetIds"] == ["spotmpi-lab-nodes-id", "spotmpi-lab-second-id"]
    zones = {subnet.name: subnet.inputs["availabilityZone"] for subnet in run("lab").of("Subnet")}
    assert zones == {"spotmpi-lab-nodes": "us-east-1a", "spotmpi-lab-second": "us-east-1b"}


@pytest.mark.parametrize("stack", ["lab", "g5"])
def test_s3_is_reached_without_nat_from_every_route_table(stack: str) -> None:
    endpoint = run(stack).one("VpcEndpoint").inputs
    assert (endpoint["serviceName"], endpoint["vpcEndpointType"]) == ("com.amazonaws.us-east-1.s3", "Gateway")
    assert len(endpoint["routeTableIds"]) == len(run(stack).of("RouteTable"))


def test_the_default_security_group_allows_no_traffic_and_no_other_has_inline_rules() -> None:
    default = run("g5").one("DefaultSecurityGroup").inputs
    assert (default["ingress"], default["egress"]) == ([], [])
    groups = run("g5").of("SecurityGroup")
    assert groups and not any(group.inputs.get("ingress") or group.inputs.get("egress") for group in groups)


def test_nodes_are_created_after_their_routes_and_deleted_before_them() -> None:
    routes = {resource.urn for kind in ("Route", "RouteTableAssociation") for resource in run("g5").of(kind)}
    assert routes
    assert all(routes <= group.depends_on for group in run("g5").node_groups.values())


def test_a_bigger_environment_keeps_its_subnets() -> None:
    group = {"name": "g4dn", "type": "g4dn.xlarge", "placement_group": False}
    small, big = (run("lab", groups=[{**group, "max": size}]).of("Subnet") for size in (2, 512))
    assert [subnet.inputs for subnet in small] == [subnet.inputs for subnet in big]
