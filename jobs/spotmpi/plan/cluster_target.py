"""What a cluster offers a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from spotmpi.core.environment import NodeGroup
from spotmpi.plan.templates import Template


@dataclass(frozen=True)
class ClusterTarget:
    """What a cluster offers a run: where its objects go and what its pods need to land."""

    namespace: str
    image: str
    volume: str | None
    node_selector: dict[str, str]
    tolerations: tuple[dict[str, str], ...]
    spread: str  # "node" or "any"
    templates: tuple[Template, ...] = ()
    one_of: tuple[dict[str, str], ...] = ()  # labels of each of several groups, of which a node has to be in one
    node_cpus: int | None = None  # of the smallest node that a pod is to fill
    efa: int = 0  # Elastic Fabric Adapters of a node that a pod is to fill
    egress_denied: bool = False  # pods reach nothing that no NetworkPolicy allows, their peers included
    machine: tuple[tuple[str, str], ...] = ()  # what is known of the nodes beforehand, for the record


def on_groups(target: ClusterTarget, groups: Sequence[NodeGroup], zone: str) -> ClusterTarget:
    """*target* on the nodes of *groups*: their labels, taints and size."""
    labels = [dict(group.labels) for group in groups]
    common = {key: value for key, value in labels[0].items() if all(each.get(key) == value for each in labels)}
    taints = {(group.taint.key, group.taint.value, group.taint.effect) for group in groups}
    known = {
        "zone": zone,
        "node_group": _said(group.name for group in groups),
        "type": _said(group.type for group in groups),
        "market": _said(group.market for group in groups),
        "placement_group": _said("yes" if group.placement_group else "no" for group in groups),
    }
    return replace(
        target,
        node_selector=common,
        tolerations=tuple(
            {"key": key, "operator": "Equal", "value": value, "effect": effect} for key, value, effect in sorted(taints)
        ),
        one_of=tuple(labels) if len(groups) > 1 else (),
        node_cpus=min(group.vcpus for group in groups) if target.spread == "node" else None,
        efa=min(group.efa_interfaces for group in groups) if target.spread == "node" else 0,
        machine=tuple(known.items()),
    )


def _said(values: Iterable[str]) -> str:
    """The values of several groups, each told once."""
    return " or ".join(dict.fromkeys(values))
