"""Markets for tests: recorded ones, and such as a test describes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from spotmpi.api.simulation import read_traces
from spotmpi.capacity.job import Job
from spotmpi.capacity.market import Market
from spotmpi.capacity.placement import CapacityPool
from spotmpi.capacity.traces import market

TRACES = Path(__file__).parents[2] / "traces"


def recorded(folder: str, zones: Sequence[str], step: float = 600.0) -> Market:
    """The market of *zones* in a folder of tests/traces."""
    return market(read_traces(TRACES / folder), Job(1.0, 1.0, zones=tuple(zones)), None, None).coarser(step)


def traces_of(folder: str, zones: Sequence[str]) -> Market:
    """The same at the ticks of the traces, also of zones of several regions."""
    used = [trace for trace in read_traces(TRACES / folder) if trace.pool.zone in zones]
    price = np.stack([trace.price for trace in used if trace.price is not None])
    on_demand = min(trace.on_demand or 0.0 for trace in used)
    return Market(
        tuple(trace.pool for trace in used), np.stack([trace.nodes for trace in used]), price, on_demand, used[0].step
    )


def described(*nodes: Sequence[int], price: float = 1.0, on_demand: float = 3.0, step: float = 600.0) -> Market:
    """A market of zones ``a``, ``b``, ... with these nodes at each tick."""
    available = np.array(nodes)
    pools = tuple(CapacityPool("abcdefgh"[index], "g5.xlarge") for index in range(len(available)))
    return Market(pools, available, np.full(available.shape, price), on_demand, step)
