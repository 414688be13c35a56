"""`spotmpi zones`: which zone and type, at what price, and whether the quota allows it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spotmpi.cli.options import Json
from spotmpi.core.wording import counted

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from spotmpi.aws.quotas import Increase
    from spotmpi.environments.zones.comparison import ZoneComparison
    from spotmpi.environments.zones.rows import Row

_WIDTH = 170  # columns of a file or a pipe, so that no line is wrapped


@dataclass(frozen=True)
class RowOptions:
    """Options that choose a row of the comparison, and say what is done with it."""

    row: Annotated[int, typer.Option("--row", help="The row that --write and --request-quota use.")] = 1
    write: Annotated[
        str | None,
        typer.Option("--write", help="Write region, zone and type of the row to a stack's file.", metavar="STACK"),
    ] = None
    group: Annotated[str | None, typer.Option("--group", help="The node group of the stack that gets the type.")] = None
    request: Annotated[bool, typer.Option("--request-quota", help="Request the quota that the row lacks from AWS.")] = (
        False
    )
    yes: Annotated[bool, typer.Option("--yes", help="Request the quota without confirmation.")] = False


def command(
    types: Annotated[str, typer.Option("--types", help="EC2 instance types to compare, with commas.", metavar="A,B")],
    nodes: Annotated[int, typer.Option("--nodes", "-n", help="How many nodes are needed.")],
    region: Annotated[
        str | None, typer.Option("--region", help="AWS regions, with commas (default: the one of your AWS login).")
    ] = None,
    options: RowOptions = RowOptions(),
    as_json: Json = False,
) -> None:
    """Compare zones and types for spot nodes: price, placement score, quota, and why each ranks below the first."""
    from spotmpi.environments.stack_file import read_stack
    from spotmpi.environments.zones.comparison import compare_zones

    design = read_stack(options.write).design if options.write else None
    comparison = compare_zones(_split_list(types), nodes, _split_list(region or ""), design=design)
    if not as_json:
        show(comparison)
    increase = request_increase(comparison, options.row, options.yes) if options.request else None
    path = write_row(comparison, options.row, options.write, options.group) if options.write else None
    if as_json:
        _show_json(comparison, increase, path)


def _split_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def request_increase(comparison: ZoneComparison, number: int, yes: bool) -> Increase | None:
    """Request the quota that a row lacks, after confirmation; None where it suffices or a request is pending."""
    from spotmpi.aws.quotas import NAMES
    from spotmpi.cli.environment_commands import confirm
    from spotmpi.core.wording import echo
    from spotmpi.environments.zones.comparison import request_quota, required_quota

    row = _row(comparison, number)
    vcpus = required_quota(row)
    if vcpus is None:
        need = f"{comparison.nodes} x {row.type} in {row.region}"
        echo(f"the quota suffices for {need}: {counted(row.quota or 0, 'vCPU')}, {row.running} in use")
        return None
    for each in comparison.increases:
        if (each.region, each.code) == (row.region, row.quota_code):
            echo(
                f"a request for {counted(each.vcpus, 'vCPU')} is pending ({each.status}, request {each.id}); "
                "AWS accepts one at a time"
            )
            return None
    what = f"{NAMES[row.quota_code or '']} in {row.region}: {row.quota} -> {counted(vcpus, 'vCPU')}"
    if not confirm(f"Request {what}?", yes):
        raise typer.Abort
    increase = request_quota(row)
    echo(f"requested {what}" + (f" (request {increase.id}, {increase.status})" if increase else ""))
    return increase


def write_row(comparison: ZoneComparison, number: int, stack: str, group: str | None) -> Path:
    """Write a row to a stack's file, and print what changed and what still has to be changed by hand."""
    from spotmpi.core.wording import echo
    from spotmpi.environments.stack_file import read_stack, write_choice

    row = _row(comparison, number)
    reason = row.reason or f"best of {len(comparison.rows)}"
    before = read_stack(stack)
    path = write_choice(stack, row, group)
    after = read_stack(stack)
    echo(f"{path}: region {row.region}, zone {row.zone}, type {row.type} (row {number}: {reason})")
    if after.second_zone not in (None, before.second_zone):
        echo(f"second zone set to {after.second_zone}: EKS needs a second one, and supports this one")
    if before.zone not in (None, row.zone):
        echo(f"the first zone was {before.zone}: if {stack} is already built, `up` refuses another one")
    if before.keep:
        echo(f"its storage is in the stack {stack}-data: set the same first zone in that stack's file")
    for each in after.groups:
        if each.type == row.type and each.max is not None and each.max < comparison.nodes:
            needed = counted(comparison.nodes, "node")
            echo(f"group {each.name} has max {each.max}: raise it to {comparison.nodes} for {needed}")
    return path


def _row(comparison: ZoneComparison, number: int) -> Row:
    from spotmpi.core.errors import input_error

    if not 1 <= number <= len(comparison.rows):
        raise input_error("--row", number, f"give a row from 1 to {len(comparison.rows)}")
    return comparison.rows[number - 1]


def show(comparison: ZoneComparison) -> None:
    """Print the rows, why each ranks below the first, and pending quota requests; on stderr what is unknown."""
    from spotmpi.aws import prices, zones
    from spotmpi.core.wording import echo

    _print_tables(comparison)
    for number, row in enumerate(comparison.rows[1:], 2):
        print(f"{number:>3}  {row.type} in {row.zone}: {row.reason}")
    for increase in comparison.increases:
        print(_pending(increase, comparison.queried_at))
    first = comparison.rows[0]
    if first.short:
        lack = f"{counted(first.short, 'vCPU')} of spot quota for {counted(comparison.nodes, 'node')}"
        print(f"Row 1 lacks {lack}: --request-quota requests them.")
    busy = "unknown" if first.busy is None else f"${first.busy:.2f}/h with {counted(comparison.nodes, 'busy node')}"
    idle = "unknown" if first.idle is None else f"${first.idle:.2f}/h idle"
    print(f"A whole environment at row 1: {idle}, {busy} ({prices.ENVIRONMENT_SOURCE}).")
    if first.extended_support and first.idle is not None:
        more = prices.EXTENDED_SUPPORT - prices.CONTROL_PLANE
        version = f"Kubernetes {first.extended_support}, which EKS has in extended support"
        print(f"${more:.2f}/h of that for {version}: set a newer cluster.version, or `spotmpi upgrade` what is built.")
    print(f"One zone storage: {zones.STORAGE_SOURCE}.")
    print("Nodes today: what the quota allows; capacity is never guaranteed.")
    for line in comparison.unknown:
        echo(line)


def _print_tables(comparison: ZoneComparison) -> None:
    """One table, or two where the terminal is too narrow for all columns."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)
    others = [title for title in _COLUMNS if title not in _NARROW]
    for titles in (_NARROW, others) if console.width < _WIDTH else (list(_COLUMNS),):
        console.print(_table(comparison, titles))


def _table(comparison: ZoneComparison, titles: Sequence[str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("#", justify="right")
    for title in titles:
        table.add_column(title, overflow="fold")
    for number, row in enumerate(comparison.rows, 1):
        table.add_row(str(number), *(_COLUMNS[title](row) for title in titles))
    return table


def _show_json(comparison: ZoneComparison, requested: Increase | None, written: Path | None) -> None:
    """Print the comparison as one JSON object; null is unknown, and `unknown` has the reason."""
    from dataclasses import asdict

    from spotmpi.aws import prices, zones

    values = asdict(comparison) | {
        "sources": {
            "environment": prices.ENVIRONMENT_SOURCE,
            "one_zone": zones.STORAGE_SOURCE,
            "eks": zones.EKS_SOURCE,
        },
        "requested": asdict(requested) if requested else None,
        "written": str(written) if written else None,
    }
    print(json.dumps(values, default=lambda value: value.isoformat() if isinstance(value, datetime) else str(value)))


def _pending(increase: Increase, now: datetime) -> str:
    from spotmpi.aws.quotas import NAMES

    age = now - increase.created
    ago = f"{age.days} days" if age.days >= 2 else counted(max(0, int(age.total_seconds() // 3600)), "hour")
    name = NAMES.get(increase.code, increase.code)
    request = f"{increase.status}, request {increase.id}"
    return f"Requested {ago} ago: {counted(increase.vcpus, 'vCPU')} of {name} in {increase.region} ({request})."


def _cell(row: Row, source: str, value: Any, text: Callable[[Any], str] = str) -> str:
    """A value as text, or why it is unknown; *source* is the key of the reason in `unknown`."""
    return row.unknown.get(source, "?") if value is None else text(value)


def _dollars(row: Row, field: str) -> str:
    return _cell(row, field, getattr(row, field), "${:.4f}".format)


def _yes_or_no(row: Row, field: str, source: str) -> str:
    return _cell(row, source, getattr(row, field), lambda value: "yes" if value else "no")


def _price_range(row: Row) -> str:
    if row.spot_low is None or row.spot_high is None:
        return row.unknown.get("spot", "?")
    return f"{row.spot_low:.4f}-{row.spot_high:.4f}"


def _quota(row: Row) -> str:
    limit = _cell(row, "quota", row.quota)
    used = _cell(row, "running", row.running)
    return f"{_cell(row, 'machine', row.needed)} of {limit} - {used}"


# What fits into 80 columns beside the number; the rest follows in a second table.
_NARROW = ["type", "zone", "offered", "score", "spot $/h", "7 days", "busy $/h"]
_COLUMNS: dict[str, Callable[[Row], str]] = {
    "type": lambda row: row.type,
    "zone": lambda row: row.zone,
    "offered": lambda row: _yes_or_no(row, "offered", "offered"),
    "spot $/h": lambda row: _dollars(row, "spot"),
    "7 days": _price_range,
    "score": lambda row: _cell(row, "score", row.score),
    "on demand": lambda row: _dollars(row, "on_demand"),
    "saving": lambda row: _cell(row, "on_demand", row.saving, "{:.0%}".format),
    "vCPUs of quota - running": _quota,
    "nodes today": lambda row: _cell(row, "quota", row.nodes_today),
    "group": lambda row: _yes_or_no(row, "placement_group", "machine"),
    "EFA": lambda row: _yes_or_no(row, "efa", "machine"),
    "one zone": lambda row: _yes_or_no(row, "one_zone", "one_zone"),
    "idle $/h": lambda row: _cell(row, "idle", row.idle, "{:.2f}".format),
    "busy $/h": lambda row: _cell(row, "idle" if row.idle is None else "spot", row.busy, "{:.2f}".format),
}
