"""The comparison of zones and types for spot nodes: `spotmpi zones` as functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from spotmpi.agent.hardware import INSTANCE_TYPE
from spotmpi.aws import quotas
from spotmpi.aws.account import Aws, open_account
from spotmpi.aws.concurrent_calls import CallFailure
from spotmpi.aws.errors import CallError, CloudError
from spotmpi.aws.prices import Design
from spotmpi.aws.quotas import Increase
from spotmpi.aws.zones import region_problem
from spotmpi.aws.zones import regions as all_regions
from spotmpi.core.errors import InputError, Problem, input_error
from spotmpi.environments.zones.market_data import MarketData, MarketQuery, fetch_market_data
from spotmpi.environments.zones.ranking import rank
from spotmpi.environments.zones.rows import Row, comparison_rows

MAX_NODES = 5000


@dataclass(frozen=True)
class ZoneComparison:
    """Types and zones, best first, with pending quota increases.

    `unknown` says which AWS calls failed and why, `queried_at` is when AWS was queried.
    """

    nodes: int
    rows: tuple[Row, ...]
    increases: tuple[Increase, ...]
    unknown: tuple[str, ...]
    queried_at: datetime


def compare_zones(
    types: Sequence[str],
    nodes: int,
    regions: Sequence[str],
    aws: Aws | None = None,
    now: datetime | None = None,
    design: Design | None = None,
) -> ZoneComparison:
    """Every zone of *regions* (default: the account's) for *nodes* machines of one of *types*, best first.

    The price of a whole environment is that of *design*, by default infra's. Changes nothing. InputError with every
    invalid type, region or count; CloudError where AWS can't be called at all.
    """
    now = now or datetime.now(UTC)
    types, regions = tuple(dict.fromkeys(types)), tuple(dict.fromkeys(regions))
    _require_well_formed(types, nodes, regions)
    aws = aws or open_account()
    if not regions:
        if aws.region is None:
            raise CloudError("no AWS region: give --region, or set AWS_REGION")
        regions = (aws.region,)
    _require_enabled(aws, regions)
    design = design or Design()
    market = fetch_market_data(aws, regions, MarketQuery(types, nodes, design, now))
    _require_existing(market, types, regions)
    rows = rank(comparison_rows(market, types, nodes, design))
    if not rows:
        failures = "; ".join(failure.detail for failure in market.failures)
        raise CloudError(failures or f"no Availability Zone in {', '.join(regions)}")
    return ZoneComparison(nodes, rows, _increases(market), tuple(failure.detail for failure in market.failures), now)


def required_quota(row: Row) -> int | None:
    """The quota in vCPUs that *row* needs, running machines included; None where the present quota suffices.

    InputError where the family has no known quota, CloudError where AWS did not tell enough to compute it.
    """
    if row.short == 0:
        return None
    if row.quota_code is None:
        raise input_error(
            "type", row.type, "the spot quota of this family is unknown; request it in the Service Quotas console"
        )
    if row.short is None or row.needed is None or row.running is None:
        reasons = ", ".join(f"{field}: {reason}" for field, reason in row.unknown.items())
        raise CloudError(f"cannot compute the quota that {row.type} needs in {row.region} ({reasons or 'unknown'})")
    return row.running + row.needed


def request_quota(row: Row, aws: Aws | None = None) -> Increase | None:
    """Request the quota that *row* lacks from AWS; None where the present quota suffices.

    CloudError where a request is already open or AWS refuses it.
    """
    vcpus = required_quota(row)
    if vcpus is None:
        return None
    assert row.quota_code is not None
    aws = aws or open_account()
    requested = quotas.request_increase(aws, row.region, row.quota_code, vcpus)
    if requested is None:
        raise CloudError(
            f"a request for quota {row.quota_code} in {row.region} is already open; AWS accepts one at a time"
        )
    return requested


def _require_well_formed(types: Sequence[str], nodes: int, regions: Sequence[str]) -> None:
    problems = [
        Problem("--types", each, "not an EC2 instance type; write it like g5.xlarge")
        for each in types
        if not INSTANCE_TYPE.fullmatch(each)
    ]
    if not types:
        problems.append(Problem("--types", None, "give at least one instance type, such as g5.xlarge"))
    if not 1 <= nodes <= MAX_NODES:
        problems.append(Problem("--nodes", nodes, f"give 1 to {MAX_NODES}"))
    problems += [Problem("--region", each, problem) for each in regions if (problem := region_problem(each))]
    if problems:
        raise InputError(problems)


def _require_enabled(aws: Aws, regions: Sequence[str]) -> None:
    try:
        enabled = all_regions(aws)
    except CallError:
        return  # calls to a region that isn't enabled fail by themselves
    problems = [Problem("--region", each, "no such AWS region") for each in regions if each not in enabled]
    problems += [
        Problem("--region", each, f"not enabled in this account: `aws account enable-region --region-name {each}`")
        for each in regions
        if not enabled.get(each, True)
    ]
    if problems:
        raise InputError(problems)


def _require_existing(market: MarketData, types: Sequence[str], regions: Sequence[str]) -> None:
    known = [data.machines for data in market.regions if not isinstance(data.machines, CallFailure)]
    if len(known) < len(market.regions):
        return
    missing = [each for each in types if not any(each in machines for machines in known)]
    if missing:
        where = ", ".join(regions)
        raise InputError([Problem("--types", each, f"no such EC2 instance type in {where}") for each in missing])


def _increases(market: MarketData) -> tuple[Increase, ...]:
    answers = [each for data in market.regions for each in data.increases.values() if not isinstance(each, CallFailure)]
    return tuple(sorted((each for answer in answers for each in answer), key=lambda each: each.created))
