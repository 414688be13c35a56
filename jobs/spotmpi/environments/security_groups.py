"""Security groups that EKS leaves behind: interfaces that leaked keep the cluster's own group, and that the network.

EKS makes the group, so no Pulumi state has it, and its deletion of a cluster does not wait for one that is in use
(aws-k8s-tester#416).
"""

from __future__ import annotations

from spotmpi.aws.account import Aws
from spotmpi.aws.errors import CallFailed
from spotmpi.aws.scaling import CLUSTER_TAG
from spotmpi.environments.inventory import Trace, networks_of

_IN_USE, _GONE = "DependencyViolation", "InvalidGroup.NotFound"


def sweep_security_groups(aws: Aws, trace: Trace) -> list[str]:
    """Delete the groups that EKS made for the environment's cluster and nothing uses any more; gives their ids."""
    networks = networks_of(aws, trace)
    if not networks:
        return []
    ours = [
        {"Name": "vpc-id", "Values": networks},
        {"Name": f"tag:aws:{CLUSTER_TAG}", "Values": [trace.name]},
    ]
    swept = []
    for each in aws.pages("ec2", trace.region, "describe_security_groups", "SecurityGroups", Filters=ours):
        try:
            aws.call("ec2", trace.region, "delete_security_group", GroupId=each["GroupId"])
        except CallFailed as error:
            if error.code not in (_IN_USE, _GONE):
                raise
        else:
            swept.append(each["GroupId"])
    return swept
