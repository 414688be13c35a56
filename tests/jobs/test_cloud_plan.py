"""`spotmpi plan`: each column, the order, what each row lost by, and what goes wrong at AWS."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from infra import costs
from infra.settings import Settings
from jobs.cloud import environment_price
from jobs.cloud.faults import CloudError
from jobs.cloud.quotas import quota_code
from jobs.cloud.rows import Row
from jobs.cloud.zone_plan import ZonePlan, request_quota, zone_plan
from jobs.errors import InputError
from tests.jobs.scripted_account import NOW, Refusal, ScriptedAccount, World, increase

BOTH = ("us-east-1", "us-west-2")


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def account(one_account: ScriptedAccount, world: World) -> ScriptedAccount:
    world.script(one_account)
    return one_account


def planned(account: ScriptedAccount, *types: str, nodes: int = 8, regions: tuple[str, ...] = ()) -> ZonePlan:
    return zone_plan(types or ("g5.xlarge",), nodes, regions, account.aws, NOW)


def row(plan: ZonePlan, zone: str, machine: str = "g5.xlarge") -> Row:
    (found,) = (each for each in plan.rows if (each.zone, each.type) == (zone, machine))
    return found


def test_every_column_of_a_row_is_what_aws_answered(account: ScriptedAccount, world: World) -> None:
    world.scores["g5.xlarge"] = {"use1-az6": 9}
    world.quota["L-3819A6DF"] = 30.0
    world.running["us-east-1"] = ["g4dn.xlarge", "c6i.xlarge"]

    found = row(planned(account, nodes=8), "us-east-1a")

    assert (found.region, found.zone_id, found.offered, found.gpus) == ("us-east-1", "use1-az6", True, 1)
    assert (found.spot, found.spot_low, found.spot_high) == (0.4, 0.4, 0.8)
    assert found.on_demand == 1.006 and found.saving == pytest.approx(1 - 0.4 / 1.006)
    assert found.score == 9
    assert (found.quota_code, found.quota, found.running, found.needed) == ("L-3819A6DF", 30, 4, 32)
    assert (found.short, found.nodes_today) == (6, 6)
    assert (found.placement_group, found.efa, found.one_zone) == (True, False, True)
    assert found.busy == pytest.approx(found.idle + 8 * (0.4 + 0.005 + 100 * 0.08 / 730))
    assert found.gaps == {} and found.lost == ""


def test_there_is_a_row_for_each_type_and_zone_of_each_region(account: ScriptedAccount) -> None:
    plan = planned(account, "g5.xlarge", "g4dn.xlarge", regions=BOTH)

    zones = {"us-east-1a", "us-east-1b", "us-west-2a", "us-west-2b"}
    assert {(each.type, each.zone) for each in plan.rows} == {
        (machine, zone) for machine in ("g5.xlarge", "g4dn.xlarge") for zone in zones
    }
    assert len(plan.rows) == 8


def test_the_first_row_has_no_reason_and_every_other_one_has(account: ScriptedAccount) -> None:
    first, *rest = planned(account, "g5.xlarge", "g4dn.xlarge", "t3.xlarge", regions=BOTH).rows

    assert first.lost == "" and len(rest) == 11 and all(each.lost for each in rest)


def test_a_zone_that_lacks_the_type_comes_last(account: ScriptedAccount, world: World) -> None:
    world.zones["us-east-1"] = {"us-east-1a": "use1-az6", "us-east-1b": "use1-az1"}
    world.not_offered.add(("g5.xlarge", "us-east-1a"))

    first, last = planned(account).rows

    assert (first.zone, last.zone) == ("us-east-1b", "us-east-1a")
    assert last.lost == "g5.xlarge is not offered in us-east-1a" and last.offered is False


def test_scores_are_given_by_zone_id_and_found_by_it(account: ScriptedAccount, world: World) -> None:
    world.zones["us-east-1"] = {"us-east-1a": "use1-az6", "us-east-1b": "use1-az1"}
    world.scores["g5.xlarge"] = {"use1-az6": 2, "use1-az1": 8}

    first, last = planned(account).rows

    assert (first.zone, last.zone) == ("us-east-1b", "us-east-1a")
    assert last.lost == "placement score 2 against 8"


def test_a_dearer_zone_loses_by_its_price(account: ScriptedAccount, world: World) -> None:
    world.zones["us-east-1"] = {"us-east-1a": "use1-az6", "us-east-1b": "use1-az1"}
    world.spot_there["g5.xlarge", "us-east-1a"] = 0.5

    first, last = planned(account).rows

    assert first.zone == "us-east-1b" and last.lost == "$0.1000/h more for a node (+25%)"


def test_a_clear_placement_score_beats_the_price_and_a_small_difference_does_not(
    account: ScriptedAccount, world: World
) -> None:
    world.zones["us-east-1"] = {"us-east-1a": "use1-az6", "us-east-1b": "use1-az1"}
    world.spot_there["g5.xlarge", "us-east-1a"] = 0.5
    world.scores["g5.xlarge"] = {"use1-az6": 9, "use1-az1": 7}
    assert planned(account).rows[0].zone == "us-east-1b"

    world.scores["g5.xlarge"] = {"use1-az6": 9, "use1-az1": 3}
    assert planned(account).rows[0].zone == "us-east-1a"


def test_a_zone_without_one_zone_storage_loses(account: ScriptedAccount) -> None:
    first, last = planned(account).rows

    assert (first.zone, last.zone) == ("us-east-1a", "us-east-1b")
    assert last.one_zone is False and last.lost == "EFS has no One Zone storage there"


def test_a_type_without_placement_group_loses_to_a_dearer_one(account: ScriptedAccount) -> None:
    plan = planned(account, "t3.xlarge", "g5.xlarge")

    assert plan.rows[0].type == "g5.xlarge"
    assert row(plan, "us-east-1a", "t3.xlarge").lost == "takes no cluster placement group"


def test_a_short_quota_loses_and_says_how_much_is_lacking(account: ScriptedAccount, world: World) -> None:
    world.quota = {"L-3819A6DF": 4.0}

    plan = planned(account, "t3.xlarge", "g5.xlarge")

    lost = row(plan, "us-east-1a", "g5.xlarge")
    assert plan.rows[0].type == "t3.xlarge" and lost.nodes_today == 1 and lost.short == 28
    assert lost.lost == "spot quota 4 vCPUs, 0 in use, 32 needed: --request-quota asks for more"


def test_no_spot_price_in_a_week_loses(account: ScriptedAccount, world: World) -> None:
    del world.spot["g4dn.xlarge"]

    plan = planned(account, "g5.xlarge", "g4dn.xlarge")

    assert row(plan, "us-east-1a", "g4dn.xlarge").lost == "no spot price there in 7 days"
    assert row(plan, "us-east-1a", "g4dn.xlarge").busy is None


def test_only_spot_machines_that_run_are_counted_against_the_quota(account: ScriptedAccount) -> None:
    planned(account)

    (asked,) = account.calls("DescribeInstances")
    assert {each["Name"]: each["Values"] for each in asked["Filters"]} == {
        "instance-lifecycle": ["spot"],
        "instance-state-name": ["pending", "running"],
    }


def test_scores_are_asked_once_per_type_for_all_regions_and_single_zones(account: ScriptedAccount) -> None:
    planned(account, "g5.xlarge", "g4dn.xlarge", nodes=5, regions=BOTH)

    asked = account.calls("GetSpotPlacementScores")
    assert sorted(each["InstanceTypes"][0] for each in asked) == ["g4dn.xlarge", "g5.xlarge"]
    assert all(each["SingleAvailabilityZone"] and each["TargetCapacity"] == 5 for each in asked)
    assert all(each["RegionNames"] == list(BOTH) for each in asked)


def test_calls_are_in_flight_together(account: ScriptedAccount, world: World) -> None:
    together = threading.Barrier(4, timeout=20)
    usual = account.answers["GetProducts"]

    def answer(region: str, asked: Mapping[str, Any]) -> Any:
        together.wait()  # breaks, and the price is lost, unless four calls wait here at once
        return usual(region, asked)

    account.answers["GetProducts"] = answer
    plan = planned(account, "g5.xlarge", "g4dn.xlarge", "t3.xlarge")

    assert len(account.calls("GetProducts")) == 4 and plan.rows[0].on_demand is not None


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

    assert len(plan.rows) == 2
    assert plan.rows[0].gaps == dict.fromkeys(columns, "not permitted")
    if operation != "DescribeRegions":
        (told,) = {line for line in plan.unknown if operation in line and "t3.medium" not in line}
        assert "is not permitted: let your IAM policy allow it" in told


def test_without_zones_the_offers_name_them(account: ScriptedAccount) -> None:
    account.refuse("DescribeAvailabilityZones", "UnauthorizedOperation")

    plan = planned(account)

    assert {each.zone for each in plan.rows} == {"us-east-1a", "us-east-1b"}
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
    from jobs.cloud.faults import translated

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


def test_open_requests_are_part_of_the_plan_and_decided_ones_are_not(account: ScriptedAccount, world: World) -> None:
    world.pending = [
        increase("L-3819A6DF", 64, NOW - timedelta(days=3)),
        increase("L-3819A6DF", 32, NOW - timedelta(days=30), "APPROVED"),
        increase("L-3819A6DF", 96, NOW - timedelta(days=5), "CASE_OPENED"),
    ]

    plan = planned(account)

    assert [(each.vcpus, each.status) for each in plan.increases] == [(96, "CASE_OPENED"), (64, "PENDING")]


def test_a_request_asks_for_what_runs_and_what_is_needed(account: ScriptedAccount, world: World) -> None:
    world.quota["L-3819A6DF"] = 8.0
    world.running["us-east-1"] = ["g5.xlarge"]

    made = request_quota(planned(account).rows[0], account.aws)

    assert made is not None and made.vcpus == 36
    (asked,) = account.calls("RequestServiceQuotaIncrease")
    assert asked == {"ServiceCode": "ec2", "QuotaCode": "L-3819A6DF", "DesiredValue": 36.0}


def test_nothing_is_asked_where_the_quota_suffices(account: ScriptedAccount) -> None:
    assert request_quota(planned(account).rows[0], account.aws) is None
    assert account.calls("RequestServiceQuotaIncrease") == []


def test_a_request_that_is_open_already_is_said_in_words(account: ScriptedAccount, world: World) -> None:
    world.quota["L-3819A6DF"] = 0.0
    account.refuse("RequestServiceQuotaIncrease", "ResourceAlreadyExistsException")

    with pytest.raises(CloudError, match="is open already; AWS takes one at a time"):
        request_quota(planned(account).rows[0], account.aws)


def test_an_unknown_quota_is_not_asked_for_blindly(account: ScriptedAccount) -> None:
    account.refuse("GetServiceQuota", "AccessDeniedException")

    with pytest.raises(CloudError, match="quota: not permitted"):
        request_quota(planned(account).rows[0], account.aws)


def test_a_quota_that_was_never_touched_has_its_default(account: ScriptedAccount) -> None:
    account.refuse("GetServiceQuota", "NoSuchResourceException")
    account.answers["GetAWSDefaultServiceQuota"] = lambda region, asked: {"Quota": {"Value": 5.0}}

    assert planned(account).rows[0].quota == 5


@pytest.mark.parametrize(
    ("machine", "code"),
    [
        ("g5.xlarge", "L-3819A6DF"),
        ("g4dn.xlarge", "L-3819A6DF"),
        ("g6e.12xlarge", "L-3819A6DF"),
        ("vt1.3xlarge", "L-3819A6DF"),
        ("p2.xlarge", "L-7212CCBC"),
        ("p3dn.24xlarge", "L-7212CCBC"),
        ("p4d.24xlarge", "L-7212CCBC"),
        ("p5.48xlarge", "L-C4BD4855"),
        ("c6i.xlarge", "L-34B43A08"),
        ("t3.medium", "L-34B43A08"),
        ("im4gn.large", "L-34B43A08"),
        ("inf2.xlarge", None),
        ("hpc7a.12xlarge", None),
        ("mac1.metal", None),
        ("trn1.2xlarge", None),
        ("dl1.24xlarge", None),
        ("x2idn.16xlarge", None),
    ],
)
def test_each_family_counts_against_its_own_quota(machine: str, code: str | None) -> None:
    assert quota_code(machine) == code


def test_a_family_without_known_quota_is_planned_without_it(account: ScriptedAccount, world: World) -> None:
    world.types["trn1.2xlarge"], world.spot["trn1.2xlarge"] = (8, 0, True, False), 0.4

    plan = planned(account, "trn1.2xlarge")

    assert plan.rows[0].quota is None and plan.rows[0].short is None
    with pytest.raises(InputError, match="no spot quota is known for this family"):
        request_quota(plan.rows[0], account.aws)


def test_idle_costs_are_those_of_the_default_settings() -> None:
    settings = Settings(stack="x", region="us-east-1", zone="us-east-1a")

    price = environment_price.environment_price(8, None, None)

    assert price.idle == pytest.approx(sum(costs.idle(settings).values())) and price.busy is None
    assert settings.cluster.system.type == environment_price.SYSTEM_TYPE
