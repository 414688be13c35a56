"""What a node of an environment costs now, for the limits of a run that is about to start."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from spotmpi.aws.account import Aws, open_account
from spotmpi.aws.prices import on_demand_price, spot_prices
from spotmpi.core.environment import Environment, NodeGroup
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.price import Price


def node_price(
    environment: Environment, groups: Sequence[NodeGroup], aws: Aws | None = None, now: datetime | None = None
) -> float:
    """US dollars per hour of a node of the dearest of *groups*.

    InputError that names the field `price` where AWS doesn't tell.
    """
    try:
        return told_price(environment, groups, aws, now).node_hour
    except SpotmpiError as error:
        raise input_error("price", None, f"set it, since what a node costs could not be learnt: {error}") from error


def told_price(
    environment: Environment, groups: Sequence[NodeGroup], aws: Aws | None = None, now: datetime | None = None
) -> Price:
    """What a node of the dearest of *groups* costs, of which kind that price is, and when; SpotmpiError if unknown."""
    aws, now = aws or open_account(environment.region), now or datetime.now(UTC)
    prices = {group.name: group_price(environment, group, aws, now) for group in groups}
    group = max(groups, key=lambda group: prices[group.name])
    kind = "spot price" if group.market == "spot" else "list price on demand"
    return Price(prices[group.name], f"{kind} of {group.type} in {environment.zone}, {now:%Y-%m-%d %H:%M} UTC")


def group_price(environment: Environment, group: NodeGroup, aws: Aws, now: datetime) -> float:
    """US dollars per hour of one node of *group* now: the zone's spot price, or the list price on demand."""
    price: float | None
    if group.market == "on-demand":
        price = on_demand_price(aws, environment.region, group.type)
    else:
        there = spot_prices(aws, environment.region, [group.type], now).get((group.type, environment.zone))
        price = there.now if there else None
    if price is None:
        raise SpotmpiError(f"AWS has no {group.market} price of {group.type} in {environment.zone}")
    return price
