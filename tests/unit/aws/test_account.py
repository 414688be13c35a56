"""The calls themselves: against moto's EC2, and against an endpoint that throttles."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError
from botocore.retries.standard import ThrottledRetryableChecker
from moto import mock_aws

from spotmpi.aws import zones
from spotmpi.aws.account import open_account
from spotmpi.aws.errors import CallError, CloudError, translate_error
from spotmpi.environments.zones.comparison import compare_zones
from tests.cloud.account.answers import Refusal
from tests.cloud.account.fake_account import FakeAccount

THROTTLED = (
    b"<Response><Errors><Error><Code>RequestLimitExceeded</Code><Message>slow</Message></Error></Errors></Response>"
)
REGIONS = (
    b"<DescribeRegionsResponse><regionInfo><item><regionName>us-east-1</regionName></item></regionInfo>"
    b"</DescribeRegionsResponse>"
)


def test_a_comparison_reads_the_responses_of_motos_ec2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # thousands, which nothing here uses
    with mock_aws():
        # Moto has all but scores and versions of EKS, and lacks a filter for instances.
        account = FakeAccount(services=("pricing", "service-quotas"))
        account.answers = {
            "DescribeInstances": account.ec2.describe_instances,
            "GetSpotPlacementScores": account.ec2.get_spot_placement_scores,
            "DescribeClusterVersions": account.eks.describe_cluster_versions,
        }

        plan = compare_zones(["g5.xlarge", "p4d.24xlarge"], 2, ["us-east-1"], account, datetime.now(UTC))

    offered = [row for row in plan.rows if row.type == "g5.xlarge" and row.offered]
    assert plan.unknown == () and len(offered) >= 3
    assert {(row.gpus, row.placement_group, row.efa, row.needed) for row in offered} == {(1, True, False, 8)}
    assert all(row.spot and row.spot > 0 for row in offered)
    big = next(row for row in plan.rows if row.type == "p4d.24xlarge" and row.offered)
    assert (big.gpus, big.efa, big.needed, big.quota_code) == (8, True, 192, "L-7212CCBC")
    names = {row.zone: row.zone_id for row in plan.rows}
    assert set(names) == {f"us-east-1{letter}" for letter in "abcdef"} and len(set(names.values())) == 6


def test_the_default_region_is_aws_region_which_boto3_ignores(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x" * 20)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert (open_account().region, open_account("us-west-2").region) == ("eu-west-1", "us-west-2")


@pytest.mark.parametrize(("refusals", "works"), [(2, True), (50, False)])
def test_throttled_calls_are_repeated_with_growing_pauses(
    refusals: int, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("botocore.endpoint.time.sleep", pauses.append)
    account, tries = FakeAccount(services=()), 0

    def wire(request: Any, **_: Any) -> AWSResponse:
        nonlocal tries
        tries += 1
        body, status = (THROTTLED, 503) if tries <= refusals else (REGIONS, 200)
        raw = SimpleNamespace(stream=lambda **_: iter([body]))
        return AWSResponse(request.url, status, {"content-type": "text/xml"}, raw)

    account.client("ec2", "us-east-1").meta.events.register("before-send", wire)

    if works:
        assert zones.regions(account) == {"us-east-1": True}
        # Each pause is drawn at random from a range that doubles.
        assert tries == 3 and all(pause <= most for pause, most in zip(pauses, (1.0, 2.0), strict=True))
    else:
        with pytest.raises(CallError, match="throttled by AWS; repeat the command in a minute"):
            zones.regions(account)
        assert tries == 6 and len(pauses) == 5


def test_a_silent_aws_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said, texts = threading.Event(), list[str]()
    account = FakeAccount(services=())

    def print_message(text: str) -> None:
        texts.append(text)
        said.set()

    def wire(request: Any, **_: Any) -> AWSResponse:
        assert said.wait(60)
        raw = SimpleNamespace(stream=lambda **_: iter([REGIONS]))
        return AWSResponse(request.url, 200, {"content-type": "text/xml"}, raw)

    monkeypatch.setattr("spotmpi.aws.account.print_message", print_message)
    monkeypatch.setattr("spotmpi.aws.account.LONG_QUIET", 0.01)
    account.client("ec2", "us-east-1").meta.events.register("before-send", wire)
    assert [zones.regions(account) for _ in range(2)] == [{"us-east-1": True}] * 2
    assert texts == ["waiting until AWS answers (ec2 in us-east-1; gives up after 6 tries of up to 20 s)"]


def test_a_throttled_call_says_so_whatever_the_service_calls_it(account: FakeAccount) -> None:
    """Those that botocore repeats as throttled; Cost Explorer has a name for it that others have for quotas."""
    named = set(ThrottledRetryableChecker._THROTTLED_ERROR_CODES) - {"TransactionInProgressException"}
    for code in sorted(named - {"LimitExceededException"}):
        message = str(translate_error(ClientError(Refusal(code).parsed, "x"), "ec2:DescribeVpcs", "us-east-1"))
        assert message.endswith("throttled by AWS; repeat the command in a minute"), message
    refusal = ClientError(Refusal("LimitExceededException", "You made too many calls").parsed, "x")
    assert "throttled by AWS" in str(translate_error(refusal, "ce:GetCostAndUsage", "us-east-1"))
    assert "failed with LimitExceededException" in str(translate_error(refusal, "logs:CreateLogGroup", "us-east-1"))


def test_a_region_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "A" * 20)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x" * 40)
    with pytest.raises(CloudError, match="'us_east' doesn't match a supported format: give a region such as us-east-1"):
        open_account("us_east").account_id("us_east")
