"""The ranking of rows: one list of criteria, of which the first that differs decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from spotmpi.core.wording import counted
from spotmpi.environments.zones.rows import Row


@dataclass(frozen=True)
class _Criterion:
    rank: Callable[[Row], Any]  # smaller is better
    explain: Callable[[Row, Row], str]  # why this row ranks below the first one


def rank(rows: Iterable[Row]) -> tuple[Row, ...]:
    """*rows* from best to worst, each but the first with the reason why it ranks below the first."""
    ordered = sorted(rows, key=lambda row: [criterion.rank(row) for criterion in _CRITERIA])
    return tuple(replace(row, reason=_reason(row, ordered[0]) if row is not ordered[0] else "") for row in ordered)


def usable(row: Row) -> bool:
    """Whether a stack may use the row: the zone offers the type and EKS supports the zone, as far as known."""
    return row.offered is not False and row.eks is not False


def _reason(row: Row, first: Row) -> str:
    for criterion in _CRITERIA:
        if criterion.rank(row) != criterion.rank(first):
            return criterion.explain(row, first)
    return "equal to the first row"


def _band(row: Row) -> int:
    # Scores of neighbouring zones change by a point or two within the hour: only a clear difference beats a price.
    if row.score is None:  # the call failed, or AWS scores the zone below all others
        return 1 if "score" in row.unknown else 3
    return 0 if row.score >= 7 else 1 if row.score >= 4 else 2


def _more_expensive(row: Row, first: Row) -> str:
    assert row.spot is not None and first.spot is not None
    more = row.spot - first.spot
    share = f" ({more / first.spot:+.0%})" if first.spot else ""
    return f"${more:.4f}/h more per node{share}"


def _not_offered(row: Row, first: Row) -> str:
    if row.offered is None:
        return f"unknown whether {row.zone} offers it: {row.unknown.get('offered', 'no answer')}"
    return f"{row.type} is not offered in {row.zone}"


def _no_price(row: Row, first: Row) -> str:
    return f"spot price unknown: {row.unknown['spot']}" if "spot" in row.unknown else "no spot price in the last 7 days"


def _quota(row: Row, first: Row) -> str:
    quota = f"spot quota {counted(row.quota or 0, 'vCPU')}"
    return f"{quota}, {row.running} in use, {row.needed} needed: --request-quota requests more"


def _score(row: Row, first: Row) -> str:
    own, best = ("unknown" if each is None else str(each) for each in (row.score, first.score))
    return f"placement score {own}, the first row has {best}"


_CRITERIA = (
    _Criterion(lambda row: {True: 0, None: 1, False: 2}[row.offered], _not_offered),
    _Criterion(lambda row: row.eks is False, lambda row, first: f"EKS does not support {row.zone_id}"),
    _Criterion(lambda row: row.spot is None, _no_price),
    _Criterion(lambda row: bool(row.short), _quota),
    _Criterion(lambda row: row.placement_group is False, lambda row, first: "no cluster placement groups"),
    _Criterion(lambda row: row.one_zone is False, lambda row, first: "no EFS One Zone storage in the zone"),
    _Criterion(lambda row: _band(row), _score),
    _Criterion(lambda row: row.spot or 0, _more_expensive),
    _Criterion(
        lambda row: (row.spot_high or 0) - (row.spot_low or 0),
        lambda row, first: "its price varied more in 7 days",
    ),
    _Criterion(lambda row: -(row.score or 0), _score),
    _Criterion(lambda row: (row.region, row.zone, row.type), lambda row, first: "equal; ordered by name"),
)
