"""A stand-in cloud that tests fill by asking its providers directly, without an engine."""

import json
from dataclasses import dataclass, field
from typing import Any

from tests.engine.providers.aws import Aws
from tests.engine.providers.aws_cluster import ADDON, ATTACHMENT, ROLE
from tests.engine.providers.aws_network import (
    ASSOCIATION,
    CLUSTER,
    GATEWAY,
    NODE_GROUP,
    ROUTE,
    ROUTE_TABLE,
    SUBNET,
    VPC,
)
from tests.engine.providers.cloud import Cloud, Provider, ResourceRequest
from tests.engine.providers.kubernetes import Kubernetes
from tests.engine.providers.records import Record, Refusal


def trust(service: str) -> str:
    """The policy of a role that a service takes."""
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


@dataclass
class CloudBuilder:
    """A cloud that tests fill by asking its providers as an engine would."""

    cloud: Cloud = field(default_factory=Cloud)

    def __post_init__(self) -> None:
        self.aws, self.kubernetes = Aws(self.cloud), Kubernetes(self.cloud)

    def make(self, token: str, name: str = "it", /, **inputs: Any) -> Record:
        """Make one resource as an engine would: checked first, then created; Refused if either says no."""
        provider: Provider = self.kubernetes if token.startswith("kubernetes:") else self.aws
        resource = ResourceRequest(token, name, f"urn::{token}::{name}")
        checked, failures = provider.check(resource, {}, inputs, b"\x12\x34\x56\x78")
        if failures:
            raise Refusal("; ".join(failures))
        return provider.create(resource, checked)

    def delete(self, record: Record) -> None:
        """Take one AWS resource away."""
        self.aws.delete(ResourceRequest(record.token, "it", record.urn), record.id)

    def network(self) -> list[str]:
        """Make a network with subnets in two zones; gives their ids."""
        vpc = self.make(VPC, cidrBlock="10.0.0.0/16").id
        zones = (("10.0.0.0/24", "us-east-1a"), ("10.0.1.0/24", "us-east-1b"))
        return [
            self.make(SUBNET, vpcId=vpc, cidrBlock=cidr, availabilityZone=zone, mapPublicIpOnLaunch=True).id
            for cidr, zone in zones
        ]

    def internet_route(self, subnet: str) -> tuple[Record, Record]:
        """Lead a subnet to the internet; gives gateway and route."""
        record = self.cloud.records.get(SUBNET, subnet)
        assert record
        gateway = self.make(GATEWAY, vpcId=record.inputs["vpcId"])
        table = self.make(ROUTE_TABLE, vpcId=record.inputs["vpcId"]).id
        self.make(ASSOCIATION, subnetId=subnet, routeTableId=table)
        route = self.make(ROUTE, routeTableId=table, destinationCidrBlock="0.0.0.0/0", gatewayId=gateway.id)
        return gateway, route

    def role(self, name: str, service: str, *policies: str) -> str:
        """Make a role with managed policies; gives its ARN."""
        role = self.make(ROLE, name, name=name, assumeRolePolicy=trust(service))
        for policy in policies:
            self.make(ATTACHMENT, role=name, policyArn=f"arn:aws:iam::aws:policy/{policy}")
        return str(role.outputs["arn"])

    def cluster(self, subnets: list[str], **more: Any) -> Record:
        """Make the control plane `lab`."""
        role = self.role("control", "eks.amazonaws.com", "AmazonEKSClusterPolicy")
        return self.make(CLUSTER, name="lab", roleArn=role, vpcConfig={"subnetIds": subnets}, **more)

    def node_group_requirements(self) -> list[str]:
        """Everything that a node group needs; gives its subnets."""
        subnets = self.network()
        self.internet_route(subnets[0])
        self.cluster(subnets)
        policies = ("AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy", "AmazonEC2ContainerRegistryReadOnly")
        self.role("nodes", "ec2.amazonaws.com", *policies)
        for addon in ("vpc-cni", "kube-proxy"):
            self.make(ADDON, clusterName="lab", addonName=addon)
        return subnets

    def nodes(self, subnets: list[str], name: str = "work", desired: int = 1, **more: Any) -> Record:
        """Make a node group of `lab` in the first subnet."""
        size = {"minSize": 0, "desiredSize": desired, "maxSize": 2, **more.pop("size", {})}
        inputs = {"nodeRoleArn": "arn:aws:iam::123456789012:role/nodes", "scalingConfig": size, **more}
        return self.make(NODE_GROUP, name, clusterName="lab", nodeGroupName=name, subnetIds=subnets[:1], **inputs)

    def configure_kubernetes(self) -> None:
        """Point the Kubernetes provider at the only cluster."""
        (cluster,) = self.cloud.records.of(CLUSTER)
        server = {"clusters": [{"cluster": {"server": cluster.outputs["endpoint"]}}]}
        self.kubernetes.configure({"kubeconfig": json.dumps(server)})
