"""Auto Scaling groups of node groups, read and changed during an update, only by steps that need them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import boto3
import botocore.exceptions
import pulumi
from pulumi_aws import eks

_FAILURES = (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError)


def scaling_group_name(resources: Sequence[eks.outputs.NodeGroupResource]) -> str:
    """The name of a node group's Auto Scaling group, by its output `resources`."""
    return str((resources[0].autoscaling_groups or [])[0].name)


@dataclass(frozen=True)
class ScalingGroup:
    """The Auto Scaling group behind the node group *group* in a region."""

    region: str
    group: str

    def describe(self, name: str) -> dict[str, Any]:
        """The Auto Scaling group of that name as AWS describes it; RunError if it does not exist."""
        try:
            groups = self._client().describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
        except _FAILURES as error:
            raise pulumi.RunError(f"can't read the size of group {self.group}: {error}") from error
        if not groups:
            remedy = "run `pulumi refresh`, then repeat the command"
            raise pulumi.RunError(f"AWS has no Auto Scaling group {name} for group {self.group}: {remedy}")
        return dict(groups[0])

    def running(self, cluster: str, node_group: str) -> int:
        """The running nodes of every node group that Pulumi has created in a cluster under this name."""
        own = re.compile(rf"eks-{re.escape(node_group)}-[0-9a-f]{{7}}-[0-9a-f]{{8}}.*")
        cluster_tag = [{"Name": "tag:eks:cluster-name", "Values": [cluster]}]
        try:
            pages = self._client().get_paginator("describe_auto_scaling_groups").paginate(Filters=cluster_tag)
            groups = [each for page in pages for each in page["AutoScalingGroups"]]
        except _FAILURES as error:
            raise pulumi.RunError(f"can't read the size of group {self.group}: {error}") from error
        return sum(each["DesiredCapacity"] for each in groups if own.fullmatch(each["AutoScalingGroupName"]))

    def update(self, name: str, sizes: Mapping[str, int]) -> None:
        """Set sizes of the Auto Scaling group of that name."""
        try:
            self._client().update_auto_scaling_group(AutoScalingGroupName=name, **sizes)
        except _FAILURES as error:
            raise pulumi.RunError(f"can't set the sizes of group {self.group}: {error}") from error

    def _client(self) -> Any:
        return boto3.client("autoscaling", region_name=self.region)
