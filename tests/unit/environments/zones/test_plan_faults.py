"""`spotmpi plan` where AWS says no, and wrong input."""

from __future__ import annotations

from datetime import timedelta
from email.utils import format_datetime

import pytest

from spotmpi.aws.errors import CloudError
from spotmpi.core.errors import InputError
from spotmpi.environments.zones.comparison import zone_plan
from tests.cloud.scripted_account import NOW, Refusal, ScriptedAccount
from tests.unit.environments.zones.planning import BOTH, planned, row


@pytest.mark.parametrize(
    ("operation", "columns"),
    [
        ("GetSpotPlacementScores", {"score"}),
        ("GetProducts", {"on_demand"}),
        ("GetServiceQuota", {"quota"}),
        ("DescribeInstances", {"running"}),
        ("DescribeSpotPriceHistory", {"spot"}),
        ("DescribeInstanceTypes", {"machine"}),
        ("DescribeInstanceTypeOfferings", {"offered"}),
        ("ListRequestedServiceQuotaChangeHistoryByQuota", set()),
        ("DescribeRegions", set()),
    ],
)
def test_a_call_that_is_not_permitted_leaves_its_column_and_the_rest_works(
    account: ScriptedAccount, operation: str, columns: set[str]
) -> None:
    account.refuse(operation, "UnauthorizedOperation")

    plan = planned(account)

    assert len(plan.rows) == 3
    assert plan.rows[0].gaps == dict.fromkeys(columns, "not permitted")
    if operation != "DescribeRegions":
        (told,) = {line for line in plan.unknown if operation in line and "t3.medium" not in line}
        assert "is not permitted: let your IAM policy allow it" in told


def test_without_zones_the_offers_name_them(account: ScriptedAccount) -> None:
    account.refuse("DescribeAvailabilityZones", "UnauthorizedOperation")

    plan = planned(account)

    assert {each.zone for each in plan.rows} == {"us-east-1a", "us-east-1b", "us-east-1c"}
    assert plan.rows[0].zone_id is None and plan.rows[0].score is None and plan.rows[0].one_zone is None


def test_without_zones_and_offers_there_is_no_plan_but_two_reasons(account: ScriptedAccount) -> None:
    account.refuse("DescribeAvailabilityZones", "UnauthorizedOperation")
    account.refuse("DescribeInstanceTypeOfferings", "UnauthorizedOperation")

    with pytest.raises(CloudError, match=r"ec2:DescribeAvailabilityZones.*ec2:DescribeInstanceTypeOfferings"):
        planned(account)


def test_throttling_that_outlasts_the_retries_costs_one_column(account: ScriptedAccount) -> None:
    account.refuse("GetSpotPlacementScores", "RequestLimitExceeded")

    plan = planned(account)

    assert plan.rows[0].gaps == {"score": "throttled"}
    assert plan.unknown == (
        "ec2:GetSpotPlacementScores in us-east-1: AWS throttles it; repeat the command in a minute",
    )


def test_one_region_may_be_denied_and_the_other_is_planned(account: ScriptedAccount) -> None:
    account.refuse("DescribeSpotPriceHistory", "UnauthorizedOperation", region="us-west-2")

    plan = planned(account, regions=BOTH)

    assert plan.rows[0].region == "us-east-1" and plan.rows[0].spot == 0.4
    assert row(plan, "us-west-2a").lost == "spot price unknown: not permitted"


ON_TIME, LATE = format_datetime(NOW, usegmt=True), format_datetime(NOW - timedelta(minutes=42), usegmt=True)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("ExpiredToken", "the AWS credentials have expired: log in again"),
        ("ExpiredTokenException", "the AWS credentials have expired: log in again"),
        ("AuthFailure", "AWS does not accept these credentials in us-east-1"),
        ("UnrecognizedClientException", "the region is not enabled"),
        ("SignatureDoesNotMatch", "the secret access key does not belong to its key id"),
    ],
)
def test_what_ends_everything_is_one_line(account: ScriptedAccount, code: str, told: str) -> None:
    account.refuse("DescribeRegions", code)

    with pytest.raises(CloudError) as caught:
        planned(account)

    assert told in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("code", ["AuthFailure", "SignatureDoesNotMatch", "RequestExpired"])
def test_a_wrong_clock_is_told_from_wrong_keys(code: str) -> None:
    from spotmpi.aws.errors import translated

    late = translated(_refused(code, LATE), "ec2:DescribeRegions", "us-east-1", NOW)
    on_time = translated(_refused(code, ON_TIME), "ec2:DescribeRegions", "us-east-1", NOW)

    assert str(late) == "this machine's clock is 42 minutes ahead of AWS's: set it (`timedatectl`), then repeat"
    assert "clock" not in str(on_time)


def _refused(code: str, date: str) -> Exception:
    from botocore.exceptions import ClientError

    refused: Exception = ClientError(Refusal(code, "", date).parsed, "DescribeRegions")
    return refused


@pytest.mark.parametrize(
    ("types", "nodes", "regions", "told"),
    [
        (("g9.huge",), 8, (), "--types = 'g9.huge': there is no such EC2 instance type in us-east-1"),
        (("g5",), 8, (), "--types = 'g5': is not an EC2 instance type; write it like g5.xlarge"),
        (("g5.xlarge; rm",), 8, (), "is not an EC2 instance type"),
        ((), 8, (), "--types: name at least one instance type"),
        (("g5.xlarge",), 0, (), "--nodes = 0: say 1 to 5000"),
        (("g5.xlarge",), 8, ("moon",), "--region = 'moon': is not an AWS region"),
        (("g5.xlarge",), 8, ("us-north-9",), "--region = 'us-north-9': there is no such AWS region"),
        (("g5.xlarge",), 8, ("af-south-1",), "not enabled in this account: `aws account enable-region"),
    ],
)
def test_wrong_input_names_the_value_and_the_remedy(
    account: ScriptedAccount, types: tuple[str, ...], nodes: int, regions: tuple[str, ...], told: str
) -> None:
    with pytest.raises(InputError) as caught:
        zone_plan(types, nodes, regions, account.aws, NOW)

    assert told in str(caught.value)


def test_without_any_region_the_way_to_name_one_is_told() -> None:
    account = ScriptedAccount(region=None)

    with pytest.raises(CloudError, match="no AWS region: name it with --region, or set AWS_REGION"):
        planned(account)
    assert account.asked == []


def test_all_that_is_wrong_is_told_at_once(account: ScriptedAccount) -> None:
    with pytest.raises(InputError) as caught:
        zone_plan(("g5", "p3"), -1, ("moon",), account.aws, NOW)

    assert [problem.field for problem in caught.value.problems] == ["--types", "--types", "--nodes", "--region"]
