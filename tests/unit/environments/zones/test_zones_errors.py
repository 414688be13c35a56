"""`spotmpi zones` where AWS refuses calls, and with invalid input."""

from __future__ import annotations

from datetime import timedelta
from email.utils import format_datetime

import pytest
from botocore.exceptions import ClientError

from spotmpi.aws.errors import CloudError, translate_error
from spotmpi.core.errors import InputError
from spotmpi.environments.zones.comparison import compare_zones
from tests.cloud.account.answers import Refusal
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.account.market import NOW
from tests.unit.environments.zones.comparing import BOTH, compare, row


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
    account: FakeAccount, operation: str, columns: set[str]
) -> None:
    account.refuse(operation, "UnauthorizedOperation")

    comparison = compare(account)

    assert len(comparison.rows) == 3
    assert comparison.rows[0].unknown == dict.fromkeys(columns, "not permitted")
    if operation != "DescribeRegions":
        (message,) = {line for line in comparison.unknown if operation in line and "t3.medium" not in line}
        assert "is not permitted: allow it in your IAM policy" in message


def test_without_zones_the_offerings_name_them(account: FakeAccount) -> None:
    account.refuse("DescribeAvailabilityZones", "UnauthorizedOperation")
    comparison = compare(account)
    assert {each.zone for each in comparison.rows} == {"us-east-1a", "us-east-1b", "us-east-1c"}
    first = comparison.rows[0]
    assert (first.zone_id, first.score, first.one_zone) == (None, None, None)


def test_without_zones_and_offerings_the_error_has_both_reasons(account: FakeAccount) -> None:
    account.refuse("DescribeAvailabilityZones", "UnauthorizedOperation")
    account.refuse("DescribeInstanceTypeOfferings", "UnauthorizedOperation")
    with pytest.raises(CloudError, match=r"ec2:DescribeAvailabilityZones.*ec2:DescribeInstanceTypeOfferings"):
        compare(account)


# The second is what the tagging API answers (botocore's model).
@pytest.mark.parametrize("code", ["RequestLimitExceeded", "ThrottledException"])
def test_throttling_that_outlasts_the_retries_costs_one_column(account: FakeAccount, code: str) -> None:
    account.refuse("GetSpotPlacementScores", code)
    comparison = compare(account)
    assert comparison.rows[0].unknown == {"score": "throttled"}
    (message,) = comparison.unknown
    assert message == "ec2:GetSpotPlacementScores in us-east-1: throttled by AWS; repeat the command in a minute"


def test_a_denied_region_leaves_the_other_one_compared(account: FakeAccount) -> None:
    account.refuse("DescribeSpotPriceHistory", "UnauthorizedOperation", region="us-west-2")
    comparison = compare(account, regions=BOTH)
    assert comparison.rows[0].region == "us-east-1" and comparison.rows[0].spot == 0.4
    assert row(comparison, "us-west-2a").reason == "spot price unknown: not permitted"


ON_TIME, LATE = format_datetime(NOW, usegmt=True), format_datetime(NOW - timedelta(minutes=42), usegmt=True)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("ExpiredToken", "the AWS credentials have expired: log in again"),
        ("ExpiredTokenException", "the AWS credentials have expired: log in again"),
        ("AuthFailure", "AWS rejects these credentials in us-east-1"),
        ("UnrecognizedClientException", "the region is not enabled"),
        ("SignatureDoesNotMatch", "the secret access key does not match the access key id"),
    ],
)
def test_a_fatal_error_is_one_line(account: FakeAccount, code: str, message: str) -> None:
    account.refuse("DescribeRegions", code)
    with pytest.raises(CloudError) as caught:
        compare(account)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("code", ["AuthFailure", "SignatureDoesNotMatch", "RequestExpired"])
def test_a_wrong_clock_is_distinguished_from_wrong_keys(code: str) -> None:
    def message(date: str) -> str:
        refusal = ClientError(Refusal(code, "", date).parsed, "DescribeRegions")
        return str(translate_error(refusal, "ec2:DescribeRegions", "us-east-1", NOW))

    assert message(LATE) == "this machine's clock is 42 minutes ahead of AWS's: set it (`timedatectl`), then repeat"
    assert "clock" not in message(ON_TIME)


@pytest.mark.parametrize(
    ("types", "nodes", "regions", "message"),
    [
        (("g9.huge",), 8, (), "--types = 'g9.huge': no such EC2 instance type in us-east-1"),
        (("g5",), 8, (), "--types = 'g5': not an EC2 instance type; write it like g5.xlarge"),
        (("g5.xlarge; rm",), 8, (), "not an EC2 instance type"),
        ((), 8, (), "--types: give at least one instance type"),
        (("g5.xlarge",), 0, (), "--nodes = 0: give 1 to 5000"),
        (("g5.xlarge",), 8, ("moon",), "--region = 'moon': not an AWS region"),
        (("g5.xlarge",), 8, ("us-north-9",), "--region = 'us-north-9': no such AWS region"),
        (("g5.xlarge",), 8, ("af-south-1",), "not enabled in this account: `aws account enable-region"),
    ],
)
def test_invalid_input_names_the_value_and_the_remedy(
    account: FakeAccount, types: tuple[str, ...], nodes: int, regions: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        compare_zones(types, nodes, regions, account, NOW)
    assert message in str(caught.value)


def test_without_any_region_the_error_says_how_to_give_one() -> None:
    account = FakeAccount(region=None)
    with pytest.raises(CloudError, match="no AWS region: give --region, or set AWS_REGION"):
        compare(account)
    assert account.requests == []


def test_all_problems_are_reported_at_once(account: FakeAccount) -> None:
    with pytest.raises(InputError) as caught:
        compare_zones(("g5", "p3"), -1, ("moon",), account, NOW)
    assert [problem.field for problem in caught.value.problems] == ["--types", "--types", "--nodes", "--region"]
