"""A zone plan as a table on stdout, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotmpi.aws import eks_zones, environment_price, one_zone_storage
from spotmpi.aws.quotas import NAMES, Increase
from spotmpi.cli.view import say
from spotmpi.environments.zones.comparison import ZonePlan
from spotmpi.environments.zones.rows import Row

if TYPE_CHECKING:
    from rich.table import Table

_PAGE = 170  # columns where no terminal says how many there are: a file or a pipe gets whole lines


def show(plan: ZonePlan) -> None:
    """Print the rows, why each but the first lost, open quota requests, and on stderr what stayed unknown."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PAGE)
    narrow = console.width < _PAGE
    for columns in (_SHORT, [each for each in _COLUMNS if each not in _SHORT]) if narrow else (list(_COLUMNS),):
        console.print(_table(plan, columns))
    for number, row in enumerate(plan.rows[1:], 2):
        print(f"{number:>3}  {row.type} in {row.zone} lost: {row.lost}")
    for increase in plan.increases:
        print(_asked(increase, plan.asked))
    first = plan.rows[0]
    if first.short:
        print(f"Row 1 lacks {first.short} vCPUs of spot quota for {plan.nodes} nodes: --request-quota asks for them.")
    busy = "unknown" if first.busy is None else f"${first.busy:.2f}/h with {plan.nodes} nodes at work"
    print(f"A whole environment at row 1: ${first.idle:.2f}/h idle, {busy} ({environment_price.SOURCE}).")
    print(
        f"One zone storage: {one_zone_storage.SOURCE}. Nodes today: what the quota allows; capacity is never promised."
    )
    for line in plan.unknown:
        say(line)


def _table(plan: ZonePlan, columns: Sequence[str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("#", justify="right")
    for title in columns:
        table.add_column(title, overflow="fold")
    for number, row in enumerate(plan.rows, 1):
        table.add_row(str(number), *(_COLUMNS[title](row) for title in columns))
    return table


def show_json(plan: ZonePlan, requested: Increase | None, written: Path | None) -> None:
    """Print the whole plan as one JSON object; null is unknown, and `gaps` tells why."""
    values = asdict(plan) | {
        "sources": {
            "environment": environment_price.SOURCE,
            "one_zone": one_zone_storage.SOURCE,
            "eks": eks_zones.SOURCE,
        },
        "requested": asdict(requested) if requested else None,
        "written": str(written) if written else None,
    }
    print(json.dumps(values, default=_plain))


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _asked(increase: Increase, now: datetime) -> str:
    age = now - increase.created
    old = f"{age.days} days" if age.days >= 2 else f"{max(0, int(age.total_seconds() // 3600))} hours"
    name = NAMES.get(increase.code, increase.code)
    which = f"{increase.status}, request {increase.id}"
    return f"Asked for {old} ago: {increase.vcpus} vCPUs of {name} in {increase.region} ({which})."


def _money(row: Row, field: str) -> str:
    return _known(row, field, getattr(row, field), "${:.4f}".format)


def _known(row: Row, field: str, value: Any, show: Callable[[Any], str] = str) -> str:
    return row.gaps.get(field, "?") if value is None else show(value)


def _yes(row: Row, field: str, source: str) -> str:
    return _known(row, source, getattr(row, field), lambda value: "yes" if value else "no")


def _range(row: Row) -> str:
    if row.spot_low is None or row.spot_high is None:
        return row.gaps.get("spot", "?")
    return f"{row.spot_low:.4f}-{row.spot_high:.4f}"


def _quota(row: Row) -> str:
    limit = _known(row, "quota", row.quota)
    used = _known(row, "running", row.running)
    return f"{_known(row, 'machine', row.needed)} of {limit} - {used}"


# What fits 80 columns beside the number; the rest follows in a second table there.
_SHORT = ["type", "zone", "offered", "score", "spot $/h", "7 days", "busy $/h"]
_COLUMNS: dict[str, Callable[[Row], str]] = {
    "type": lambda row: row.type,
    "zone": lambda row: row.zone,
    "offered": lambda row: _yes(row, "offered", "offered"),
    "spot $/h": lambda row: _money(row, "spot"),
    "7 days": _range,
    "score": lambda row: _known(row, "score", row.score),
    "on demand": lambda row: _money(row, "on_demand"),
    "saving": lambda row: _known(row, "on_demand", row.saving, "{:.0%}".format),
    "vCPUs of quota - running": _quota,
    "nodes today": lambda row: _known(row, "quota", row.nodes_today),
    "group": lambda row: _yes(row, "placement_group", "machine"),
    "EFA": lambda row: _yes(row, "efa", "machine"),
    "one zone": lambda row: _yes(row, "one_zone", "one_zone"),
    "idle $/h": lambda row: f"{row.idle:.2f}",
    "busy $/h": lambda row: _known(row, "spot", row.busy, "{:.2f}".format),
}
