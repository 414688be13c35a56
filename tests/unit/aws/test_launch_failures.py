"""Why a run in an environment gets no nodes, in AWS's own words made readable."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from spotmpi.aws.errors import CloudError
from spotmpi.aws.launch_failures import last_launch_failure
from spotmpi.aws.scaling import CLUSTER_TAG, GROUP_TAG
from spotmpi.core import environment
from tests.cloud.account.fake_account import FakeAccount
from tests.unit.core.test_environment import OUTPUTS

SUBMITTED = 1795240000.0
FULL = (
    "Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity due to your request "
    "configuration. Launching EC2 instance failed."
)


def launch(status: str, age: float = 60) -> dict[str, Any]:
    """A launch that many seconds after the submission, or before where negative."""
    start = datetime.fromtimestamp(SUBMITTED + age, UTC)
    status_message = {"StatusMessage": FULL} if status == "Failed" else {}
    return {"Description": "Launching a new EC2 instance", "StatusCode": status, "StartTime": start, **status_message}


def failure_message(
    account: FakeAccount, *activities: dict[str, Any], groups: tuple[str, ...] = ("gpus",)
) -> str | None:
    outputs = environment.parse({**OUTPUTS, "region": "us-east-1"})
    account.autoscaling.add("eks-gpus", {CLUSTER_TAG: outputs.cluster, GROUP_TAG: "gpus"}, most=8)
    account.autoscaling.activities["eks-gpus"] = list(activities)
    message = last_launch_failure(account, outputs, groups, SUBMITTED)
    assert all(request["MaxRecords"] <= 10 for request in account.requests_of("DescribeScalingActivities"))
    return message


def test_a_zone_without_capacity_is_reported_with_its_group_and_a_remedy(account: FakeAccount) -> None:
    termination = {**launch("Successful"), "Description": "Terminating EC2 instance: i-0123"}
    message = failure_message(account, termination, launch("Failed"), launch("Successful", 5))
    assert message is not None
    assert message.startswith("node group gpus: AWS has no spot capacity for this type in the zone (`spotmpi zones`")


@pytest.mark.parametrize(
    ("activities", "groups"),
    [
        ([], ("gpus",)),
        ([launch("InProgress"), launch("Failed", 5)], ("gpus",)),
        ([launch("Failed", -60)], ("gpus",)),
        ([launch("Failed")], ("other",)),
    ],
)
def test_successful_earlier_and_foreign_launches_are_not_reported(
    account: FakeAccount, activities: list[dict[str, Any]], groups: tuple[str, ...]
) -> None:
    assert failure_message(account, *activities, groups=groups) is None


def test_a_failure_of_a_cluster_of_that_name_in_another_account_is_none_of_the_run(account: FakeAccount) -> None:
    account.sts.account = "999999999999"
    with pytest.raises(CloudError, match=r"belong to account 999999999999, but this is cluster .* of account 123456"):
        failure_message(account, launch("Failed"))
