"""What `spotmpi upgrade` prints: versions now and after it."""

from __future__ import annotations

from dataclasses import asdict

from spotmpi.cli.tables import show_table
from spotmpi.cli.view import say
from spotmpi.environments.upgrade import Change, UpgradePlan

_TITLES = ("PART", "NOW", "THEN", "STANDARD SUPPORT ENDS")


def show(plan: UpgradePlan) -> None:
    """Print a row per part; what EKS did not tell goes to stderr with its reason."""
    control_plane = plan.control_plane
    ends = [_ends(plan, version) or "?" for version in dict.fromkeys((control_plane.now, control_plane.then))]
    rows = [_row("control plane", control_plane, ", then ".join(ends))]
    rows += [_row(f"add-on {each.name}", each) for each in plan.addons]
    rows += [_row(f"node group {each.name}", each) for each in plan.node_groups]
    show_table(_TITLES, rows)
    if plan.unknown:
        say(f"which versions EKS offers, and until when, is unknown: {plan.unknown}; --to names a version")


def to_json(plan: UpgradePlan) -> dict[str, object]:
    """The plan as values for scripts; dates in ISO form, null where EKS did not tell."""
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
    return (name, change.now, change.then if change.moves else "stays", ends)
