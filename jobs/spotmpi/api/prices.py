"""What nodes and workers of a run cost, by its record: those of a pool so far, and one more for a stream."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spotmpi.aws.billing import Kind, Lifetime, PriceCurve, Usage, make_bill
from spotmpi.core import environment
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import RunPaths
from spotmpi.pools.pool import PoolSummary
from spotmpi.runs import node_usage, recorded_plan
from spotmpi.runs.reader import RunState
from spotmpi.spec.source import load_spec
from spotmpi.streams.figures import Figures, advice

_KIND: Kind = ("", "", "")  # one price for all machines
_LIMIT = 3.0  # seconds for AWS's answer


def summarize(folder: Path, price: float | None, now: float | None = None) -> PoolSummary:
    """The nodes, zone and cost of a pool by its record in *folder*; *price* is of a node and hour, in US dollars."""
    paths, now = RunPaths(folder), now or time.time()
    uses = node_usage.machine_uses(paths)
    nodes = sorted({use.machine for use in uses if use.ended is None} - {node_usage.HERE})
    recorded = recorded_plan.read(paths).environment
    zones = {zone for _, _, zone in node_usage.machine_kinds(paths).values() if zone}
    zone = " and ".join(sorted(zones)) or (recorded or {}).get("zone")
    return PoolSummary(tuple(nodes), zone, None if price is None else _dollars(uses, price, now))


def node_price(folder: Path) -> float | None:
    """US dollars for an hour of a node: by the spec, else the most expensive of the pool's groups; None if unknown."""
    paths = RunPaths(folder)
    spec, values = load_spec(paths.spec), recorded_plan.read(paths).environment
    if spec.price is not None or not values:
        return spec.price
    from spotmpi.backends.kubernetes.submit.target import group_names, prices_of

    built = environment.recorded(values)
    names = group_names(spec, built)
    groups = [group for group in built.node_groups if group.name in names]
    return max(prices_of(spec, built, groups).values(), default=None)


def _dollars(uses: list[Usage], price: float, now: float) -> float:
    """The price of all machines while the pool held them; workers on the same machine count once."""
    names = dict.fromkeys(use.machine for use in uses)
    machines = [Lifetime(name, None, "", _KIND, *node_usage.span(uses, name, now)) for name in names]
    bill = make_bill(machines, uses, {_KIND: PriceCurve(((0.0, price),))}, 0.0, now)
    return sum(share.dollars for share in bill.runs)


def with_price(state: RunState, stream: Mapping[str, Any]) -> RunState:
    """*state* with the cost in the advice on its *stream*; as it is where it has none or the price is unknown."""
    figures = Figures.from_json(stream)
    unpriced = advice(figures)
    if stream["advice"] != unpriced or advice(figures, 1.0) == unpriced:
        return state
    price = _worker_price(state.folder)
    return state if price is None else replace(state, stream=figures.to_json(price))


@functools.cache
def _worker_price(folder: str) -> float | None:
    """Dollars per hour of a worker of the run in *folder*; AWS is asked once, and not for long."""
    prices: list[float | None] = []

    def ask() -> None:
        with contextlib.suppress(SpotmpiError, OSError):  # the advice is worth reading without it
            prices.append(_current_price(RunPaths(Path(folder))))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_LIMIT)
    return prices[0] if prices else None


def _current_price(paths: RunPaths) -> float | None:
    values = recorded_plan.read(paths).environment
    if not values:
        return None
    from spotmpi.study.pricing import worker_price

    spec = load_spec(paths.spec)
    return worker_price(environment.recorded(values), spec, spec.stream.workers) if spec.stream else None
