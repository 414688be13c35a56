"""Auto Scaling groups of node groups, read and changed during an update, only by steps that need them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import boto3
import botocore.exceptions
import pulumi

_FAILURES = (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError)


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

    def update(self, name: str, sizes: Mapping[str, int]) -> None:
        """Set sizes of the Auto Scaling group of that name."""
        try:
            self._client().update_auto_scaling_group(AutoScalingGroupName=name, **sizes)
        except _FAILURES as error:
            raise pulumi.RunError(f"can't set the sizes of group {self.group}: {error}") from error

    def _client(self) -> Any:
        return boto3.client("autoscaling", region_name=self.region)
