"""The VPC: a subnet for the nodes of each zone, one in the second zone of EKS, and routes to the internet and S3."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
from pulumi_aws import ec2

from infra import names
from infra.addresses import SubnetPlan
from infra.fixed_settings import as_tag, refuse_changes


@dataclass(frozen=True)
class NetworkArgs:
    """The inputs of a network; `private` puts nodes behind one NAT gateway, `fixed` are settings that it keeps.

    The first of the `zones` has the NAT gateway.
    """

    vpc_cidr: str
    subnets: SubnetPlan
    region: str
    zones: Sequence[str]
    second_zone: str
    private: bool
    fixed: Mapping[str, str]
    tags: Mapping[str, str]


class Network(pulumi.ComponentResource):
    """A VPC with closed default security group; provides `vpc_id`, `node_subnet_ids` by zone and EKS's `subnet_ids`."""

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None):
        super().__init__("spotmpi:network:Network", name, None, opts)
        self._name, self._args, self._child = name, args, pulumi.ResourceOptions(parent=self)
        self._routes: list[pulumi.Resource] = []
        # A new range would be a new network for everything: the change of the tag is refused instead.
        fixed = pulumi.ResourceOptions(ignore_changes=["cidrBlock"], hooks=refuse_changes(f"{name}-network"))
        vpc = ec2.Vpc(
            name,
            cidr_block=args.vpc_cidr,
            enable_dns_support=True,
            enable_dns_hostnames=True,
            tags={**self._tags(name), names.TAG_FIXED: as_tag(args.fixed)},
            opts=pulumi.ResourceOptions.merge(self._child, fixed),
        )
        self.vpc_id = vpc.id
        # Without rules of ours the default group would allow traffic among its members, and anything could join it.
        ec2.DefaultSecurityGroup(
            name, vpc_id=vpc.id, ingress=[], egress=[], tags=self._tags(f"{name}-closed"), opts=self._child
        )
        gateway = ec2.InternetGateway(name, vpc_id=vpc.id, tags=self._tags(name), opts=self._child)
        public = self._table("public")
        self._route("public", public, gateway_id=gateway.id)
        tables = [public]
        if args.private:
            nodes = self._table("private")
            tables.append(nodes)
            self._route("private", nodes, nat_gateway_id=self._nat(public, gateway).id)
        else:
            nodes = public
        self._s3(tables)
        subnets = {
            args.zones[0]: self._subnet("nodes", args.zones[0], str(args.subnets.nodes), nodes),
            args.second_zone: self._subnet("second", args.second_zone, str(args.subnets.second), nodes),
        }
        self.subnet_ids: list[pulumi.Output[str]] = [subnet.id for subnet in subnets.values()]
        for zone, cidr in args.subnets.of_zones(args.zones, args.second_zone).items():
            if zone not in subnets:
                subnets[zone] = self._subnet(f"nodes-{zone[-1]}", zone, str(cidr), nodes)
        self.node_subnet_ids = {zone: self._reachable(subnets[zone]) for zone in args.zones}
        outputs = {"vpc_id": self.vpc_id, "node_subnet_ids": self.node_subnet_ids, "subnet_ids": self.subnet_ids}
        self.register_outputs(outputs)

    def _reachable(self, subnet: ec2.Subnet) -> pulumi.Output[str]:
        """The subnet's id, dependent on the routes: nodes can't join before them, and must be deleted before them."""
        both = pulumi.Output.all(subnet.id, *[route.urn for route in self._routes])
        return both.apply(lambda values: str(values[0]))

    def _tags(self, name: str) -> dict[str, str]:
        return {**self._args.tags, "Name": name}

    def _table(self, kind: str) -> ec2.RouteTable:
        name = f"{self._name}-{kind}"
        return ec2.RouteTable(name, vpc_id=self.vpc_id, tags=self._tags(name), opts=self._child)

    def _route(
        self,
        kind: str,
        table: ec2.RouteTable,
        gateway_id: pulumi.Input[str] | None = None,
        nat_gateway_id: pulumi.Input[str] | None = None,
    ) -> None:
        route = ec2.Route(
            f"{self._name}-{kind}",
            route_table_id=table.id,
            destination_cidr_block="0.0.0.0/0",
            gateway_id=gateway_id,
            nat_gateway_id=nat_gateway_id,
            opts=self._child,
        )
        self._routes.append(route)

    def _subnet(self, kind: str, zone: str, cidr: str, table: ec2.RouteTable, public: bool | None = None) -> ec2.Subnet:
        name = f"{self._name}-{kind}"
        subnet = ec2.Subnet(
            name,
            vpc_id=self.vpc_id,
            availability_zone=zone,
            cidr_block=cidr,
            map_public_ip_on_launch=not self._args.private if public is None else public,
            tags=self._tags(name),
            opts=self._child,
        )
        association = ec2.RouteTableAssociation(name, subnet_id=subnet.id, route_table_id=table.id, opts=self._child)
        self._routes.append(association)
        return subnet

    def _nat(self, public: ec2.RouteTable, gateway: ec2.InternetGateway) -> ec2.NatGateway:
        """One NAT gateway in the first zone, so that no traffic of its nodes is billed for crossing zones."""
        name = f"{self._name}-nat"
        subnet = self._subnet("gateway", self._args.zones[0], str(self._args.subnets.gateway), public, public=False)
        address = ec2.Eip(name, domain="vpc", tags=self._tags(name), opts=self._child)
        after = pulumi.ResourceOptions(parent=self, depends_on=[gateway])
        return ec2.NatGateway(name, subnet_id=subnet.id, allocation_id=address.id, tags=self._tags(name), opts=after)

    def _s3(self, tables: list[ec2.RouteTable]) -> None:
        """Free access to S3, which serves image layers, without NAT or internet."""
        name = f"{self._name}-s3"
        ec2.VpcEndpoint(
            name,
            vpc_id=self.vpc_id,
            service_name=f"com.amazonaws.{self._args.region}.s3",
            vpc_endpoint_type="Gateway",
            route_table_ids=[table.id for table in tables],
            tags=self._tags(name),
            opts=self._child,
        )
