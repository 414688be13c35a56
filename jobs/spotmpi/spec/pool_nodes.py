"""The two shapes of a pool's pods as specs, node 0 and its workers, and the node groups that each fits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from spotmpi.core.errors import Problem
from spotmpi.spec import node_groups
from spotmpi.spec.job import JobSpec, Resources
from spotmpi.spec.node_groups import Choice

if TYPE_CHECKING:  # a local run starts faster without it
    from spotmpi.core.environment import NodeGroup

_WORKER_FIELDS = {"kubernetes.node_groups": "pool.node_groups", "nodes": "pool.workers"}


class PoolChoice(NamedTuple):
    """The groups for each shape."""

    node_0: Choice
    workers: Choice

    @property
    def note(self) -> str | None:
        """What the loss of node 0 costs, where its nodes may be reclaimed."""
        spot = [group.name for group in self.node_0.groups if group.market == "spot"]
        if not spot:
            return None
        return (
            f"node 0 runs on spot nodes ({' or '.join(spot)}): its loss loses the calls that have not ended; "
            "a node group on demand, chosen with kubernetes.node_groups, avoids that"
        )


def shapes(spec: JobSpec) -> tuple[JobSpec, ...]:
    """The spec of each shape of a run's pods: of node 0 and the workers of a pool, else *spec* itself."""
    return (spec,) if spec.pool is None else (node_0_spec(spec), worker_spec(spec))


def node_0_spec(spec: JobSpec) -> JobSpec:
    """A pool's spec as that of node 0, which shares its node with other pods."""
    return spec.model_copy(update={"kubernetes": spec.kubernetes.model_copy(update={"spread": "any"})})


def worker_spec(spec: JobSpec) -> JobSpec:
    """A pool's spec as that of its workers: one node for each, with their resources and node groups."""
    assert spec.pool is not None
    resources = Resources(cpu=spec.pool.cpu, memory=spec.pool.memory, gpu=spec.pool.gpu)
    placement = {"node_groups": list(spec.pool.node_groups), "spread": spec.kubernetes.spread or "any"}
    kubernetes = spec.kubernetes.model_copy(update=placement)
    return spec.model_copy(update={"nodes": spec.pool.workers, "resources": resources, "kubernetes": kubernetes})


def choose(spec: JobSpec, groups: Sequence[NodeGroup]) -> PoolChoice | list[Problem]:
    """The groups of a pool, for node 0 on-demand ones where they fit; all problems where it fits none."""
    own = node_0_spec(spec)
    on_demand = [group for group in groups if group.market == "on-demand"]
    node_0 = node_groups.choose(own, on_demand) if on_demand and not spec.kubernetes.node_groups else []
    if isinstance(node_0, list):
        node_0 = node_groups.choose(own, groups)
    workers = node_groups.choose(worker_spec(spec), groups)
    if isinstance(workers, list):
        workers = [replace(problem, field=_WORKER_FIELDS.get(problem.field, problem.field)) for problem in workers]
    if isinstance(node_0, Choice) and isinstance(workers, Choice):
        return PoolChoice(node_0, workers)
    return [problem for choice in (node_0, workers) if isinstance(choice, list) for problem in choice]
