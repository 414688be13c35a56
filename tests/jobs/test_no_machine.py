"""Why a run in an environment gets no nodes, in AWS's own words made readable."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from jobs import environment
from jobs.backends import beyond
from jobs.backends.beyond import Beyond
from jobs.cloud.no_machine import why_no_machine
from jobs.cloud.scaling import GROUP_TAG
from jobs.errors import SpotmpiError
from tests.jobs.scripted_account import ScriptedAccount
from tests.jobs.test_environment import OUTPUTS

SUBMITTED = 1795240000.0
FULL = (
    "Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity due to your request "
    "configuration. Launching EC2 instance failed."
)
UNSCHEDULED = {"status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}}
SCHEDULED = {"status": {"conditions": [{"type": "PodScheduled", "status": "True"}]}}


def launch(status: str, age: float = 60) -> dict[str, Any]:
    """A launch that many seconds after the submission, or before where negative."""
    began = datetime.fromtimestamp(SUBMITTED + age, UTC)
    said = {"StatusMessage": FULL} if status == "Failed" else {}
    return {"Description": "Launching a new EC2 instance", "StatusCode": status, "StartTime": began, **said}


def told(*activities: dict[str, Any], groups: tuple[str, ...] = ("gpus",)) -> str | None:
    there = environment.parse({**OUTPUTS, "region": "us-east-1"})
    account = ScriptedAccount()
    sizes = {"MinSize": 0, "MaxSize": 8, "DesiredCapacity": 1}
    tags = [{"Key": GROUP_TAG, "Value": "gpus"}]

    def done(region: str, asked: Mapping[str, Any]) -> Any:
        assert asked["AutoScalingGroupName"] == "eks-gpus" and asked["MaxRecords"] <= 10
        return {"Activities": list(activities)}

    account.answers = {
        "DescribeAutoScalingGroups": lambda region, asked: {
            "AutoScalingGroups": [{"AutoScalingGroupName": "eks-gpus", "Tags": tags, **sizes}]
        },
        "DescribeScalingActivities": done,
    }
    return why_no_machine(account.aws, there, groups, SUBMITTED)


def test_a_zone_without_capacity_is_told_with_its_group_and_a_way_out() -> None:
    ended = {**launch("Successful"), "Description": "Terminating EC2 instance: i-0123"}
    said = told(ended, launch("Failed"), launch("Successful", 5))
    assert said is not None
    assert said.startswith("scaling group gpus: AWS has no spot machine of this type left in the zone (`spotmpi plan`")


@pytest.mark.parametrize(
    ("activities", "groups"),
    [
        ([], ("gpus",)),
        ([launch("InProgress"), launch("Failed", 5)], ("gpus",)),
        ([launch("Failed", -60)], ("gpus",)),
        ([launch("Failed")], ("other",)),
    ],
)
def test_what_goes_well_is_over_or_concerns_others_is_not_told(
    activities: list[dict[str, Any]], groups: tuple[str, ...]
) -> None:
    assert told(*activities, groups=groups) is None


def test_the_cloud_is_asked_now_and_then_and_only_while_a_pod_has_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def ask() -> str:
        asked.append(1)
        return "no capacity"

    it = Beyond(ask)
    assert asyncio.run(it.word([SCHEDULED])) is None and not asked
    assert [asyncio.run(it.word([SCHEDULED, UNSCHEDULED])) for _ in range(3)] == ["no capacity"] * 3
    assert len(asked) == 1
    monkeypatch.setattr(beyond, "LOOK", 0.0)
    assert asyncio.run(it.word([UNSCHEDULED])) == "no capacity" and len(asked) == 2


def test_a_cloud_that_cannot_be_asked_leaves_the_pods_own_words() -> None:
    def refused() -> str | None:
        raise SpotmpiError("not permitted")

    assert asyncio.run(Beyond(refused).word([UNSCHEDULED])) is None
