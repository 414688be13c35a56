"""Plans of the account whose answers a test scripts."""

from __future__ import annotations

from spotmpi.environments.zones.comparison import ZonePlan, zone_plan
from spotmpi.environments.zones.rows import Row
from tests.cloud.scripted_account import NOW, ScriptedAccount

BOTH = ("us-east-1", "us-west-2")


def planned(account: ScriptedAccount, *types: str, nodes: int = 8, regions: tuple[str, ...] = ()) -> ZonePlan:
    return zone_plan(types or ("g5.xlarge",), nodes, regions, account.aws, NOW)


def row(plan: ZonePlan, zone: str, machine: str = "g5.xlarge") -> Row:
    (found,) = (each for each in plan.rows if (each.zone, each.type) == (zone, machine))
    return found
