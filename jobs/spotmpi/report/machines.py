"""The machines that a run was on: what its environment claims of each, and what AWS said where it was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spotmpi.core.names import RunPaths
from spotmpi.runs import reader
from spotmpi.study import placement

AWS = "AWS"
NO_GROUP = "none"
_CLAIMED = "the environment"
_BY_PODS = "its pods"
_GROUPS = {"yes": "in one", "no": NO_GROUP}


@dataclass(frozen=True)
class NodePlacement:
    """Type, market, zone and placement group of a machine; None is not told. A claim only says whether ``in one``."""

    type: str | None = None
    market: str | None = None
    zone: str | None = None
    placement_group: str | None = None


@dataclass(frozen=True)
class Machine:
    """One machine; ``real`` is what AWS said of it, None where it did not; ``told`` is who told the best that is known.

    ``failure`` is what kept AWS from being asked.
    """

    name: str
    claimed: NodePlacement
    real: NodePlacement | None
    told: str
    failure: str | None = None

    @property
    def place(self) -> NodePlacement:
        """The best that is known."""
        return self.real or self.claimed


def read(paths: RunPaths, hardware: Sequence[Mapping[str, Any]]) -> tuple[Machine, ...]:
    """The machines of all attempts; *hardware* are the facts of its nodes in the last one, like ones once."""
    asked, names = placement.read(paths), _names(paths)
    return tuple(
        _machine(name, group, asked)
        for group in hardware
        for node in group.get("nodes", [])
        for name in names.get(node, [f"node {node}"])
    )


def _names(paths: RunPaths) -> dict[int, list[str]]:
    """By node index, over all attempts."""
    found: dict[int, dict[str, None]] = {}
    for event in reader.lines(paths.events):
        for each in event.get("machines") or []:
            if each.get("name"):
                found.setdefault(each["node"], {})[each["name"]] = None
    return {node: list(names) for node, names in found.items()}


def _machine(name: str, facts: Mapping[str, Any], asked: Mapping[str, Any]) -> Machine:
    claimed = NodePlacement(
        facts.get("type"),
        facts.get("market"),
        facts.get("zone"),
        _GROUPS.get(facts.get("placement_group", ""), facts.get("placement_group")),
    )
    said = asked["nodes"].get(name)
    if said:
        real = NodePlacement(said["type"], said["market"], said["zone"], said["placement_group"])
        return Machine(f"{name} ({said['id']})", claimed, real, AWS)
    if claimed.market is None:
        return Machine(name, claimed, None, _BY_PODS)
    return Machine(name, claimed, None, f"{_CLAIMED}, not asked of AWS", asked["failure"])
