"""The roles of a run as specs, its gang and its workers, and the node groups that each fits. Pure.

The gang of a pool is node 0 alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spotmpi.agent.plan import WORKER
from spotmpi.core.errors import Problem
from spotmpi.core.wording import counted
from spotmpi.spec import node_groups
from spotmpi.spec.job import Capacity, JobSpec, Resources
from spotmpi.spec.node_groups import Choice
from spotmpi.spec.workers import StreamWorkers, Workers

if TYPE_CHECKING:  # a local run starts faster without it
    from spotmpi.core.environment import NodeGroup


Choices = tuple[Choice, ...]  # the groups for each role, those of the gang first


def driver_note(gang: Choice) -> str | None:
    """What the loss of a pool's node 0 costs, where its nodes may be reclaimed."""
    spot = [group.name for group in gang.groups if group.market == "spot"]
    if not spot or gang.spec.pool is None:
        return None
    return (
        f"node 0 runs on spot nodes ({' or '.join(spot)}): its loss loses the calls that have not ended; "
        "a node group on demand, chosen with kubernetes.node_groups, avoids that"
    )


def role_specs(spec: JobSpec) -> tuple[JobSpec, ...]:
    """The spec of each role of a run: of its gang, and of its workers if it has any."""
    return (gang_spec(spec), *(worker_spec(spec, workers) for workers in spec.workers))


def gang_spec(spec: JobSpec) -> JobSpec:
    """A spec as that of the run's gang: node 0 of a pool shares its node with other pods."""
    if spec.pool is None:
        return spec
    return spec.model_copy(update={"kubernetes": spec.kubernetes.model_copy(update={"exclusive": False})})


def worker_spec(spec: JobSpec, workers: Workers) -> JobSpec:
    """A spec as that of these *workers* of the run: one node for each, with their resources, node groups and image.

    Instance type, placement group and order of capacity of a run are those of its gang.
    """
    kubernetes: dict[str, Any] = {"node_groups": list(workers.node_groups), "exclusive": False}
    if spec.pool is not None:
        kubernetes["exclusive"] = bool(spec.kubernetes.exclusive)
    else:
        kubernetes |= {"instance_type": None, "placement_group": None}
    changes: dict[str, Any] = {
        "nodes": workers.count,
        "standby": 0,
        "slots": 1,
        "capacity": Capacity(zones=spec.capacity.zones),
    }
    changes["resources"] = Resources(cpu=workers.cpu, memory=workers.memory, gpu=workers.gpus)
    if isinstance(workers, StreamWorkers):
        kubernetes |= {} if workers.image is None else {"image": workers.image}
        changes |= {} if workers.price is None else {"price": workers.price}
    return spec.model_copy(update={**changes, "kubernetes": spec.kubernetes.model_copy(update=kubernetes)})


def choose(spec: JobSpec, groups: Sequence[NodeGroup]) -> Choices | list[Problem]:
    """The groups of each role, for node 0 of a pool on-demand ones where they fit; all problems where it fits none.

    Workers are in the zone of their gang: the first that has nodes for both, if possible those that the gang prefers.
    """
    choices = _choose_roles(spec, groups)
    if isinstance(choices, list) or len(choices) < 2:
        return choices
    found = [{each.zone for each in choice.every_group} for choice in choices]
    if len(set.union(*found)) < 2:
        return choices
    zones = dict.fromkeys(each.zone for each in groups if each.zone in (spec.capacity.zones or [each.zone]))
    for zone in sorted(zones, key=lambda zone: zone not in found[0]):
        capacity = spec.capacity.model_copy(update={"zones": [zone]})
        there = _choose_roles(spec.model_copy(update={"capacity": capacity}), groups)
        if isinstance(there, tuple):
            as_written = there[0].spec.model_copy(update={"capacity": spec.capacity})
            return (there[0]._replace(spec=as_written), *there[1:])
    roles = [
        counted(spec.nodes, "node"),
        *(f"its {'workers' if each.role == WORKER else each.table}" for each in spec.workers),
    ]
    where = ", ".join(f"{', '.join(sorted(zones))} for {role}" for zones, role in zip(found, roles, strict=True))
    remedy = f"no zone has nodes for all of the run: {where}: add a group to a zone of the stack"
    return [Problem("nodes", spec.nodes, remedy)]


def nearest(spec: JobSpec, groups: Sequence[NodeGroup]) -> Choices:
    """As `choose`, and where that finds none, those that the run would have in any zone and of any type.

    Where it finds none of these, all groups that the gang's other keys allow.
    """
    capacity = spec.capacity.model_copy(update={"zones": [], "instance_types": []})
    anywhere = spec.model_copy(update={"capacity": capacity})
    for each in (spec, anywhere):
        choices = choose(each, groups)
        if isinstance(choices, tuple):
            return choices
    allowed = node_groups.allowed(spec, groups) or node_groups.allowed(anywhere, groups)
    return (Choice(tuple(allowed[:1]), gang_spec(spec), (), tuple(allowed[1:])),)


def _choose_roles(spec: JobSpec, groups: Sequence[NodeGroup]) -> Choices | list[Problem]:
    """The groups of each role in any zone."""
    choices = [_choose_gang(spec, groups), *(_choose_workers(spec, each, groups) for each in spec.workers)]
    problems = [problem for choice in choices if isinstance(choice, list) for problem in choice]
    if problems:
        return [problem for index, problem in enumerate(problems) if problem not in problems[:index]]
    return tuple(choice for choice in choices if isinstance(choice, Choice))


def _choose_workers(spec: JobSpec, workers: Workers, groups: Sequence[NodeGroup]) -> Choice | list[Problem]:
    choice = node_groups.choose(worker_spec(spec, workers), groups, gang=False)
    if isinstance(choice, Choice):
        return choice
    fields = {"kubernetes.node_groups": f"{workers.table}.node_groups", "nodes": f"{workers.table}.count"}
    return [problem._replace(field=fields.get(problem.field, problem.field)) for problem in choice]


def _choose_gang(spec: JobSpec, groups: Sequence[NodeGroup]) -> Choice | list[Problem]:
    on_demand = [group for group in groups if group.market == "on-demand"]
    if spec.pool is not None and on_demand and not spec.kubernetes.node_groups:
        choice = node_groups.choose(gang_spec(spec), on_demand)
        if isinstance(choice, Choice):
            return choice
    return node_groups.choose(gang_spec(spec), groups)
