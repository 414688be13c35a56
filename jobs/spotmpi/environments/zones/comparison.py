"""Where to build: `spotmpi plan` as functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from spotmpi.aws import quotas
from spotmpi.aws.account import Aws, open_account
from spotmpi.aws.concurrent_calls import CallFailure
from spotmpi.aws.errors import CallFailed, CloudError
from spotmpi.aws.machine_types import regions as all_regions
from spotmpi.aws.quotas import Increase
from spotmpi.core.errors import InputError, Problem, input_error
from spotmpi.environments.zones.ranking import ranked
from spotmpi.environments.zones.rows import Row, rows_of
from spotmpi.environments.zones.survey import Survey, survey

_TYPE = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+")
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
MOST_NODES = 5000


@dataclass(frozen=True)
class ZonePlan:
    """The zones of the regions for some types, best first, with what was not learnt and what is asked for."""

    nodes: int
    rows: tuple[Row, ...]
    increases: tuple[Increase, ...]
    unknown: tuple[str, ...]
    asked: datetime


def zone_plan(
    types: Sequence[str],
    nodes: int,
    regions: Sequence[str] = (),
    aws: Aws | None = None,
    now: datetime | None = None,
) -> ZonePlan:
    """Every zone of *regions* (default: the account's) for *nodes* machines of one of *types*, best first.

    Nothing is chosen or changed. InputError with every wrong type, region or count; CloudError where AWS can't be
    asked at all.
    """
    now = now or datetime.now(UTC)
    types, regions = tuple(dict.fromkeys(types)), tuple(dict.fromkeys(regions))
    _require_well_formed(types, nodes, regions)
    aws = aws or open_account()
    if not regions:
        if aws.region is None:
            raise CloudError("no AWS region: name it with --region, or set AWS_REGION")
        regions = (aws.region,)
    _require_enabled(aws, regions)
    found = survey(aws, regions, types, nodes, now)
    _require_existing(found, types, regions)
    rows = ranked(rows_of(found, types, nodes))
    if not rows:
        raise CloudError("; ".join(gap.detail for gap in found.gaps) or f"no Availability Zone in {', '.join(regions)}")
    return ZonePlan(nodes, rows, _increases(found), tuple(gap.detail for gap in found.gaps), now)


def quota_to_ask_for(row: Row) -> int | None:
    """The quota in vCPUs that *row* needs, all that runs included; None where the quota suffices.

    InputError where the need is unknown.
    """
    if row.short == 0:
        return None
    if row.quota_code is None:
        raise input_error(
            "type", row.type, "no spot quota is known for this family; ask for it in the Service Quotas console"
        )
    if row.short is None or row.needed is None or row.running is None:
        reasons = ", ".join(f"{field}: {reason}" for field, reason in row.gaps.items())
        raise CloudError(f"can't tell how much quota {row.type} needs in {row.region} ({reasons or 'unknown'})")
    return row.running + row.needed


def request_quota(row: Row, aws: Aws | None = None) -> Increase | None:
    """Asks AWS for the quota that *row* lacks; None where nothing is lacking.

    CloudError where a request is open already or AWS refuses.
    """
    vcpus = quota_to_ask_for(row)
    if vcpus is None:
        return None
    assert row.quota_code is not None
    aws = aws or open_account()
    try:
        return quotas.ask_for(aws, row.region, row.quota_code, vcpus)
    except CallFailed as error:
        if error.code != "ResourceAlreadyExistsException":
            raise
        raise CloudError(
            f"a request for quota {row.quota_code} in {row.region} is open already; AWS takes one at a time"
        ) from error


def _require_well_formed(types: Sequence[str], nodes: int, regions: Sequence[str]) -> None:
    problems = [
        Problem("--types", each, "is not an EC2 instance type; write it like g5.xlarge")
        for each in types
        if not _TYPE.fullmatch(each)
    ]
    if not types:
        problems.append(Problem("--types", None, "name at least one instance type, such as g5.xlarge"))
    if not 1 <= nodes <= MOST_NODES:
        problems.append(Problem("--nodes", nodes, f"say 1 to {MOST_NODES}"))
    problems += [
        Problem("--region", each, "is not an AWS region; write it like us-east-1")
        for each in regions
        if not _REGION.fullmatch(each)
    ]
    if problems:
        raise InputError(problems)


def _require_enabled(aws: Aws, regions: Sequence[str]) -> None:
    try:
        enabled = all_regions(aws)
    except CallFailed:
        return  # a region that isn't enabled then refuses its own calls
    problems = [Problem("--region", each, "there is no such AWS region") for each in regions if each not in enabled]
    problems += [
        Problem("--region", each, f"not enabled in this account: `aws account enable-region --region-name {each}`")
        for each in regions
        if not enabled.get(each, True)
    ]
    if problems:
        raise InputError(problems)


def _require_existing(found: Survey, types: Sequence[str], regions: Sequence[str]) -> None:
    known = [facts.machines for facts in found.regions if not isinstance(facts.machines, CallFailure)]
    if len(known) < len(found.regions):
        return
    missing = [each for each in types if not any(each in machines for machines in known)]
    if missing:
        where = ", ".join(regions)
        raise InputError(
            [Problem("--types", each, f"there is no such EC2 instance type in {where}") for each in missing]
        )


def _increases(found: Survey) -> tuple[Increase, ...]:
    asked = [each for facts in found.regions for each in facts.increases.values() if not isinstance(each, CallFailure)]
    return tuple(sorted((each for some in asked for each in some), key=lambda each: each.created))
