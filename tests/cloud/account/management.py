"""Services about other services' resources: Auto Scaling, CloudWatch Logs, CloudFormation, the tagging API and STS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.cloud.account.answers import ACCOUNT, Refusal, Request, Tags, matches, tag_list, tagged, tags_of

SIZES = ("MinSize", "MaxSize", "DesiredCapacity")  # as requests have them
Sizes = tuple[int, int, int]  # the minimum, desired and maximum size of a group


def resized(sizes: Sizes, changes: Mapping[str, int]) -> Sizes:
    """Sizes after UpdateAutoScalingGroup: what is not given stays, but the desired capacity is moved into new bounds.

    Refusal where they cross. Source: botocore's model of `autoscaling`, UpdateAutoScalingGroup.
    """
    low, desired, high = sizes
    low, high = changes.get("MinSize", low), changes.get("MaxSize", high)
    desired = changes.get("DesiredCapacity", min(max(desired, low), high))
    if not 0 <= low <= desired <= high:
        bounds = f"must be between the specified min size:{low} and max size:{high}"
        raise Refusal("ValidationError", f"Desired capacity:{desired} {bounds}")
    return low, desired, high


@dataclass
class AutoScaling:
    """Auto Scaling groups as AWS describes them, and the activities (newest first) and scheduled action of each.

    They are in one region, and the others have none.
    """

    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    activities: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    scheduled_actions: dict[str, dict[str, Any]] = field(default_factory=dict)
    region: str = "us-east-1"
    slow: int = 0  # descriptions of groups in which their machines stay after a scale-down

    def add(self, name: str, tags: Tags, most: int = 2, nodes: int = 0) -> None:
        """Add a group that has *nodes* machines."""
        self.groups[name] = {
            "AutoScalingGroupName": name,
            "Tags": tag_list(tags),
            "MinSize": 0,
            "MaxSize": most,
            "DesiredCapacity": nodes,
            "Instances": [{"InstanceId": f"i-{number:08x}"} for number in range(nodes)],
        }

    def describe_auto_scaling_groups(self, region: str, request: Request) -> Any:
        for group in self.groups.values():
            if len(group["Instances"]) > group["MaxSize"]:
                if self.slow == 0:
                    group["Instances"] = group["Instances"][: group["MaxSize"]]
                self.slow = max(0, self.slow - 1)
        names = request.get("AutoScalingGroupNames") or self.groups
        here = [each for name, each in self.groups.items() if region == self.region and name in names]
        return {"AutoScalingGroups": [each for each in here if matches({}, tags_of(each), request["Filters"])]}

    def describe_scaling_activities(self, region: str, request: Request) -> Any:
        """As DescribeScalingActivities: of one group, or of all of the region; deleted ones are included on request."""
        if "AutoScalingGroupName" in request:
            return {"Activities": self.activities.get(request["AutoScalingGroupName"], [])}
        names = self.activities if request.get("IncludeDeletedGroups") else self.groups
        every = [{**each, "AutoScalingGroupName": name} for name in names for each in self.activities.get(name, [])]
        return {"Activities": sorted(every, key=lambda each: each["StartTime"], reverse=True)}

    def update_auto_scaling_group(self, region: str, request: Request) -> Any:
        if (group := self.groups.get(name := request["AutoScalingGroupName"])) is None:
            raise Refusal("ValidationError", f"AutoScalingGroup name not found - AutoScalingGroup {name} not found")
        changes = {key: value for key, value in request.items() if key in SIZES}
        low, desired, high = resized((group["MinSize"], group["DesiredCapacity"], group["MaxSize"]), changes)
        group.update(MinSize=low, DesiredCapacity=desired, MaxSize=high)

    def put_scheduled_update_group_action(self, region: str, request: Request) -> Any:
        self.scheduled_actions[request["AutoScalingGroupName"]] = dict(request)

    def delete_scheduled_action(self, region: str, request: Request) -> Any:
        if self.scheduled_actions.pop(request["AutoScalingGroupName"], None) is None:
            raise Refusal("ValidationError", "Scheduled action name not found")


@dataclass
class Logs:
    """Log groups, and how often EKS recreates a deleted one.

    It does so without tags, when late log lines arrive (terraform-aws-eks#2446, #2763).
    """

    groups: set[str] = field(default_factory=set)
    recreations: dict[str, int] = field(default_factory=dict)

    def describe_log_groups(self, region: str, request: Request) -> Any:
        groups = [name for name in self.groups if name.startswith(request["logGroupNamePrefix"])]
        return {"logGroups": [{"logGroupName": name} for name in groups]}

    def delete_log_group(self, region: str, request: Request) -> Any:
        name = request["logGroupName"]
        if name not in self.groups:
            raise Refusal("ResourceNotFoundException")
        if self.recreations.get(name):
            self.recreations[name] -= 1
        else:
            self.groups.discard(name)


@dataclass
class CloudFormation:
    """Stacks with their tags."""

    stacks: dict[str, Tags] = field(default_factory=dict)

    def describe_stacks(self, region: str, request: Request) -> Any:
        more = {"CreationTime": 0, "StackStatus": "CREATE_COMPLETE"}
        return {"Stacks": [{**tagged("StackName", *each), **more} for each in self.stacks.items()]}


@dataclass
class Tagging:
    """The tagging API: resources by ARN with their environment, whether they exist or not, and `owned` by clusters.

    The original lists terminated instances for an hour (boto3#1704), which EC2 returns as terminated; deleted volumes,
    which EC2 does not return (aws-cli#8197); and KMS keys until their deletion, which KMS returns as pending. It lists
    *recovery_points*, too, which AWS Backup tags (its resource type backup:recovery-point).
    """

    recovery_points: Mapping[str, str]
    resources: dict[str, str] = field(default_factory=dict)

    owned: dict[str, str] = field(default_factory=dict)

    def get_resources(self, region: str, request: Request) -> Any:
        (tag,) = request["TagFilters"]
        cluster = tag["Key"].removeprefix("kubernetes.io/cluster/")
        environments = {**self.resources, **self.recovery_points}
        resources, name = (environments, tag["Values"][0]) if cluster == tag["Key"] else (self.owned, cluster)
        return {"ResourceTagMappingList": [{"ResourceARN": arn} for arn, owner in resources.items() if owner == name]}


@dataclass
class Sts:
    """The caller, who belongs to an account."""

    account: str = ACCOUNT

    def get_caller_identity(self, region: str, request: Request) -> Any:
        if region != region.lower():  # its host answers, as host names have no case
            raise Refusal("SignatureDoesNotMatch", "Credential should be scoped to a valid region.")
        return {"Account": self.account, "Arn": f"arn:aws:sts::{self.account}:x/me"}
