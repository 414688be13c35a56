"""Why AWS starts no machine for a run that waits for one: what its scaling groups did last."""

from __future__ import annotations

from collections.abc import Collection

from spotmpi.aws.account import Aws
from spotmpi.aws.scaling import scaling_groups
from spotmpi.aws.scaling_errors import reason_of
from spotmpi.core.environment import Environment

_NEWEST = 10  # activities that are looked at; launches and ends of machines alternate


def why_no_machine(aws: Aws, environment: Environment, groups: Collection[str], since: float) -> str | None:
    """What is wrong with the newest launch in one of these node groups since then (Unix seconds), or None.

    Raises:
        CloudError: AWS can't be asked.
    """
    for scaling in scaling_groups(aws, environment):
        if scaling.group not in groups:
            continue
        name = {"AutoScalingGroupName": scaling.name, "MaxRecords": _NEWEST}
        done = aws.call("autoscaling", environment.region, "describe_scaling_activities", **name)["Activities"]
        launches = (each for each in done if str(each.get("Description", "")).startswith("Launching"))
        newest = next(launches, None)
        if newest and newest["StatusCode"] == "Failed" and newest["StartTime"].timestamp() > since:
            reason = reason_of("", newest.get("StatusMessage") or newest.get("Cause") or "")
            return f"scaling group {scaling.group}: {reason.words} ({reason.remedy})"
    return None
