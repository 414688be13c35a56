"""What is left of an environment: interfaces that hold its subnets, and everything that still bills."""

from collections.abc import Iterator
from typing import Any

import boto3

from infra.ci.stack_file import StackFile

_TAG = "spotmpi:environment"
# The CNI tags every interface that it makes with the machine that it made it for.
_CNI_TAG = "node.k8s.amazonaws.com/instance_id"


def sweep_interfaces(file: StackFile, client: Any = None) -> list[str]:
    """Delete the interfaces that the CNI left unattached in the environment's VPC; gives their ids."""
    ec2 = client or boto3.client("ec2", region_name=file.region)
    vpcs = ec2.describe_vpcs(Filters=[{"Name": f"tag:{_TAG}", "Values": [file.environment]}])["Vpcs"]
    if not vpcs:
        return []
    filters = [
        {"Name": "vpc-id", "Values": [vpc["VpcId"] for vpc in vpcs]},
        {"Name": "status", "Values": ["available"]},
        {"Name": "tag-key", "Values": [_CNI_TAG]},
    ]
    swept = []
    for page in ec2.get_paginator("describe_network_interfaces").paginate(Filters=filters):
        for interface in page["NetworkInterfaces"]:
            ec2.delete_network_interface(NetworkInterfaceId=interface["NetworkInterfaceId"])
            swept.append(interface["NetworkInterfaceId"])
    return swept


def still_there(file: StackFile, client: Any = None) -> list[str]:
    """The ARNs of everything that carries the environment's tag."""
    tagging = client or boto3.client("resourcegroupstaggingapi", region_name=file.region)
    return sorted(_tagged(tagging, file.environment))


def _tagged(tagging: Any, environment: str) -> Iterator[str]:
    filters = [{"Key": _TAG, "Values": [environment]}]
    for page in tagging.get_paginator("get_resources").paginate(TagFilters=filters):
        yield from (resource["ResourceARN"] for resource in page["ResourceTagMappingList"])
