"""Recorded capacity of one pool, from the two JSON formats of traces; several of one region make a market. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spotmpi.capacity.job import Job
from spotmpi.capacity.market import Market
from spotmpi.capacity.placement import CapacityPool
from spotmpi.core import wording
from spotmpi.core.errors import InputError, Problem, input_error
from spotmpi.core.wording import counted
from spotmpi.spec.workers import MOST_DOLLARS

_MOST_TICKS = 10_000_000  # of a trace, ten years in steps of half a minute
_MOST_NODES = 1_000_000
_LONGEST_TICK = 86400.0
_OWN_KEYS = ("zone", "instance_type", "start", "step", "on_demand", "nodes", "price", "currency")


@dataclass(frozen=True)
class Trace:
    """Nodes and price of a pool at ticks of ``step`` seconds, from ``start`` (Unix seconds), None where unknown.

    Prices are None where the trace has none.
    """

    pool: CapacityPool
    step: float
    nodes: NDArray[Any]
    price: NDArray[np.float64] | None
    on_demand: float | None
    start: float | None


def read_trace(name: str, text: str) -> Trace:
    """The trace in *text*: our format (docs/capacity.md), or that of SkyPilot's and SkyNomad's traces.

    Theirs have ``metadata.gap_seconds`` and ``data``: numbers of nodes, or, where they have prices, 1 for a lost node
    and 0 for an available one. *name*, such as ``us-west-2a_v100_1``, then says zone and instance type.
    """
    try:
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("it is not a JSON object")
        return _published(name, values) if "metadata" in values else _own(values)
    except KeyError as error:
        wrong = f"it has no key {error}"
    except (ValueError, TypeError, OverflowError) as error:
        wrong = str(error)
    except RecursionError:
        wrong = "it has lists within lists without end"
    raise input_error(
        wording.option("traces"), name, f"is not a trace: {wrong}; docs/capacity.md describes the formats"
    )


def _own(values: Mapping[str, Any]) -> Trace:
    unknown = sorted({*values} - {*_OWN_KEYS})
    if unknown:
        keys = f"key{'s' * (len(unknown) > 1)} {', '.join(unknown)}"
        raise ValueError(f"unknown {keys}; the keys are {', '.join(_OWN_KEYS)}")
    _require_dollars(values)
    nodes, price = _decoded("nodes", values["nodes"]), values["price"]
    prices = _decoded("price", price) if isinstance(price, list) else np.full(len(nodes), _number("price", price))
    start = _unix_time(str(values["start"])) if values.get("start") is not None else None
    pool, on_demand = _pool(values["zone"], values["instance_type"]), _number("on_demand", values["on_demand"])
    return _checked(Trace(pool, _number("step", values["step"]), nodes, prices, on_demand, start))


def _require_dollars(values: Mapping[str, Any]) -> None:
    currency = values.get("currency", "USD")
    if currency != "USD":
        raise ValueError(f"currency is {json.dumps(currency)}: convert its prices to US dollars, and remove the key")


def _table(key: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{key} is not a JSON object")
    return value


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{key} is {json.dumps(value)}, which is not a number")
    return float(value)


def _numbers(key: str, values: object) -> NDArray[np.float64]:
    if not isinstance(values, list):
        raise ValueError(f"{key} is not a list of numbers")
    return np.array([_number(f"a value of {key}", value) for value in values])


def _unix_time(text: str) -> float:
    """The Unix time of a date and time, which are UTC where they name no offset, wherever this machine is."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            f"start is {json.dumps(text)}, which is no date and time as 2023-02-15T22:08:16Z is"
        ) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _decoded(key: str, runs: object) -> NDArray[np.float64]:
    """The values of *runs* of equal ones, [value, ticks] each."""
    pairs: list[Any] = runs if isinstance(runs, list) else [runs]
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[1]) is not int or pair[1] < 0:
            raise ValueError(f"{key} has {json.dumps(pair)}, which is not [value, ticks]")
    if sum(ticks for _, ticks in pairs) > _MOST_TICKS:
        raise ValueError(f"{key} has more than {_MOST_TICKS:,} ticks")
    values = [_number(f"a value of {key}", value) for value, _ in pairs]
    return np.repeat(values, [ticks for _, ticks in pairs])


def _published(name: str, values: Mapping[str, Any]) -> Trace:
    pool, metadata = _pool(*name.partition("_")[::2]), _table("metadata", values["metadata"])
    nodes, step = _numbers("data", values["data"]), _number("gap_seconds", metadata["gap_seconds"])
    if "prices" not in values:
        return _checked(Trace(pool, step, nodes, None, None, None))
    _require_dollars(values)
    _require_dollars(metadata)
    price_info = _table("price_info", metadata["price_info"])
    _require_dollars(price_info)
    if not np.isin(nodes, (0, 1)).all():
        raise ValueError("data with prices is 1 for a lost node and 0 for an available one")
    price = _numbers("prices", values["prices"])
    on_demand = _number("on_demand_price", price_info["on_demand_price"])
    return _checked(Trace(pool, step, 1 - nodes, price, on_demand, None))


def _pool(zone: object, instance_type: object) -> CapacityPool:
    for key, value in (("zone", zone), ("instance_type", instance_type)):
        if not isinstance(value, str) or not value:
            raise ValueError(f"{key} is {json.dumps(value)}, which is not a name")
    return CapacityPool(str(zone), str(instance_type))


def _checked(trace: Trace) -> Trace:
    """*trace* with whole numbers of nodes; ValueError where it has what no market has."""
    nodes, price = trace.nodes, trace.price
    if not len(nodes):
        raise ValueError("it has no ticks")
    if not 0 < trace.step <= _LONGEST_TICK:
        raise ValueError(f"its ticks have {trace.step:g} s; they must be longer than 0 s, and at most a day")
    if not (np.isfinite(nodes).all() and (nodes >= 0).all() and (nodes % 1 == 0).all()):
        raise ValueError("its numbers of nodes are not all whole, from 0 on")
    if nodes.max() > _MOST_NODES:
        raise ValueError(f"it has {nodes.max():g} nodes at a tick, more than {_MOST_NODES:,}")
    if trace.on_demand is not None and not 0 < trace.on_demand <= MOST_DOLLARS:
        limit = f"it must be above 0, and at most {MOST_DOLLARS:,}"
        raise ValueError(f"its on-demand price is {trace.on_demand:g} dollars per node and hour; {limit}")
    if price is not None and len(price) != len(nodes):
        raise ValueError(f"it has {counted(len(nodes), 'tick')} of nodes, but {len(price)} of prices")
    if price is not None and not ((price >= 0) & (price <= MOST_DOLLARS)).all():
        raise ValueError(f"its prices are not all numbers from 0 to {MOST_DOLLARS:,}, in dollars per node and hour")
    return replace(trace, nodes=nodes.astype(np.int64))


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
    together = list(zip(used, _together(used)))  # noqa: B905 (Python 3.8 has no strict)
    nodes = np.stack([trace.nodes[part] for trace, part in together])
    prices = [np.full(nodes.shape[1], price) if trace.price is None else trace.price[part] for trace, part in together]
    fallback = min(trace.on_demand or on_demand or 0.0 for trace in used)
    return Market(tuple(trace.pool for trace in used), nodes, np.stack(prices), fallback, used[0].step)


def _together(traces: Sequence[Trace]) -> list[slice]:
    """The ticks of each trace at which all have some; where one has no start, all are taken to begin at one time."""
    starts = [trace.start for trace in traces if trace.start is not None]
    last = max(starts) if len(starts) == len(traces) else None
    first = [0 if last is None or trace.start is None else round((last - trace.start) / trace.step) for trace in traces]
    ticks = min(len(trace.nodes) - first[number] for number, trace in enumerate(traces))
    return [slice(skipped, skipped + ticks) if ticks > 0 else slice(0, 0) for skipped in first]


def _problems(
    traces: Sequence[Trace], used: Sequence[Trace], job: Job, price: float | None, on_demand: float | None
) -> list[Problem]:
    """Why *used*, those of *traces* that the job may use, are of no use for a simulation."""
    zones, types = ({trace.pool.zone for trace in traces}, {trace.pool.instance_type for trace in traces})
    problems = [
        Problem(f"capacity.{key}", name, f"no trace of it; the traces are of {', '.join(sorted(known))}")
        for key, named, known in (("zones", job.zones, zones), ("instance_types", job.instance_types, types))
        for name in named
        if name not in known
    ]
    regions = [list(group) for _, group in groupby(sorted({trace.pool.zone for trace in used}), region)]
    if len(regions) > 1:
        choices = "; ".join(", ".join(group) for group in regions)
        problems.append(Problem("capacity.zones", list(job.zones) or None, f"name zones of one region: {choices}"))
    if len({trace.step for trace in used}) > 1:
        problems.append(
            Problem(
                wording.option("traces"), None, "the traces have ticks of different lengths: name zones of one length"
            )
        )
    elif used and _together(used)[0] == slice(0, 0):
        problems.append(Problem(wording.option("traces"), None, "the traces have no time in common: name other zones"))
    pools = [trace.pool for trace in used]
    problems += [
        Problem(wording.option("traces"), str(pool), "has more than one trace: leave one")
        for pool in sorted({pool for pool in pools if pools.count(pool) > 1})
    ]
    if any(trace.price is None for trace in used) and (price is None or on_demand is None):
        problems.append(
            Problem(wording.option("traces"), None, "has traces without prices: add --price and --on-demand-price")
        )
    most = max((int(trace.nodes.max(initial=0)) for trace in used), default=0)
    if used and most < job.sizes[0]:
        remedy = f"up to {counted(most, 'node')}: name fewer" if most else "no node at any time: name other zones"
        problems.append(Problem("nodes", job.sizes[0], f"the traces have {remedy}"))
    return problems
