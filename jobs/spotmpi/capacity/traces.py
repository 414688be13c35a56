"""Recorded capacity of one pool, from the two JSON formats of traces; several of one region make a market. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spotmpi.capacity.job import Job
from spotmpi.capacity.market import Market
from spotmpi.capacity.placement import CapacityPool
from spotmpi.core import hints
from spotmpi.core.errors import InputError, Problem, input_error


@dataclass(frozen=True)
class Trace:
    """Nodes and price of a pool at ticks of ``step`` seconds; prices are None where the trace has none."""

    pool: CapacityPool
    step: float
    nodes: NDArray[Any]
    price: NDArray[np.float64] | None
    on_demand: float | None


def read_trace(name: str, text: str) -> Trace:
    """The trace in *text*: our format (docs/capacity.md), or that of SkyPilot's and SkyNomad's traces.

    Theirs have ``metadata.gap_seconds`` and ``data``: numbers of nodes, or, where they have prices, 1 for a lost node
    and 0 for an available one. *name*, such as ``us-west-2a_v100_1``, then says zone and instance type.
    """
    try:
        values = json.loads(text)
        if "metadata" in values:
            return _published(name, values)
        nodes = _decoded(values["nodes"])
        price = (
            np.full(len(nodes), values["price"]) if isinstance(values["price"], float) else _decoded(values["price"])
        )
        pool = CapacityPool(values["zone"], values["instance_type"])
        return Trace(pool, float(values["step"]), nodes.astype(np.int64), price, float(values["on_demand"]))
    except (ValueError, KeyError, TypeError) as error:
        remedy = f"is no trace ({type(error).__name__}: {error}); docs/capacity.md describes the formats"
        raise input_error(hints.option("traces"), name, remedy) from error


def _decoded(runs: Sequence[tuple[float, int]]) -> NDArray[np.float64]:
    return np.repeat([float(value) for value, _ in runs], [count for _, count in runs])


def _published(name: str, values: Mapping[str, Any]) -> Trace:
    zone, _, instance_type = name.partition("_")
    metadata, nodes = values["metadata"], np.array(values["data"], dtype=np.int64)
    if "prices" not in values:
        return Trace(CapacityPool(zone, instance_type), float(metadata["gap_seconds"]), nodes, None, None)
    price = np.array(values["prices"], dtype=np.float64)
    on_demand = float(metadata["price_info"]["on_demand_price"])
    return Trace(CapacityPool(zone, instance_type), float(metadata["gap_seconds"]), 1 - nodes, price, on_demand)


def region(zone: str) -> str:
    """The region of a zone of AWS (``us-west-2a``) or Google Cloud (``us-west1-a``)."""
    return re.sub(r"-?[a-z]$", "", zone)


def market(traces: Sequence[Trace], job: Job, price: float | None, on_demand: float | None) -> Market:
    """The market of the pools that *job* allows; *price* and *on_demand* are for traces without prices.

    Raises:
        InputError: with all reasons why these traces and this job do not go together.
    """
    used = [
        trace
        for trace in traces
        if (not job.zones or trace.pool.zone in job.zones)
        and (not job.instance_types or trace.pool.instance_type in job.instance_types)
    ]
    problems = list(_problems(traces, used, job, price, on_demand))
    if problems:
        raise InputError(problems)
    ticks = min(len(trace.nodes) for trace in used)
    prices = [np.full(ticks, price) if trace.price is None else trace.price[:ticks] for trace in used]
    fallback = min(trace.on_demand or on_demand or 0.0 for trace in used)
    nodes = np.stack([trace.nodes[:ticks] for trace in used])
    return Market(tuple(trace.pool for trace in used), nodes, np.stack(prices), fallback, used[0].step)


def _problems(
    traces: Sequence[Trace], used: Sequence[Trace], job: Job, price: float | None, on_demand: float | None
) -> list[Problem]:
    zones, types = ({trace.pool.zone for trace in traces}, {trace.pool.instance_type for trace in traces})
    problems = [
        Problem(f"capacity.{key}", name, f"no trace of it; the traces are of {', '.join(sorted(known))}")
        for key, named, known in (("zones", job.zones, zones), ("instance_types", job.instance_types, types))
        for name in named
        if name not in known
    ]
    regions = sorted({region(trace.pool.zone) for trace in used})
    if len(regions) > 1:
        problems.append(
            Problem("capacity.zones", list(job.zones) or None, f"name zones of one of {', '.join(regions)}")
        )
    if len({trace.step for trace in used}) > 1:
        problems.append(
            Problem(
                hints.option("traces"), None, "the traces have ticks of different lengths: name zones of one length"
            )
        )
    if any(trace.price is None for trace in used) and (price is None or on_demand is None):
        problems.append(
            Problem(hints.option("traces"), None, "has traces without prices: add --price and --on-demand-price")
        )
    most = max((int(trace.nodes.max(initial=0)) for trace in used), default=0)
    if used and most < job.sizes[0]:
        problems.append(Problem("nodes", job.sizes[0], f"the traces count up to {most} nodes: name fewer"))
    return problems
