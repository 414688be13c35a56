"""`spotmpi zones`: each column, the order, and why each row ranks where it does."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from tests.cloud.account.fake_account import FakeAccount
from tests.unit.environments.zones.comparing import BOTH, compare, row

TWO_ZONES = {"us-east-1a": "use1-az6", "us-east-1b": "use1-az1"}


def test_every_column_of_a_row_is_what_aws_answered(account: FakeAccount) -> None:
    account.ec2.scores["g5.xlarge"] = {"use1-az6": 9}
    account.quotas.values["L-3819A6DF"] = 30.0
    account.ec2.spot_types["us-east-1"] = ["g4dn.xlarge", "c6i.xlarge"]

    match = row(compare(account, nodes=8), "us-east-1a")

    assert (match.region, match.zone_id, match.offered, match.gpus) == ("us-east-1", "use1-az6", True, 1)
    assert (match.spot, match.spot_low, match.spot_high) == (0.4, 0.4, 0.8)
    assert match.on_demand == 1.006 and match.saving == pytest.approx(1 - 0.4 / 1.006)
    assert match.score == 9
    assert (match.quota_code, match.quota, match.running, match.needed) == ("L-3819A6DF", 30, 4, 32)
    assert (match.short, match.nodes_today) == (6, 6)
    assert (match.placement_group, match.efa, match.one_zone) == (True, False, True)
    assert match.idle is not None and match.busy == pytest.approx(match.idle + 8 * (0.4 + 0.005 + 100 * 0.08 / 730))
    assert match.unknown == {} and match.reason == ""


def test_there_is_a_row_for_each_type_and_zone_and_all_but_the_first_have_a_reason(account: FakeAccount) -> None:
    types = ("g5.xlarge", "g4dn.xlarge", "t3.xlarge")
    rows = compare(account, *types, regions=BOTH).rows
    zones = ("us-east-1a", "us-east-1b", "us-east-1c", "us-west-2a", "us-west-2b")
    assert sorted((each.type, each.zone) for each in rows) == sorted(itertools.product(types, zones))
    assert [bool(each.reason) for each in rows] == [False] + [True] * 14


@pytest.mark.parametrize(
    ("market", "last", "reason"),
    [
        ({"not_offered": {("g5.xlarge", "us-east-1a")}}, "us-east-1a", "g5.xlarge is not offered in us-east-1a"),
        # By zone id, not by name.
        (
            {"scores": {"g5.xlarge": {"use1-az6": 2, "use1-az1": 8}}},
            "us-east-1a",
            "placement score 2, the first row has 8",
        ),
        ({"zone_prices": {("g5.xlarge", "us-east-1a"): 0.5}}, "us-east-1a", "$0.1000/h more per node (+25%)"),
        (
            {"zones": {"us-east-1": {**TWO_ZONES, "us-east-1b": "use1-az9"}}},
            "us-east-1b",
            "no EFS One Zone storage in the zone",
        ),
    ],
    ids=["type not offered", "lower score", "higher price", "no One Zone storage"],
)
def test_the_worse_of_two_zones_comes_last_with_the_reason(
    account: FakeAccount, market: dict[str, Any], last: str, reason: str
) -> None:
    for name, value in {"zones": {"us-east-1": TWO_ZONES}, **market}.items():
        setattr(account.ec2, name, value)
    rows = compare(account).rows
    assert [each.reason for each in rows] == ["", reason]
    assert rows[1].zone == last
    assert (rows[1].offered, rows[1].one_zone) == ("not offered" not in reason, "One Zone" not in reason)


def test_a_clear_placement_score_beats_the_price_and_a_small_difference_does_not(account: FakeAccount) -> None:
    account.ec2.zones["us-east-1"] = TWO_ZONES
    account.ec2.zone_prices["g5.xlarge", "us-east-1a"] = 0.5
    account.ec2.scores["g5.xlarge"] = {"use1-az6": 9, "use1-az1": 7}
    assert compare(account).rows[0].zone == "us-east-1b"
    account.ec2.scores["g5.xlarge"] = {"use1-az6": 9, "use1-az1": 3}
    assert compare(account).rows[0].zone == "us-east-1a"


def test_a_zone_without_eks_ranks_below_a_more_expensive_one(account: FakeAccount) -> None:
    account.ec2.zone_prices = {("g5.xlarge", "us-east-1a"): 0.6, ("g5.xlarge", "us-east-1b"): 0.1}
    rows = compare(account).rows
    assert [each.zone for each in rows] == ["us-east-1c", "us-east-1a", "us-east-1b"]
    assert rows[-1].eks is False and rows[-1].reason == "EKS does not support use1-az3"
    assert [each.second_zones for each in rows] == [("us-east-1a",), ("us-east-1c",), ("us-east-1c", "us-east-1a")]


def test_a_type_without_placement_group_ranks_below_a_more_expensive_one(account: FakeAccount) -> None:
    comparison = compare(account, "t3.xlarge", "g5.xlarge")
    assert comparison.rows[0].type == "g5.xlarge"
    assert row(comparison, "us-east-1a", "t3.xlarge").reason == "no cluster placement groups"


def test_a_short_quota_ranks_lower_with_the_missing_amount(account: FakeAccount) -> None:
    account.quotas.values = {"L-3819A6DF": 4.0}
    comparison = compare(account, "t3.xlarge", "g5.xlarge")
    lost = row(comparison, "us-east-1a", "g5.xlarge")
    assert comparison.rows[0].type == "t3.xlarge" and lost.nodes_today == 1 and lost.short == 28
    assert lost.reason == "spot quota 4 vCPUs, 0 in use, 32 needed: --request-quota requests more"


def test_a_type_without_spot_price_in_a_week_ranks_lower(account: FakeAccount) -> None:
    del account.ec2.spot_prices["g4dn.xlarge"]
    lost = row(compare(account, "g5.xlarge", "g4dn.xlarge"), "us-east-1a", "g4dn.xlarge")
    assert lost.reason == "no spot price in the last 7 days" and lost.busy is None


def test_only_spot_machines_that_run_are_counted_against_the_quota(account: FakeAccount) -> None:
    compare(account)
    (request,) = account.requests_of("DescribeInstances")
    assert {each["Name"]: each["Values"] for each in request["Filters"]} == {
        "instance-lifecycle": ["spot"],
        "instance-state-name": ["pending", "running"],
    }


def test_scores_are_requested_once_per_type_and_region_for_single_zones(account: FakeAccount) -> None:
    compare(account, "g5.xlarge", "g4dn.xlarge", nodes=5, regions=BOTH)
    requests = account.requests_of("GetSpotPlacementScores")
    asked = sorted((each["InstanceTypes"][0], *each["RegionNames"]) for each in requests)
    assert asked == sorted(itertools.product(["g4dn.xlarge", "g5.xlarge"], BOTH))
    assert all(each["SingleAvailabilityZone"] and each["TargetCapacity"] == 5 for each in requests)


def test_every_zone_of_many_regions_has_its_score_and_the_worst_ranks_last(account: FakeAccount) -> None:
    """AWS answers with the ten best zones of a request only."""
    ends = ("central-1", "central-2", "north-1", "south-1", "south-2", "west-1", "west-2", "west-3")
    regions = (*(f"eu-{end}" for end in ends), *BOTH)
    account.ec2.zones |= {region: {f"{region}{zone}": f"{region}-{zone}" for zone in "ab"} for region in regions[:8]}
    account.ec2.enabled |= dict.fromkeys(regions, True)
    account.ec2.scores["g5.xlarge"] = {"eu-west-2-b": 1}
    account.ec2.zone_prices["g5.xlarge", "eu-west-2b"] = 0.1
    rows = {each.zone: each for each in compare(account, regions=regions).rows}
    assert [each.score for each in rows.values()].count(3) == len(rows) - 1 and rows["eu-west-2b"].score == 1


def test_a_zone_that_aws_leaves_without_a_score_ranks_below_the_worst_score(account: FakeAccount) -> None:
    account.ec2.zones["us-east-1"] = TWO_ZONES
    worst = {"Region": "us-east-1", "AvailabilityZoneId": "use1-az1", "Score": 1}
    account.script("GetSpotPlacementScores", SpotPlacementScores=[worst])
    rows = compare(account).rows
    assert [each.zone for each in rows] == ["us-east-1b", "us-east-1a"]
    assert rows[1].reason == "placement score unknown, the first row has 1"


def test_capacity_blocks_of_a_type_are_not_its_price_on_demand(account: FakeAccount) -> None:
    account.pricing.capacity_blocks["g5.xlarge"] = 0.9
    assert row(compare(account), "us-east-1a").on_demand == 1.006


def test_calls_are_in_flight_together(account: FakeAccount) -> None:
    together = threading.Barrier(4, timeout=60)

    def answer(region: str, request: Mapping[str, Any]) -> Any:
        together.wait()  # breaks, and the price is lost, unless four calls wait here at once
        return account.pricing.get_products(region, request)

    account.answers["GetProducts"] = answer
    comparison = compare(account, "g5.xlarge", "g4dn.xlarge", "t3.xlarge")

    assert len(account.requests_of("GetProducts")) == 4 and comparison.rows[0].on_demand is not None
