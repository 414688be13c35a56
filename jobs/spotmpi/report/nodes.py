"""The nodes as they really were, and what is to be doubted about them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple

from spotmpi.report.figures import MISSING
from spotmpi.report.machines import AWS, NO_GROUP, Machine, NodePlacement
from spotmpi.report.section import Section
from spotmpi.report.trial_results import Measured

_HEADER = ("Nodes", "Type", "Market", "Zone", "Placement group", "Told by", "Variants")
_ALL = "all"


def section(runs: Sequence[Measured]) -> Section | None:
    """The machines behind all *runs*, like ones once, with who told what they are."""
    every = list(dict.fromkeys(run.variant for run in runs))
    kinds: dict[tuple[NodePlacement, str], list[tuple[str, str]]] = {}
    for run in runs:
        for machine in run.machines:
            kinds.setdefault((machine.place, machine.told), []).append((machine.name, run.variant))
    if all(place == NodePlacement() for place, _ in kinds):
        return None
    cells = tuple(_cells(place, told, used, every) for (place, told), used in kinds.items())
    failures = dict.fromkeys(machine.failure for run in runs for machine in run.machines if machine.failure)
    said = (
        "Distinct machines, those included that were taken away in the middle of a run.",
        *(f"AWS could not be asked: {failure}." for failure in failures),
    )
    return Section("The nodes", said, _HEADER, cells, len(_HEADER))


def doubts(runs: Sequence[Measured], probes: Sequence[Measured]) -> list[str]:
    """Machines that are not what the environment says, runs whose machines are apart, and untypical benchmarks."""
    machines = list({machine.name: machine for run in runs for machine in run.machines}.values())
    return [*_differences(machines), *_apart(runs), *_elsewhere(runs, probes)]


def _cells(place: NodePlacement, told: str, used: Sequence[tuple[str, str]], every: Sequence[str]) -> tuple[str, ...]:
    variants = list(dict.fromkeys(variant for _, variant in used))
    whose = _ALL if len(variants) == len(every) else "; ".join(variants)
    return (str(len({name for name, _ in used})), *(value or MISSING for value in astuple(place)), told, whose)


def _differences(machines: Iterable[Machine]) -> list[str]:
    found: dict[str, list[str]] = {}
    for machine in machines:
        for difference in _unlike(machine.claimed, machine.real) if machine.real else ():
            found.setdefault(difference, []).append(machine.name)
    return [f"By {AWS}, {_some(names)} {difference}." for difference, names in found.items()]


def _unlike(claimed: NodePlacement, real: NodePlacement) -> list[str]:
    found = []
    for what, said, is_so in (
        ("of type", claimed.type, real.type),
        ("in zone", claimed.zone, real.zone),
        ("of market", claimed.market, real.market),
    ):
        # Several node groups are told as "spot or on-demand".
        if said and is_so and is_so not in said.split(" or "):
            found.append(f"is {what} {is_so}, where the environment says {said}")
    grouped = real.placement_group not in (None, NO_GROUP)
    if claimed.placement_group == NO_GROUP and grouped:
        found.append(f"is in placement group {real.placement_group}, where the environment says that it is in none")
    if claimed.placement_group == "in one" and not grouped:
        found.append("is in no placement group, where the environment says that it is in one")
    return found


def _apart(runs: Iterable[Measured]) -> list[str]:
    """Nodes of one run in several zones or placement groups; the network between those is slower."""
    found = []
    for what, key in (("zones", "zone"), ("placement groups", "placement_group")):
        of_runs = [{getattr(machine.place, key) for machine in run.machines} - {None} for run in runs]
        spread = sorted(set().union(*(places for places in of_runs if len(places) > 1)))
        if spread:
            listed = ", ".join(spread)
            found.append(f"Some runs had nodes in several {what} ({listed}): the network between them is slower.")
    return found


def _elsewhere(runs: Iterable[Measured], probes: Iterable[Measured]) -> list[str]:
    used = {machine.name for run in runs for machine in run.machines}
    foreign = sorted({machine.name for probe in probes for machine in probe.machines} - used)
    if not foreign or not used:
        return []
    return [f"The micro-benchmarks also measured {_some(foreign)}, which no trial ran on."]


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"
