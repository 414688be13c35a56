"""Jobs on recorded capacity: what they are expected to cost, and what other policies would cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from spotmpi.capacity import baselines, requirements
from spotmpi.capacity.chains import Indices
from spotmpi.capacity.expectation import Expectation, expected_of
from spotmpi.capacity.job import Job, hours
from spotmpi.capacity.market import Market
from spotmpi.capacity.optimum import optimum
from spotmpi.capacity.requirements import job_of
from spotmpi.capacity.simulation import Outcome, join, planned, simulate, window_ticks
from spotmpi.capacity.traces import Trace, market, read_trace
from spotmpi.core import wording
from spotmpi.core.errors import InputError, Problem, input_error
from spotmpi.core.wording import Echo, silent
from spotmpi.spec.job import JobSpec
from spotmpi.spec.workers import MOST_DOLLARS

T = TypeVar("T")

ECHO_INTERVAL = 10.0  # seconds between messages about the progress
TICK = 600.0  # seconds between decisions
_OURS = "this policy"
_PRICE = f"a number above 0, and at most {MOST_DOLLARS:,}"
_BLOCKS = 8  # of a trace; the windows that begin in one share a plan, made from what was before it


@dataclass(frozen=True)
class PolicyResult:
    """A policy's means over all windows: dollars, times the optimum, windows that were late, starts, and hours."""

    policy: str
    dollars: float
    ratio: float | None
    late: int
    starts: float
    on_demand_hours: float
    idle_hours: float


@dataclass(frozen=True)
class Simulation:
    """A job on the traces of some pools, in so many windows: what to expect of it, and the policies compared."""

    job: Job
    pools: tuple[str, ...]
    days: float
    windows: int
    expectation: Expectation
    results: tuple[PolicyResult, ...]


@dataclass(frozen=True)
class Prices:
    """Dollars per node and hour for traces that have no prices."""

    spot: float | None = None
    on_demand: float | None = None


def simulate_job(
    spec: JobSpec,
    folder: Path,
    windows: int,
    prices: Prices,
    now: datetime,
    seed: int = 0,
    echo: Echo = silent,
) -> Simulation:
    """The job of *spec* in *windows* windows of the traces in *folder*, drawn with *seed*; *echo* gets its progress.

    Raises:
        InputError: with all reasons why it cannot be done within its limits, or does not fit to the traces.
    """
    job, problems = job_of(spec, now)
    recorded = _collected(problems, lambda: market(read_traces(folder), job, prices.spot, prices.on_demand))
    problems += requirements.problems(job, recorded.on_demand if recorded else None)
    if spec.capacity.order:
        remedy = "a simulation has the zones and types of its traces, no order and no Capacity Blocks: remove it"
        problems.append(Problem("capacity.order", spec.capacity.order, remedy))
    problems += [
        Problem(wording.option(name), value, f"must be {least}")
        for name, value, is_valid, least in (
            ("windows", windows, windows >= 1, "at least 1"),
            ("seed", seed, seed >= 0, "at least 0"),
            ("price", prices.spot, _is_price(prices.spot), _PRICE),
            ("on-demand-price", prices.on_demand, _is_price(prices.on_demand), _PRICE),
        )
        if not is_valid
    ]
    if problems or recorded is None:
        raise InputError(problems)
    recorded = recorded.coarser(TICK)
    ticks = window_ticks(job, recorded)
    if recorded.ticks <= 2 * ticks:
        remedy = f"the traces last {hours(recorded.ticks * recorded.step)}, and have to be twice as long as it"
        raise input_error("capacity.deadline", hours(job.deadline), remedy)
    blocks = window_starts(recorded.ticks - ticks, windows, seed)
    pools = tuple(str(pool) for pool in recorded.pools)
    days = recorded.ticks * recorded.step / 86400
    # A trace has no more windows than ticks, however many are drawn: each that differs is simulated once.
    distinct = [np.unique(block, return_counts=True) for block in blocks]
    starts, counts = [each for each, _ in distinct], np.concatenate([count for _, count in distinct])
    parts = _Parts(2 * len(starts) + 4 if job.on_demand_allowed else len(starts) + 1, echo)
    least = None
    if job.on_demand_allowed:
        best = np.concatenate([parts.add(optimum(job, recorded, each)) for each in starts])
        least = float(np.average(best, weights=counts))
    outcomes = {policy: each.repeated(counts) for policy, each in _outcomes(job, recorded, starts, parts).items()}
    results = tuple(_result(policy, outcome, least) for policy, outcome in outcomes.items())
    return Simulation(job, pools, days, windows, expected_of(job, outcomes[_OURS], recorded.on_demand), results)


def _is_price(dollars: float | None) -> bool:
    return dollars is None or 0 < dollars <= MOST_DOLLARS


def _collected(problems: list[Problem], read: Callable[[], T]) -> T | None:
    """What *read* gives, or None, with its problems added to *problems*."""
    try:
        return read()
    except InputError as error:
        problems += error.problems
        return None


def read_traces(folder: Path) -> list[Trace]:
    """The traces in *folder*: `NAME.json`, or `NAME/full.json` as in SkyNomad's; InputError if there are none."""
    files = {path.stem: path for path in sorted(folder.glob("*.json"))}
    files |= {path.parent.name: path for path in sorted(folder.glob("*/full.json"))}
    if not files:
        raise input_error(
            wording.option("traces"), str(folder), "no traces here, NAME.json or NAME/full.json; check the path"
        )
    problems: list[Problem] = []
    traces = [_collected(problems, partial(_trace, name, path)) for name, path in files.items()]
    if problems:
        raise InputError(problems)
    return [each for each in traces if each is not None]


def _trace(name: str, trace: Path) -> Trace:
    try:
        text = trace.read_text(encoding="utf-8-sig")  # some editors write a mark at the beginning
    except OSError as error:
        raise input_error(
            wording.option("traces"), str(trace), f"cannot be read: {error.strerror}; check its path and permissions"
        ) from error
    except UnicodeDecodeError as error:
        wrong = f"is not a trace, which is JSON: {wording.reason_of(error)}"
        raise input_error(wording.option("traces"), str(trace), wrong) from error
    return read_trace(name, text)


def window_starts(ticks: int, windows: int, seed: int) -> list[Indices]:
    """First ticks of *windows* windows within *ticks*, in blocks."""
    random = np.random.default_rng(seed)
    counts = [windows * (block + 1) // _BLOCKS - windows * block // _BLOCKS for block in range(_BLOCKS)]
    edges = np.linspace(1, max(2, ticks), _BLOCKS + 1).astype(np.int64)
    return [
        np.sort(random.integers(low, max(high, low + 1), count))
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
        if count
    ]


class _Parts:
    """The parts of a simulation, which *echo* is told of every 10 s."""

    def __init__(self, count: int, echo: Echo) -> None:
        self._count, self._echo, self._done = count, echo, 0
        self._began = self._last = time.monotonic()

    def add(self, result: T) -> T:
        """The *result* of a part."""
        self._done += 1
        now = time.monotonic()
        if now >= self._last + ECHO_INTERVAL and self._done < self._count:
            left = (now - self._began) / self._done * (self._count - self._done)
            self._echo(f"simulated {self._done} of {self._count} parts, about {left:.0f} s left")
            self._last = now
        return result


def _outcomes(job: Job, recorded: Market, blocks: Sequence[Indices], parts: _Parts) -> dict[str, Outcome]:
    """What each policy costs in the windows of *blocks*."""
    starts = np.concatenate(blocks)
    policies = {"spot, else wait": baselines.greedy(job)}
    if job.on_demand_allowed:
        policies = {"Uniform Progress": baselines.uniform_progress(job), **policies}
        policies |= {"spot, else on-demand": baselines.fallback(job), "on-demand": baselines.on_demand(job)}
    ours = join([parts.add(planned(job, recorded, block)) for block in blocks])
    return {_OURS: ours} | {name: parts.add(simulate(job, recorded, starts, each)) for name, each in policies.items()}


def _result(policy: str, outcome: Outcome, least: float | None) -> PolicyResult:
    dollars = float(outcome.dollars.mean())
    return PolicyResult(
        policy=policy,
        dollars=dollars,
        ratio=dollars / least if least else None,
        late=outcome.missed,
        starts=float(outcome.starts.mean()),
        on_demand_hours=float(outcome.on_demand.mean()) / 3600,
        idle_hours=float(outcome.waited.mean()) / 3600,
    )
