"""A lab account for tests of the CI scripts: its stack file, and a network with interfaces."""

from __future__ import annotations

from typing import Any

import boto3

from infra.ci.stack_file import StackFile

ACCOUNT = "123456789012"
LAB = StackFile("lab", "us-east-1", ACCOUNT, "compute")
TAGS = [{"Key": "spotmpi:environment", "Value": "spotmpi-lab"}]
CNI = {"Key": "node.k8s.amazonaws.com/instance_id", "Value": "i-1"}


class Vpc:
    """A VPC in moto with one subnet, tagged as an environment's."""

    def __init__(self, environment: str):
        self._ec2 = boto3.client("ec2", region_name="us-east-1")
        self.id = self._ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        self._ec2.create_tags(Resources=[self.id], Tags=[{"Key": "spotmpi:environment", "Value": environment}])
        self._subnet = self._ec2.create_subnet(VpcId=self.id, CidrBlock="10.0.0.0/24")["Subnet"]["SubnetId"]

    def interface(self, tags: list[Any]) -> str:
        made = self._ec2.create_network_interface(
            SubnetId=self._subnet,
            TagSpecifications=[{"ResourceType": "network-interface", "Tags": tags}] if tags else [],
        )
        return str(made["NetworkInterface"]["NetworkInterfaceId"])

    def attach(self, interface: str) -> None:
        image = self._ec2.describe_images()["Images"][0]["ImageId"]
        machine = self._ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1, SubnetId=self._subnet)
        self._ec2.attach_network_interface(
            NetworkInterfaceId=interface, InstanceId=machine["Instances"][0]["InstanceId"], DeviceIndex=1
        )

    def interfaces(self) -> set[str]:
        found = self._ec2.describe_network_interfaces(Filters=[{"Name": "vpc-id", "Values": [self.id]}])
        return {interface["NetworkInterfaceId"] for interface in found["NetworkInterfaces"]}
