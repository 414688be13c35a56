"""What a node costs where trials run: as the study says, or what AWS asks for its machines now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from jobs.backends import choose
from jobs.backends.base import Say
from jobs.backends.choose import Place
from jobs.budget import Price
from jobs.design import Design
from jobs.environment import Environment, NodeGroup
from jobs.errors import SpotmpiError, wrong
from jobs.forecast import Goal
from jobs.node_groups import Choice
from jobs.node_groups import choose as fitting
from jobs.spec import JobSpec


def priced(design: Design, where: Place, say: Say) -> Design:
    """*design* with the price of a node: its own, its spec's, or that of the environment in which it runs.

    Where nobody tells it, *say* says so once, and no money is told.

    Raises:
        InputError: there is a limit of money, and no price.
    """
    budget = design.budget
    price = budget.price or _of_spec(design.spec) or _of_place([each.spec for each in design.variants], where, say)
    if budget.dollars is not None and price is None:
        remedy = "needs [price] with node_hour and told, or an environment (--on STACK) and access to its AWS account"
        raise wrong("limits.money", budget.dollars, remedy)
    return replace(design, budget=replace(budget, price=price))


def asked(goal: Goal, known: Price | None, specs: Iterable[JobSpec], where: Place) -> Goal:
    """*goal* with a price: its own, the environment's now, or else the one that is *known*; told where it is from."""
    if goal.price is not None:
        return goal
    failure = None
    environment = choose.environment_of(where)
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
    from jobs.cloud.node_price import told_price

    groups: dict[str, NodeGroup] = {}
    for spec in specs:
        found = fitting(spec, environment.node_groups)
        groups |= {group.name: group for group in found.groups} if isinstance(found, Choice) else {}
    # What fits no group is refused elsewhere; until then a node costs what the dearest of all does.
    return told_price(environment, list(groups.values()) or environment.node_groups)


def _of_spec(spec: JobSpec) -> Price | None:
    return Price(spec.price, "as the spec says") if spec.price is not None else None


def _of_place(specs: Iterable[JobSpec], where: Place, say: Say) -> Price | None:
    environment = choose.environment_of(where)
    if environment is None or not environment.node_groups:
        return None
    try:
        price = of_environment(environment, specs)
    except SpotmpiError as error:
        say(f"no money is told, since the price of a node is not known ({error}): [price] in the study would give it")
        return None
    say(f"a node costs {price}")
    return price
