"""Machines as EC2 itself describes them; it knows one for an hour after its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spotmpi.aws.account import Aws

SPOT, ON_DEMAND = "spot", "on-demand"
NO_GROUP = "none"
_FILTER = 200  # values that a filter takes


@dataclass(frozen=True)
class Instance:
    """One machine; None is not told, and `placement_group` is none where it is in none. `host` is its DNS name."""

    id: str
    type: str | None
    zone: str | None
    market: str
    placement_group: str
    host: str | None


def instances(aws: Aws, region: str, ids: Sequence[str]) -> dict[str, Instance]:
    """Of the machines with these *ids* those that EC2 knows, by id; CallFailed where it may not be asked."""
    found: dict[str, Instance] = {}
    for first in range(0, len(ids), _FILTER):
        only = [{"Name": "instance-id", "Values": list(ids[first : first + _FILTER])}]
        for some in aws.pages("ec2", region, "describe_instances", "Reservations", Filters=only):
            found |= {each["InstanceId"]: _instance(each) for each in some["Instances"]}
    return found


def of_provider(provider: str) -> str | None:
    """The instance in a Kubernetes node's provider id, such as ``aws:///us-east-1a/i-0123``; None of other clouds."""
    return provider.rpartition("/")[2] if provider.startswith("aws:") else None


def _instance(values: Mapping[str, Any]) -> Instance:
    place = values.get("Placement", {})
    return Instance(
        id=values["InstanceId"],
        type=values.get("InstanceType"),
        zone=place.get("AvailabilityZone"),
        market=SPOT if values.get("InstanceLifecycle") == "spot" else ON_DEMAND,
        placement_group=place.get("GroupName") or NO_GROUP,
        host=values.get("PrivateDnsName"),
    )
