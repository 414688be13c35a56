"""What a node costs where trials run: as the study says, or what AWS asks for its machines now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from spotmpi.backends import targets
from spotmpi.backends.targets import TargetLike
from spotmpi.core.environment import Environment, NodeGroup
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.price import Price
from spotmpi.core.progress import Say
from spotmpi.forecast.forecast import Goal
from spotmpi.spec.job import JobSpec
from spotmpi.spec.node_groups import Choice
from spotmpi.spec.node_groups import choose as fitting
from spotmpi.study.budget import Cell
from spotmpi.study.design import Design


def priced(design: Design, on: TargetLike, say: Say) -> Design:
    """*design* with what a node costs in each of its cells: as it says, as its specs do, or what the group costs.

    Where nobody tells it, *say* says so once, and no money is told.

    Raises:
        InputError: there is a limit of money, and a cell without a price.
    """
    budget = design.budget
    if budget.price is None:
        budget = replace(budget, prices=_of_specs(design) or _of_place(design, on, say))
    if budget.dollars is not None and any(budget.price_of(*cell) is None for cell in design.cells):
        remedy = "needs [price] with node_hour and told, or an environment (--on STACK) and access to its AWS account"
        raise input_error("limits.money", budget.dollars, remedy)
    return replace(design, budget=budget)


def asked(goal: Goal, known: Price | None, specs: Iterable[JobSpec], on: TargetLike) -> Goal:
    """*goal* with a price: its own, the environment's now, or else the one that is *known*; told where it is from."""
    if goal.price is not None:
        return goal
    failure = None
    environment = targets.environment_of(on)
    if environment:
        try:
            known = of_environment(environment, specs)
        except SpotmpiError as error:
            failure = f"the price of a node is not known now ({error}): --price gives it"
    if known:
        return replace(goal, price=known.node_hour, told=f"{known.told}; {failure}" if failure else known.told)
    return replace(goal, told=failure)


def of_environment(environment: Environment, specs: Iterable[JobSpec]) -> Price:
    """What a node of the dearest group that *specs* go to costs now; SpotmpiError where AWS does not tell."""
    from spotmpi.aws.node_price import told_price

    groups = {group.name: group for spec in specs for group in _groups(environment, spec)}
    # What fits no group is refused elsewhere; until then a node costs what the dearest of all does.
    return told_price(environment, list(groups.values()) or environment.node_groups)


def _groups(environment: Environment, spec: JobSpec) -> tuple[NodeGroup, ...]:
    found = fitting(spec, environment.node_groups)
    return found.groups if isinstance(found, Choice) else ()


def _of_specs(design: Design) -> dict[Cell, Price]:
    """The prices that specs say themselves."""
    told = {variant.name: variant.spec.price for variant in design.variants}
    return {cell: Price(price, "as the spec says") for cell in design.cells if (price := told[cell[0]]) is not None}


def _of_place(design: Design, on: TargetLike, say: Say) -> dict[Cell, Price]:
    """What a node of the groups that each cell goes to costs now; where there are several, the dearest one."""
    environment = targets.environment_of(on)
    if environment is None or not environment.node_groups:
        return {}
    found: dict[Cell, Price] = {}
    known: dict[tuple[str, ...], Price] = {}
    try:
        for name, nodes in design.cells:
            spec = design.variant(name).spec.model_copy(update={"nodes": nodes})
            groups = tuple(group.name for group in _groups(environment, spec))
            known[groups] = known.get(groups) or of_environment(environment, [spec])
            found[name, nodes] = known[groups]
    except SpotmpiError as error:
        say(f"no money is told, since the price of a node is not known ({error}): [price] in the study would give it")
        return {}
    for price in dict.fromkeys(known.values()):
        say(f"a node costs {price}")
    return found
