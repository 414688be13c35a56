"""`spotmpi upgrade`: the next Kubernetes version for an environment, its add-ons and its nodes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from spotmpi.cli.options import Json, Stack, Yes

if TYPE_CHECKING:
    from spotmpi.environments.upgrade import Change, UpgradePlan

_TITLES = ("PART", "NOW", "THEN", "STANDARD SUPPORT ENDS")


def command(
    stack: Stack,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", help="Kubernetes version (default: the next one; the current one only renews add-ons and nodes)."
        ),
    ] = None,
    no_nodes: Annotated[
        bool, typer.Option("--no-nodes", help="Leave the nodes and the runs on them as they are.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show versions and Pulumi's preview, and change nothing.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Upgrade control plane, add-ons and idle nodes by one minor version, after a preview; repeat to continue."""
    from spotmpi.cli.environment_commands import open_dependencies
    from spotmpi.environments.stack_file import read_stack
    from spotmpi.environments.upgrade import UpgradeOptions, upgrade

    options = UpgradeOptions(to, not no_nodes, dry_run)
    plan = upgrade(stack, open_dependencies(stack, yes), options, (lambda plan: None) if as_json else _show)
    changed = plan.changes_cluster or bool(plan.replaced_groups)
    if as_json:
        print(json.dumps(_to_json(plan) | {"changed": changed and not dry_run}))
    elif not changed:
        print(f"{plan.environment.name}: nothing to upgrade")
    elif not dry_run:
        print(f"{plan.environment.name} is upgraded; commit {read_stack(stack).path}, which has the new versions")


def _show(plan: UpgradePlan) -> None:
    """Print a row per part; a reason why offered versions are unknown goes to stderr."""
    from spotmpi.cli.tables import show_table
    from spotmpi.core.wording import echo

    control_plane = plan.control_plane
    support_ends = [_ends(plan, version) or "?" for version in dict.fromkeys((control_plane.now, control_plane.then))]
    rows = [_row("control plane", control_plane, ", then ".join(support_ends))]
    rows += [_row(f"add-on {each.name}", each) for each in plan.addons]
    rows += [_row(f"node group {each.name}", each) for each in plan.node_groups]
    show_table(_TITLES, rows)
    if plan.unknown:
        echo(f"the versions that EKS offers are unknown: {plan.unknown}; set one with --to")


def _to_json(plan: UpgradePlan) -> dict[str, object]:
    """The plan as values for scripts; dates in ISO form, null where unknown."""
    from dataclasses import asdict

    known = dict.fromkeys((plan.control_plane.now, plan.control_plane.then, *plan.offered))
    return {
        "environment": plan.environment.name,
        "region": plan.environment.region,
        "control_plane": {"now": plan.control_plane.now, "then": plan.control_plane.then},
        "standard_support_ends": {version: _ends(plan, version) for version in known},
        "addons": [asdict(each) for each in plan.addons],
        "node_groups": [asdict(each) for each in plan.node_groups],
        "unknown": plan.unknown or None,
    }


def _ends(plan: UpgradePlan, version: str) -> str | None:
    offer = plan.offered.get(version)
    return offer.standard_support_ends.isoformat() if offer and offer.standard_support_ends else None


def _row(name: str, change: Change, ends: str = "") -> tuple[str, ...]:
    return (name, change.now, change.then if change.changes else "unchanged", ends)
