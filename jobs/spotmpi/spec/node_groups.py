"""Which node groups of an environment a spec fits, and why it does not fit the others. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from spotmpi.core import names
from spotmpi.core.errors import Problem
from spotmpi.core.names import CAPACITY_BLOCK
from spotmpi.core.wording import counted
from spotmpi.spec.job import JobSpec
from spotmpi.spec.workers import mebibytes, millicores

if TYPE_CHECKING:
    from spotmpi.core.environment import NodeGroup

_ACCELERATOR = "k8s.amazonaws.com/accelerator"  # the autoscaler's own label; its value is the GPU's model
# NVIDIA's list of CUDA GPUs.
_CAPABILITIES = {"k80": "3.7", "p100": "6.0", "v100": "7.0", "t4": "7.5", "a100": "8.0", "a10g": "8.6", "l4": "8.9"}
_CAPABILITIES |= {"l40s": "8.9", "h100": "9.0", "h200": "9.0", "b200": "10.0", "b300": "10.3", "t4g": "7.5"}
_CAPABILITIES |= {"rtx-pro-server-6000": "12.0"}
MARKETS = ("spot", "on-demand")
_ORDER, _DEADLINE = "capacity.order", "capacity.deadline"
_ADD_GROUP = "add one to its stack (spotmpi:groups with `market`)"


class Choice(NamedTuple):
    """The groups whose nodes a run may use, and the spec with its share of a node's GPUs."""

    groups: tuple[NodeGroup, ...]
    spec: JobSpec
    others: tuple[str, ...]  # further groups that fit
    fallbacks: tuple[NodeGroup, ...] = ()  # where a gang goes, one after the other, whose nodes do not come

    @property
    def every_group(self) -> tuple[NodeGroup, ...]:
        """The groups and their fallbacks."""
        return self.groups + self.fallbacks

    @property
    def blocks(self) -> tuple[NodeGroup, ...]:
        """Those in Capacity Blocks."""
        return tuple(group for group in self.every_group if group.market == CAPACITY_BLOCK)

    @property
    def capability(self) -> str | None:
        """The compute capability of the groups' GPUs if all have the same known one."""
        capabilities = {capability(group) for group in self.every_group}
        return capabilities.pop() if len(capabilities) == 1 else None


def capability(group: NodeGroup) -> str | None:
    """The compute capability of a group's GPUs, such as "7.0", if its labels name a known model."""
    return _CAPABILITIES.get(group.labels.get(_ACCELERATOR, ""))


def fills_nodes(spec: JobSpec) -> bool:
    """Whether each pod of the run has a node of its own in an environment."""
    return spec.kubernetes.exclusive is not False


def pods_per_node(spec: JobSpec, group: NodeGroup) -> int:
    """How many pods of a spec that does not fill nodes share a node of a group that it fits."""
    counts = [group.vcpus * 1000 // millicores(spec.resources.cpu, spec.slots)]
    if memory := _memory_mib(spec):
        counts.append(int(group.allocatable_mib // memory))
    return max(1, min(counts))


def own_prices(spec: JobSpec, groups: Sequence[NodeGroup]) -> dict[str, float]:
    """US dollars per hour of a node of those of *groups* that have one in ``capacity.prices``, by name."""
    given = spec.capacity.prices
    prices = {group.name: given.get(group.name) or given.get(group.shared_name) for group in groups}
    return {name: price for name, price in prices.items() if price}


def choose(spec: JobSpec, groups: Sequence[NodeGroup], gang: bool = True) -> Choice | list[Problem]:
    """The groups that the spec names, or else the first that it fits; the problems if there is none.

    A spec without GPUs takes groups without GPUs first; if pods fill nodes with GPUs, each slot gets its share.
    Only nodes outside of a *gang* may be of several groups, all in one zone. The fallbacks of a gang are the same group
    in other zones, as long as no queue decides where its nodes come from.
    """
    if spec.capacity.order:
        return _choose_in_order(spec, groups)
    if spec.capacity.deadline is not None:
        return _choose_for_deadline(spec, groups)
    named, candidates = spec.kubernetes.node_groups, _named(spec, groups)
    if problems := [*_unknown(spec, groups), *_in_block(spec, candidates, gang)]:
        return problems
    if len({group.shared_name for group in candidates}) > 1 and named and spec.nodes > 1 and gang:
        remedy = (
            "nodes would come from any of them, so the gang would be in several placement groups: name one, or name "
            "them in capacity.order, one after the other"
        )
        return [Problem("kubernetes.node_groups", named, remedy)]
    whole = _choose_in_zone(spec, candidates)
    zones = dict.fromkeys(group.zone for group in candidates)
    if len(zones) < 2 or isinstance(whole, list):
        return whole
    by_zone = [_choose_in_zone(spec, [group for group in candidates if group.zone == zone]) for zone in zones]
    found = [choice for choice in by_zone if isinstance(choice, Choice)]
    if not found:
        return by_zone[0]
    best = min(found, key=lambda choice: _rank(spec, choice.groups[0], candidates))
    (first, *more) = best.groups
    like = [each for choice in found for each in choice.groups if each.shared_name == first.shared_name]
    moves = gang and not more and not spec.kubernetes.queue
    fallbacks = tuple(each for each in like if each is not first) if moves else ()
    others = dict.fromkeys(name for choice in found for name in choice.others if name != first.shared_name)
    return best._replace(others=tuple(others), fallbacks=fallbacks)


def _in_block(spec: JobSpec, candidates: Sequence[NodeGroup], gang: bool) -> Iterable[Problem]:
    """What does not go together with a node group in a Capacity Block, for which only a gang waits."""
    blocks = [group.name for group in candidates if group.market == CAPACITY_BLOCK]
    if not blocks:
        return
    field, named = "kubernetes.node_groups", spec.kubernetes.node_groups
    if not gang:
        yield Problem(
            field, named, f"workers do not wait for the start of a Capacity Block: name other groups than {blocks[0]}"
        )
    elif len(candidates) > 1:
        remedy = f"a run waits for the Capacity Block of {blocks[0]}: name it alone, or all of them in capacity.order"
        yield Problem(field, named, remedy)
    yield from _conflicts(spec, field, named)


def _rank(spec: JobSpec, group: NodeGroup, groups: Sequence[NodeGroup]) -> tuple[bool, int]:
    """Sorts *groups* by preference: a spec without GPUs takes those without GPUs first."""
    return group.gpus > 0 and not spec.resources.gpu, groups.index(group)


def _choose_in_zone(spec: JobSpec, candidates: Sequence[NodeGroup]) -> Choice | list[Problem]:
    """The choice among the allowed groups of one zone."""
    named = spec.kubernetes.node_groups
    together = sum(group.max for group in candidates)
    misfits = {
        group.name: why for group in candidates if (why := _misfit(spec, group, together if named else group.max))
    }
    fitting = [group for group in candidates if group.name not in misfits]
    if not fitting or (misfits and named):
        return [_refusal(spec, candidates, misfits)]
    fitting.sort(key=lambda group: _rank(spec, group, candidates))
    chosen = tuple(fitting if named else fitting[:1])
    others = tuple(dict.fromkeys(group.shared_name for group in fitting if group not in chosen))
    if named and len({group.gpus for group in chosen}) > 1:
        return [
            Problem("kubernetes.node_groups", named, "have different numbers of GPUs: name groups with the same number")
        ]
    return Choice(chosen, _shared(spec, chosen[0]), others)


def _names(group: NodeGroup) -> tuple[str, str]:
    """The names by which a spec may mean a group."""
    return group.name, group.shared_name


def _allowed(spec: JobSpec, groups: Sequence[NodeGroup]) -> list[NodeGroup]:
    """The groups that the spec's zones, instance types and (without a deadline) market allow.

    One in a Capacity Block, which starts at its time, only where the spec names it, or its market in an order.
    """
    table = spec.capacity
    named = {*table.order, *spec.kubernetes.node_groups}
    markets = MARKETS if table.market == "auto" or table.deadline is not None else (table.market,)
    return [
        group
        for group in groups
        if (not table.zones or group.zone in table.zones)
        and (not table.instance_types or group.type in table.instance_types)
        and (group.market in markets or (group.market == CAPACITY_BLOCK and named & {group.market, *_names(group)}))
    ]


def allowed(spec: JobSpec, groups: Sequence[NodeGroup]) -> list[NodeGroup]:
    """The groups that the spec names or has in its order, all where it names none, whether it fits them or not."""
    entries = [each for name in spec.capacity.order for each in _entry(name, spec.capacity.order, groups)]
    return [each for each in _named(spec, groups) if not spec.capacity.order or each in entries]


def _named(spec: JobSpec, groups: Sequence[NodeGroup]) -> list[NodeGroup]:
    """The allowed groups that the spec names, all where it names none."""
    named = set(spec.kubernetes.node_groups)
    return [group for group in _allowed(spec, groups) if not named or named & set(_names(group))]


def _unknown(spec: JobSpec, groups: Sequence[NodeGroup]) -> list[Problem]:
    """What a spec allows and the environment has not, or not together."""
    problems = list(_unknown_names(spec, groups))
    if problems or _named(spec, groups):
        return problems
    if groups and all(group.market == CAPACITY_BLOCK for group in groups):
        remedy = f"the environment has only Capacity Blocks, which a run has to name: {groups[0].name}"
        problems.append(Problem("kubernetes.node_groups", spec.kubernetes.node_groups or None, remedy))
    elif groups:
        key, value = next((key, value) for key, value in spec.capacity.choices.items() if key != _ORDER)
        has = ", ".join(f"{group.name} ({group.type}, {group.market}, in {group.zone})" for group in groups)
        remedy = f"with other keys it leaves no node group of the environment, which has {has}"
        problems.append(Problem(key, value, f"{remedy}: allow more"))
    return problems


def _unknown_names(spec: JobSpec, groups: Sequence[NodeGroup]) -> Iterable[Problem]:
    """The zones, types and node groups of a spec that the environment has not, or not in the zones of the spec."""
    table, zones = spec.capacity, {group.zone for group in groups}
    for zone in (zone for zone in table.zones if zone not in zones):
        has = ", ".join(sorted(zones))
        remedy = f"the environment has nodes in {has}: use one of these, or add it to `zones` of its stack"
        yield Problem("capacity.zones", zone, remedy)
    by_type = {group.type: (group.type,) for group in groups}
    by_name = {group.name: _names(group) for group in groups}
    for key, values, known in (
        ("capacity.instance_types", table.instance_types, by_type),
        ("kubernetes.node_groups", spec.kubernetes.node_groups, by_name),
        ("capacity.prices", table.prices, by_name),
    ):
        for value in values:
            where = {group.zone for group in groups if value in (group.type, *_names(group))}
            if not any(value in names for names in known.values()):
                yield Problem(key, value, f"the environment has: {', '.join(sorted(known))}")
            elif zones & set(table.zones) and not where & set(table.zones) and key != "capacity.prices":
                remedy = f"the environment has it in {', '.join(sorted(where))} alone, which capacity.zones leaves out"
                yield Problem(key, value, f"{remedy}: allow one of these zones")


def _choose_in_order(spec: JobSpec, groups: Sequence[NodeGroup]) -> Choice | list[Problem]:
    """The groups of ``capacity.order``, the first one and its fallbacks; all problems of it."""
    unknown, allowed = _unknown(spec, groups), _allowed(spec, groups)
    problems = [*_conflicts(spec, _ORDER, spec.capacity.order), *unknown]
    if spec.kubernetes.node_groups:
        remedy = "capacity.order names the groups already: remove one of the two"
        problems.append(Problem("kubernetes.node_groups", spec.kubernetes.node_groups, remedy))
    order: dict[str, NodeGroup] = {}
    named = spec.capacity.order
    for name in dict.fromkeys(named):
        entry = _entry(name, named, groups)
        candidates = [each for each in entry if each in allowed]
        misfits = {each.name: why for each in candidates if (why := _misfit(spec, each, each.max))}
        if named.count(name) > 1:
            problems.append(Problem(_ORDER, name, "is named twice: remove one of the two"))
        if not entry:
            problems.append(Problem(_ORDER, name, _without_groups(name, groups)))
        elif not candidates and not unknown:
            remedy = "capacity.zones, instance_types and market leave none of its node groups: allow more, or remove it"
            problems.append(Problem(_ORDER, name, remedy))
        elif candidates and len(misfits) == len(candidates):
            problems.append(_refusal(spec, candidates, misfits)._replace(field=_ORDER, value=name))
        order |= {each.name: each for each in candidates if each.name not in misfits}
    chosen = tuple(order.values())
    problems += _differences(chosen, _ORDER)
    return problems or Choice(chosen[:1], _shared(spec, chosen[0]), (), chosen[1:])


def _choose_for_deadline(spec: JobSpec, groups: Sequence[NodeGroup]) -> Choice | list[Problem]:
    """All groups on which a run with a deadline may be placed, one of each zone, market and type, spot groups first.

    Those in Capacity Blocks that it names come last; it needs others besides, as they are there for a time only.
    """
    table = spec.capacity
    problems = [*_conflicts(spec, _DEADLINE, None), *_unknown(spec, groups)]
    candidates = _named(spec, groups)
    considered = candidates or groups  # where none is allowed, that none would fit is a problem as well
    misfits = {group.name: why for group in considered if (why := _misfit(spec, group, group.max))}
    fitting: dict[tuple[str, str, str, str | None], NodeGroup] = {}
    for group in candidates:
        if group.name not in misfits:
            fitting.setdefault((group.zone, group.market, group.type, group.reservation), group)
    markets = (*(MARKETS if table.market == "auto" else (table.market,)), CAPACITY_BLOCK)
    chosen = tuple(group for market in markets for group in fitting.values() if group.market == market)
    if len(misfits) == len(considered):
        problems.append(_refusal(spec, considered, misfits))
    elif fitting and table.market != "spot" and not any(group.market == "on-demand" for group in chosen):
        without = 'set capacity.market = "spot", which may be late'
        remedy = (
            f"the deadline needs an on-demand group that the run fits, and there is none: {_ADD_GROUP}, or {without}"
        )
        problems.append(Problem("capacity.market", table.market, remedy))
    elif fitting and all(group.market == CAPACITY_BLOCK for group in chosen):
        remedy = f"the run fits no {table.market} group of the environment: {_ADD_GROUP}, or allow another market"
        problems.append(Problem("capacity.market", table.market, remedy))
    problems += _differences(chosen, "capacity.instance_types")
    return problems or Choice(chosen[:1], _shared(spec, chosen[0]), (), chosen[1:])


def _entry(name: str, named: Sequence[str], groups: Sequence[NodeGroup]) -> list[NodeGroup]:
    """The groups of one entry: those of that name in all zones, or those of a market, without what others name."""
    others = set(named) - {name}
    like = [each for each in groups if name == each.shared_name and each.name not in others]
    alone = [each for each in groups if name == each.name]
    return like or alone or [each for each in groups if name == each.market and not others & set(_names(each))]


def _without_groups(name: str, groups: Sequence[NodeGroup]) -> str:
    """Why an entry stands for no group, with the remedy."""
    if any(group.market == name for group in groups):
        return f"all {name} groups of the environment are named already: remove it"
    if name in (*MARKETS, CAPACITY_BLOCK):
        return f"the environment has no {name} group: {_ADD_GROUP}, or remove it"
    has = ", ".join(group.name for group in groups)
    return f"the environment has the groups {has}; markets are {', '.join(MARKETS)} and {CAPACITY_BLOCK}"


def _conflicts(spec: JobSpec, field: str, value: object) -> Iterable[Problem]:
    """What does not go together with *field* of the table `capacity`, a gang being moved from group to group."""
    if spec.pool is not None:
        remedy = "workers of a pool are not a gang: name their groups in pool.node_groups"
        yield Problem(field, value, remedy)
    if spec.kubernetes.queue:
        remedy = f"Kueue would decide where the nodes come from as well: remove it, or {field}"
        yield Problem("kubernetes.queue", spec.kubernetes.queue, remedy)


def _differences(groups: Sequence[NodeGroup], field: str) -> Iterable[Problem]:
    """What the groups of one run may not differ in: the requests of its pods are the same in each."""
    for what, values in (
        ("GPUs per node", {group.name: group.gpus for group in groups}),
        ("EFA interfaces", {group.name: group.efa_interfaces for group in groups}),
    ):
        if len(set(values.values())) > 1:
            each = ", ".join(f"{name}: {count}" for name, count in values.items())
            yield Problem(field, [*values], f"{what} differ ({each}): name groups with the same number")


def _shared(spec: JobSpec, group: NodeGroup) -> JobSpec:
    """The spec with its share of the GPUs of a node that it fills."""
    if spec.resources.gpu or not group.gpus or not fills_nodes(spec):
        return spec
    resources = spec.resources.model_copy(update={"gpu": group.gpus // spec.slots})
    return spec.model_copy(update={"resources": resources})


def _misfit(spec: JobSpec, group: NodeGroup, most: int) -> str | None:
    """Why the spec does not fit a group of at *most* so many nodes, or None."""
    gpus, other = spec.resources.gpu * spec.slots, _other_kind(spec, group)
    if other:
        return other
    if fills_nodes(spec) and spec.nodes > most:
        return f"there {'is' if most == 1 else 'are'} at most {counted(most, 'node')}"
    if gpus > group.gpus:
        return f"GPUs per node: {group.gpus}, requested: {gpus}"
    if fills_nodes(spec) and group.gpus and group.gpus != (gpus or spec.slots):
        return f"GPUs per node: {group.gpus}, and all must be used: set slots = {group.gpus}, or exclusive = false"
    if (requested := millicores(spec.resources.cpu, spec.slots)) > group.vcpus * 1000:
        return f"CPUs per node: {group.vcpus}, requested: {requested / 1000:g}"
    if _memory_mib(spec) > group.allocatable_mib:
        sizes = f"{group.allocatable_mib} of {group.memory_mib}, the rest is reserved"
        return f"MiB for pods per node: {sizes}; requested: {_memory_mib(spec):g}"
    return None


def _other_kind(spec: JobSpec, group: NodeGroup) -> str | None:
    """Why the nodes of a group are not of the kind that the spec requests, or None."""
    requested = spec.kubernetes
    if requested.instance_type not in (None, group.type):
        return f"requested: {requested.instance_type}"
    if requested.placement_group not in (None, group.placement_group):
        return f"it has {'a' if group.placement_group else 'no'} placement group"
    labels = {**group.labels, names.LABEL_TYPE: group.type}
    unlike = [f"{key}={value}" for key, value in requested.node_selector.items() if labels.get(key, value) != value]
    return f"requested: {', '.join(unlike)}" if unlike else None


def _refusal(spec: JobSpec, groups: Sequence[NodeGroup], misfits: dict[str, str]) -> Problem:
    reasons = [f"{group.name} ({group.type}): {misfits[group.name]}" for group in groups if group.name in misfits]
    size = f"{counted(spec.nodes, 'node')} x {counted(spec.slots, 'slot')}"
    field = "kubernetes.node_groups" if spec.kubernetes.node_groups else "nodes"
    value = spec.kubernetes.node_groups or spec.nodes
    return Problem(field, value, f"{size} fit no node group; {'; '.join(reasons) or 'there is none'}")


def _memory_mib(spec: JobSpec) -> float:
    memory = spec.resources.memory
    return mebibytes(memory) * spec.slots if memory else 0
