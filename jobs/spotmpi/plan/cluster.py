"""The target of a run on a cluster: where its objects go, and on which nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a local run starts faster without them
    from spotmpi.core.environment import NodeGroup
    from spotmpi.plan.templates import Template


@dataclass(frozen=True)
class ClusterTarget:
    """Where a run's objects go, and what its pods need to be scheduled."""

    namespace: str
    image: str
    volume: str | None
    node_selector: dict[str, str]
    tolerations: tuple[dict[str, str], ...]
    exclusive: bool  # each pod has a node to itself
    templates: tuple[Template, ...] = ()
    one_of: tuple[dict[str, str], ...] = ()  # labels of several node groups; a node has to be in one of them
    node_cpus: int | None = None  # of the smallest node, where a pod is to fill its node
    efa: int = 0  # Elastic Fabric Adapters of a node, where a pod is to fill its node
    egress_denied: bool = False  # pods reach only what a NetworkPolicy allows, even their peers
    job_per_node: bool = False  # JobSet restarts the Job of a lost node alone
    machine: tuple[tuple[str, str], ...] = ()  # what is known of the nodes before they start, for the record
    order: tuple[ClusterTarget, ...] = ()  # where a gang may be placed on several node groups: the target on each
    placement_account: str = ""  # the service account that moves it


def on_groups(target: ClusterTarget, groups: Sequence[NodeGroup]) -> ClusterTarget:
    """*target* on the nodes of *groups*: their labels, taints and size."""
    labels = [dict(group.labels) for group in groups]
    common = {key: value for key, value in labels[0].items() if all(each.get(key) == value for each in labels)}
    taints = {(group.taint.key, group.taint.value, group.taint.effect) for group in groups}
    known = {
        "zone": _distinct(group.zone for group in groups),
        "node_group": _distinct(group.name for group in groups),
        "type": _distinct(group.type for group in groups),
        "market": _distinct(group.market for group in groups),
        "placement_group": _distinct("yes" if group.placement_group else "no" for group in groups),
    }
    return replace(
        target,
        node_selector=common,
        tolerations=tuple(
            {"key": key, "operator": "Equal", "value": value, "effect": effect} for key, value, effect in sorted(taints)
        ),
        one_of=tuple(labels) if len(groups) > 1 else (),
        node_cpus=min(group.vcpus for group in groups) if target.exclusive else None,
        efa=min(group.efa_interfaces for group in groups) if target.exclusive else 0,
        machine=tuple(known.items()),
    )


def in_order(target: ClusterTarget, groups: Sequence[NodeGroup]) -> ClusterTarget:
    """*target* on the first of *groups*, from where a gang can be moved to the others: its pods request the same."""
    together = on_groups(target, groups)
    order = tuple(
        replace(on_groups(target, [group]), node_cpus=together.node_cpus, efa=together.efa) for group in groups
    )
    return replace(order[0], order=order)


def beginning_on(target: ClusterTarget, group: str) -> ClusterTarget:
    """*target* with the one on this node group as the first of its order."""
    first = next(each for each in target.order if dict(each.machine)["node_group"] == group)
    return replace(first, order=(first, *(each for each in target.order if each is not first)))


def _distinct(values: Iterable[str]) -> str:
    """The distinct values of several groups."""
    return " or ".join(dict.fromkeys(values))
