"""The price of a node for the trials of a study, from the study, its specs, or AWS; and that of a stream's worker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from spotmpi.backends import targets
from spotmpi.backends.targets import TargetLike
from spotmpi.core import wording
from spotmpi.core.environment import Environment, NodeGroup
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.price import Price
from spotmpi.core.wording import Echo
from spotmpi.forecast.forecast import Goal
from spotmpi.spec.job import JobSpec
from spotmpi.spec.node_groups import Choice, own_prices, pods_per_node
from spotmpi.spec.node_groups import choose as fitting
from spotmpi.spec.roles import worker_spec
from spotmpi.spec.workers import StreamWorkers
from spotmpi.study.study import Configuration, Study

_SHARE = "; with a node's share of"


def with_prices(study: Study, on: TargetLike, echo: Echo) -> Study:
    """*study* with the price of a node in each configuration.

    That is the study's own, that of its specs, or that of the node group now. On this machine, which all nodes are, it
    is the machine's. Without a price costs are left out, and *echo* receives the reason.

    Raises:
        InputError: limits.money is set, and a configuration has no price.
    """
    budget = study.budget
    if budget.price is None:
        known = _spec_prices(study)
        others = [each for each in study.configurations if each not in known]
        budget = replace(budget, prices={**_target_prices(study, others, on, echo), **known})
    if targets.target_of(on).is_local:
        known = {each: price for each in study.configurations if (price := budget.price_of(*each))}
        budget = replace(budget, prices={each: replace(price, machine=True) for each, price in known.items()})
    elif any(variant.spec.stream for variant in study.variants):
        prices = {each: budget.price_of(*each) for each in study.configurations}
        budget = replace(budget, prices=_with_workers(study, prices, on))
    if budget.money_limit is not None and any(budget.price_of(*each) is None for each in study.configurations):
        place = wording.option("on", "STACK")
        remedy = f"needs [price] with node_hour and source, or an environment ({place}) with access to its AWS account"
        raise input_error("limits.money", budget.money_limit, remedy)
    return replace(study, budget=budget)


def _with_workers(
    study: Study, prices: Mapping[Configuration, Price | None], on: TargetLike
) -> dict[Configuration, Price]:
    """*prices* of a node with its share of the workers of the configuration's stream.

    Where nobody tells what a worker costs, it counts as a node.
    """
    environment = targets.environment_of(on)
    workers = {each.name: _worker_hours(each.spec, environment) for each in study.variants}
    shared: dict[Configuration, Price] = {}
    for (name, nodes), price in prices.items():
        if price is not None and workers[name]:
            count, each = _mean(workers[name], price.node_hour)
            share = f"{price.source}{_SHARE} {wording.counted(count, 'stream worker')}"
            price = Price(price.node_hour + each * count / nodes, share, each)
        if price is not None:
            shared[name, nodes] = price
    return shared


def without_workers(price: Price, spec: JobSpec, nodes: int) -> Price:
    """The *price* in a configuration of so many nodes without a node's share of the workers of the stream of *spec*."""
    if spec.stream is None or price.worker_hour is None:
        return price
    share = price.worker_hour * sum(each.count for each in spec.stream.roles) / nodes
    return replace(price, node_hour=price.node_hour - share, source=price.source.partition(_SHARE)[0])


def _worker_hours(spec: JobSpec, environment: Environment | None) -> list[tuple[int, float | None]]:
    """The number and price of the workers of *spec*'s stream in each role.

    The price is that of the spec or else from AWS; None if neither has one.
    """
    return [(each.count, _worker_hour(spec, each, environment)) for each in (spec.stream.roles if spec.stream else ())]


def _worker_hour(spec: JobSpec, workers: StreamWorkers, environment: Environment | None) -> float | None:
    if workers.price is None and spec.price is None and environment:
        with contextlib.suppress(SpotmpiError):
            return worker_price(environment, spec, workers)
    return workers.price


def _mean(workers: Sequence[tuple[int, float | None]], default: float) -> tuple[int, float]:
    """The number of all workers, and the mean of their prices; the *default* is that of those without one."""
    count = sum(each for each, _ in workers)
    first = workers[0][1] or default
    others = sum(each * ((price or default) - first) for each, price in workers[1:])
    return count, first + others / count


def goal_with_price(goal: Goal, known: Price | None, specs: Sequence[JobSpec], on: TargetLike) -> Goal:
    """*goal* with its own price, that of the environment now, or the *known* one, and the source of that price.

    With a stream in *specs* it has the price of its workers too.
    """
    environment, failure = targets.environment_of(on), None
    if goal.price is not None:
        known = Price(goal.price, "")
    elif environment:
        try:
            known = node_price(environment, specs)
        except SpotmpiError as error:
            failure = f"node price unknown ({error}); set {wording.option('price')}"
    if known is None:
        return replace(goal, price_source=failure)
    sources, workers_price = [known.source, failure], 0.0
    for spec in specs[:1]:
        if spec.stream is not None and not known.machine:
            count, each = _mean(_worker_hours(spec, environment), known.worker_hour or known.node_hour)
            workers_price = count * each
            sources.append(f"and {wording.counted(count, 'stream worker')} at ${each:g} each")
    source = "; ".join(filter(None, sources)) or None
    price, machine = known.node_hour, known.machine
    return replace(goal, price=price, price_source=source, workers_price=workers_price, machine=machine)


def node_price(environment: Environment, specs: Sequence[JobSpec]) -> Price:
    """The price of a node now, in the most expensive group that *specs* use; SpotmpiError if AWS does not tell.

    A group costs what ``capacity.prices`` says, else what AWS does.
    """
    from spotmpi.aws.prices import highest_node_price

    groups = {group.name: group for spec in specs for group in _groups(environment, spec)}
    # A spec that fits no group is refused by validation; the most expensive group is an upper bound until then.
    chosen = list(groups.values()) or list(environment.node_groups)
    given = {name: price for spec in specs for name, price in own_prices(spec, chosen).items()}
    prices = [Price(price, f"capacity.prices of {name}") for name, price in given.items()]
    if others := [group for group in chosen if group.name not in given]:
        prices.append(highest_node_price(environment, others))
    return max(prices, key=lambda price: price.node_hour)


def worker_price(environment: Environment, spec: JobSpec, own: StreamWorkers) -> float | None:
    """US dollars per hour of one of *own* workers now: its share of a node in the group where that costs most.

    Nodes cost what ``capacity.prices`` says, else what AWS does. None where workers fit no group; SpotmpiError if AWS
    does not tell.
    """
    from spotmpi.backends.kubernetes.submit.target import prices_of

    workers = worker_spec(spec, own)
    groups = _groups(environment, workers, gang=False)
    prices = prices_of(spec, environment, groups)
    return max((prices[group.name] / pods_per_node(workers, group) for group in groups), default=None)


def _groups(environment: Environment, spec: JobSpec, gang: bool = True) -> tuple[NodeGroup, ...]:
    choice = fitting(spec, environment.node_groups, gang)
    return choice.every_group if isinstance(choice, Choice) else ()


def _spec_prices(study: Study) -> dict[Configuration, Price]:
    """The prices in the specs of the variants."""
    prices = {variant.name: variant.spec.price for variant in study.variants}
    return {
        each: Price(price, "from the spec") for each in study.configurations if (price := prices[each[0]]) is not None
    }


def _target_prices(
    study: Study, configurations: Iterable[Configuration], on: TargetLike, echo: Echo
) -> dict[Configuration, Price]:
    """The price of a node now for each configuration: that of the most expensive node group that it can use."""
    environment = targets.environment_of(on)
    if environment is None or not environment.node_groups:
        return {}
    prices: dict[Configuration, Price] = {}
    known: dict[tuple[object, ...], Price] = {}
    try:
        for name, nodes in configurations:
            spec = study.variant(name).spec.model_copy(update={"nodes": nodes})
            groups = _groups(environment, spec)
            key = (*(group.name for group in groups), *own_prices(spec, groups).items())
            known[key] = known.get(key) or node_price(environment, [spec])
            prices[name, nodes] = known[key]
    except SpotmpiError as error:
        echo(f"costs are not shown: node price unknown ({error}); set [price] in the study")
        return {}
    for price in dict.fromkeys(known.values()):
        echo(f"node price: {price}")
    return prices
