"""Comparisons of zones in the account whose answers a test scripts."""

from __future__ import annotations

from spotmpi.environments.zones.comparison import ZoneComparison, compare_zones
from spotmpi.environments.zones.rows import Row
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.account.market import NOW

BOTH = ("us-east-1", "us-west-2")


def compare(account: FakeAccount, *types: str, nodes: int = 8, regions: tuple[str, ...] = ()) -> ZoneComparison:
    return compare_zones(types or ("g5.xlarge",), nodes, regions, account, NOW)


def row(comparison: ZoneComparison, zone: str, machine: str = "g5.xlarge") -> Row:
    (match,) = (each for each in comparison.rows if (each.zone, each.type) == (zone, machine))
    return match
