"""EC2: machines, volumes and networks, with its filters, and its market."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partialmethod
from typing import Any

from spotmpi.environments.resource_kinds import CNI_INSTANCE
from tests.cloud.account.answers import Refusal, Request, Tags, matches, tag_list, tagged, tags_of
from tests.cloud.account.market import Ec2Market

# Operations that list one kind of resource, each with the key of its items, the key of an id and the prefix of ids.
_LISTS = {
    "describe_addresses": ("Addresses", "AllocationId", "eipalloc-"),
    "describe_internet_gateways": ("InternetGateways", "InternetGatewayId", "igw-"),
    "describe_launch_templates": ("LaunchTemplates", "LaunchTemplateId", "lt-"),
    "describe_placement_groups": ("PlacementGroups", "GroupName", "pg-"),
    "describe_route_tables": ("RouteTables", "RouteTableId", "rtb-"),
    "describe_security_group_rules": ("SecurityGroupRules", "SecurityGroupRuleId", "sgr-"),
    "describe_spot_instance_requests": ("SpotInstanceRequests", "SpotInstanceRequestId", "sir-"),
    "describe_subnets": ("Subnets", "SubnetId", "subnet-"),
}


def machine(state: str = "running", tags: Tags | None = None, **more: Any) -> dict[str, Any]:
    """An instance as DescribeInstances returns it, without its id."""
    return {"State": {"Name": state}, "Tags": tag_list(tags or {}), "InstanceType": "g4dn.xlarge", **more}


@dataclass
class Ec2(Ec2Market):
    """The resources of EC2 by id, with their tags."""

    machines: dict[str, dict[str, Any]] = field(default_factory=dict)
    spot_types: dict[str, list[str]] = field(default_factory=dict)  # by region, of further spot instances that run
    volumes: dict[str, Tags] = field(default_factory=dict)
    networks: dict[str, Tags] = field(default_factory=dict)
    interfaces: dict[str, tuple[str, str, Tags]] = field(default_factory=dict)  # network, status, tags
    security_groups: dict[str, tuple[str, Tags]] = field(default_factory=dict)  # network, tags
    gateways: dict[str, tuple[str, Tags]] = field(default_factory=dict)  # NAT gateways: state, tags
    others: dict[str, Tags] = field(default_factory=dict)  # subnets, templates and so on, by the prefix of their ids
    states: dict[str, str] = field(default_factory=dict)  # of VPC endpoints that are not available

    def _list(self, key: str, id: str, prefix: str, region: str, request: Request) -> Any:
        filters = [each for each in request.get("Filters", ()) if each["Name"].startswith("tag")]
        resources = {name: tags for name, tags in self.others.items() if name.startswith(prefix)}
        return {key: [tagged(id, name, tags) for name, tags in resources.items() if matches({}, tags, filters)]}

    def describe_instances(self, region: str, request: Request) -> Any:
        """Machines in any region; a terminated one stays for an hour in the original (boto3#1704)."""
        cpus = {"CoreCount": 2, "ThreadsPerCore": 2}
        spot = [
            machine(InstanceId=f"i-spot-{name}", InstanceType=name, CpuOptions=cpus, InstanceLifecycle="spot")
            for name in self.spot_types.get(region, [])
        ]
        machines = [*({"InstanceId": id, **each} for id, each in self.machines.items()), *spot]
        return {
            "Reservations": [
                {"Instances": [each]}
                for each in machines
                if matches(_machine_facts(each), tags_of(each), request["Filters"])
            ]
        }

    def describe_volumes(self, region: str, request: Request) -> Any:
        return {"Volumes": _listed("VolumeId", "volume-id", self.volumes, request)}

    def describe_vpcs(self, region: str, request: Request) -> Any:
        if missing := set(request.get("VpcIds", ())) - set(self.networks):
            raise Refusal("InvalidVpcID.NotFound", f"The vpc ID '{missing.pop()}' does not exist")
        return {"Vpcs": _listed("VpcId", "vpc-id", self.networks, request)}

    def describe_nat_gateways(self, region: str, request: Request) -> Any:
        gateways = [
            {**tagged("NatGatewayId", id, tags), "State": state}
            for id, (state, tags) in self.gateways.items()
            if matches({"state": state, "nat-gateway-id": id}, tags, request.get("Filter", ()))
        ]
        return {"NatGateways": _of_ids("NatGatewayId", gateways, request, "NatGatewayNotFound")}

    def delete_nat_gateway(self, region: str, request: Request) -> Any:
        """A deleted one is shown as `deleted` for about an hour (Amazon VPC User Guide, NAT gateway basics)."""
        id = request["NatGatewayId"]
        if id not in self.gateways:
            raise Refusal("NatGatewayNotFound", f"The Nat Gateway {id} was not found")
        self.gateways[id] = ("deleted", self.gateways[id][1])

    def describe_vpc_endpoints(self, region: str, request: Request) -> Any:
        endpoints = self._list("VpcEndpoints", "VpcEndpointId", "vpce-", region, request)["VpcEndpoints"]
        found = _of_ids("VpcEndpointId", endpoints, request, "InvalidVpcEndpointId.NotFound")
        return {
            "VpcEndpoints": [{**each, "State": self.states.get(each["VpcEndpointId"], "available")} for each in found]
        }

    def delete_vpc_endpoints(self, region: str, request: Request) -> Any:
        for id in request["VpcEndpointIds"]:
            self.others.pop(id, None)
        return {"Unsuccessful": []}

    def describe_network_interfaces(self, region: str, request: Request) -> Any:
        interfaces = [
            {"NetworkInterfaceId": id}
            for id, (network, status, tags) in self.interfaces.items()
            if matches({"vpc-id": network, "status": status, "network-interface-id": id}, tags, request["Filters"])
        ]
        return {"NetworkInterfaces": interfaces}

    def delete_network_interface(self, region: str, request: Request) -> Any:
        _, status, _ = self.interfaces.get(request["NetworkInterfaceId"], ("", "gone", {}))
        if status == "gone":
            raise Refusal("InvalidNetworkInterfaceID.NotFound")
        if status == "in-use":
            raise Refusal("InvalidParameterValue", "Network interface is currently in use.")  # cloud-nuke#431
        del self.interfaces[request["NetworkInterfaceId"]]

    def describe_security_groups(self, region: str, request: Request) -> Any:
        """Security groups of a network, and those of `others`."""
        groups = [
            tagged("GroupId", id, tags)
            for id, (network, tags) in self.security_groups.items()
            if matches({"vpc-id": network}, tags, request["Filters"])
        ]
        others = self._list("SecurityGroups", "GroupId", "sg-", region, request)
        return {"SecurityGroups": groups + others["SecurityGroups"]}

    def delete_security_group(self, region: str, request: Request) -> Any:
        """Interfaces of the CNI hold the cluster's own security group (aws-k8s-tester#416)."""
        network, _ = self.security_groups[request["GroupId"]]
        if any(place == network and CNI_INSTANCE in tags for place, _, tags in self.interfaces.values()):
            raise Refusal("DependencyViolation")
        del self.security_groups[request["GroupId"]]


def _of_ids(key: str, found: list[dict[str, Any]], request: Request, code: str) -> list[dict[str, Any]]:
    """Those whose ids a request lists, or all; Refusal for an id that does not exist."""
    wanted = request.get(f"{key}s", ())
    if missing := set(wanted) - {each[key] for each in found}:
        raise Refusal(code, f"{missing.pop()} does not exist")
    return [each for each in found if not wanted or each[key] in wanted]


for _operation, _kind in _LISTS.items():
    setattr(Ec2, _operation, partialmethod(Ec2._list, *_kind))


def _machine_facts(description: Mapping[str, Any]) -> dict[str, str]:
    return {
        "instance-id": description["InstanceId"],
        "instance-state-name": description["State"]["Name"],
        "instance-lifecycle": description.get("InstanceLifecycle", ""),
    }


def _listed(key: str, fact: str, resources: Mapping[str, Tags], request: Request) -> list[dict[str, Any]]:
    return [
        tagged(key, id, tags)
        for id, tags in resources.items()
        if matches({fact: id, "status": "in-use"}, tags, request.get("Filters", ()))
    ]
