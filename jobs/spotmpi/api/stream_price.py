"""What more or fewer workers of a stream cost where the spec has no price: by the prices of its environment now."""

from __future__ import annotations

import functools
import threading
from dataclasses import replace
from pathlib import Path

from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import RunPaths
from spotmpi.runs import recorded_plan
from spotmpi.runs.reader import RunState
from spotmpi.streams.figures import Figures, advice

_LIMIT = 3.0  # seconds for AWS's answer


def with_price(state: RunState) -> RunState:
    """*state* with the cost in the advice on its stream; as it is where nothing has a cost or the price is unknown."""
    if state.stream is None:
        return state
    figures = Figures.from_json(state.stream)
    unpriced = advice(figures)
    if state.stream["advice"] != unpriced or advice(figures, 1.0) == unpriced:
        return state
    price = _worker_price(state.folder)
    return state if price is None else replace(state, stream=figures.to_json(price))


@functools.cache
def _worker_price(folder: str) -> float | None:
    """Dollars per hour of a worker of the run in *folder*; AWS is asked once, and not for long."""
    prices: list[float] = []

    def ask() -> None:
        try:
            prices.extend(_prices(RunPaths(Path(folder))))
        except (SpotmpiError, OSError):
            return  # the advice is worth reading without it

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_LIMIT)
    return max(prices, default=None)


def _prices(paths: RunPaths) -> list[float]:
    """What a worker's share of a node costs in each node group that it may take; empty outside an environment."""
    values = recorded_plan.read(paths).environment
    if not values:
        return []
    from spotmpi.aws.prices import group_prices
    from spotmpi.core import environment as environments
    from spotmpi.spec import job, node_groups
    from spotmpi.spec.shapes import worker_spec

    environment = environments.parse(values)
    workers = worker_spec(job.load(paths.spec))
    choice = node_groups.choose(workers, environment.node_groups)
    if isinstance(choice, list):
        return []
    prices = group_prices(environment, choice.groups)
    return [prices[group.name] / node_groups.pods_per_node(workers, group) for group in choice.groups]
