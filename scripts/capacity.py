"""Proof of the capacity policy: windows of recorded and synthetic markets, against other policies and the optimum.

It exits 1 if a deadline is missed or a figure is worse than its bound. With --full it has twice as many windows,
and writes the tables into docs/capacity.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "jobs"))

from spotmpi.api.simulation import TICK, read_traces, window_starts  # noqa: E402
from spotmpi.capacity import baselines  # noqa: E402
from spotmpi.capacity.choice import Policy  # noqa: E402
from spotmpi.capacity.job import Job  # noqa: E402
from spotmpi.capacity.market import Market  # noqa: E402
from spotmpi.capacity.optimum import optimum  # noqa: E402
from spotmpi.capacity.placement import CapacityPool  # noqa: E402
from spotmpi.capacity.simulation import join, planned, simulate, window_ticks  # noqa: E402
from spotmpi.capacity.traces import market  # noqa: E402

HOUR = 3600.0
PAGE = ROOT / "docs" / "capacity.md"
# Zones of one region, and the gang.
RECORDED = {
    "V100 us-east-1": ("v100-1", ("us-east-1c", "us-east-1d", "us-east-1f"), 1),
    "V100 us-east-2": ("v100-1", ("us-east-2a", "us-east-2b"), 1),
    "V100 us-west-2": ("v100-1", ("us-west-2a", "us-west-2b", "us-west-2c"), 1),
    "16 V100 us-west-2": ("v100-16", ("us-west-2a", "us-west-2c"), 16),
    "16 H100 us-central1": ("h100-16", ("us-central1-a", "us-central1-b", "us-central1-c"), 16),
    "16 H100 us-east4": ("h100-16", ("us-east4-a", "us-east4-b"), 16),
    "16 H100 us-west1": ("h100-16", ("us-west1-a", "us-west1-b"), 16),
    "16 H100 asia-southeast1": ("h100-16", ("asia-southeast1-b", "asia-southeast1-c"), 16),
}
WORK = 16 * HOUR
DEADLINES = {"tight": 1.25, "loose": 2.0}  # times the work
OVERHEADS = {"3 min": 180.0, "12 min": 720.0}
HIGH = 0.8  # share of a window's ticks at which a zone has the gang
POLICIES: dict[str, Callable[[Job], Policy]] = {
    "Uniform Progress": baselines.uniform_progress,
    "spot, else wait": baselines.greedy,
    "spot, else on-demand": baselines.fallback,
}
SIZES, SPEEDS = (4, 8, 16), (0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Windows:
    """What windows of one market, deadline and overhead cost, as shares of what on-demand nodes cost."""

    name: str
    deadline: str
    overhead: str
    high: np.ndarray
    missed: int
    shares: dict[str, np.ndarray]


def recorded(name: str) -> Market:
    """A recorded market."""
    folder, zones, _ = RECORDED[name]
    traces = read_traces(ROOT / "tests" / "traces" / folder)
    return market(traces, Job(1.0, 1.0, zones=zones), None, None).coarser(TICK)


def synthetic() -> dict[str, Market]:
    """Extremes: markets of two zones over ten days."""
    ticks = np.arange(1440)
    random = np.random.default_rng(0)
    up = np.ones(1440, dtype=np.int64)
    rare = (random.random((2, 1440)) < 0.05).astype(np.int64)
    nodes = {
        "always": (up, up),
        "never": (0 * up, 0 * up),
        "every other tick": (ticks % 2, 1 - ticks % 2),
        "an hour on, an hour off": (ticks // 6 % 2, ticks // 6 % 2),
        "a day on, a day off": (ticks // 144 % 2, 1 - ticks // 144 % 2),
        "ticks now and then": (rare[0], rare[1]),
        "lost for good on day five": (ticks < 720, ticks < 720),
        "there, but dearer than on-demand": (up, up),
    }
    return {name: _two_zones(np.stack(zones).astype(np.int64), name) for name, zones in nodes.items()}


def _two_zones(nodes: np.ndarray, name: str) -> Market:
    price = np.where(np.arange(nodes.shape[1]) // 36 % 2, 4.0 if "dearer" in name else 1.0, 1.0)
    pools = (CapacityPool("a", "g5.xlarge"), CapacityPool("b", "g5.xlarge"))
    return Market(pools, nodes, np.stack([price, price]), 3.0, TICK)


def run(case: tuple[str, str, str, int]) -> Windows:
    """The windows of one case: market, deadline, overhead, number of windows."""
    name, deadline, overhead, count = case
    known = recorded(name) if name in RECORDED else synthetic()[name]
    gang = RECORDED[name][2] if name in RECORDED else 1
    job = Job(WORK, WORK * DEADLINES[deadline], (gang,), overhead=OVERHEADS[overhead])
    blocks = window_starts(known.ticks - window_ticks(job, known), count, seed=len(name))
    starts = np.concatenate(blocks)
    outcomes = {"this policy": join([planned(job, known, block) for block in blocks])}
    outcomes |= {each: simulate(job, known, starts, policy(job)) for each, policy in POLICIES.items()}
    dollars = {each: outcome.dollars for each, outcome in outcomes.items()}
    dollars["optimum"] = optimum(job, known, starts)
    present: np.ndarray = (known.offered >= gang).max(axis=0)
    share = np.array([present[start : start + window_ticks(job, known)].mean() for start in starts])
    on_demand = job.on_demand_cost(known.on_demand)
    shares = {each: values / on_demand for each, values in dollars.items()}
    return Windows(name, deadline, overhead, share >= HIGH, outcomes["this policy"].missed, shares)


def sizes(name: str) -> tuple[str, float, float, float]:
    """Node hours in 24 h on spot nodes: 16 nodes or 4, 8 and 16, of what the optimum has, and of what was there."""
    known = recorded(name)
    job = Job(24 * HOUR, 24 * HOUR, SIZES, SPEEDS, 300.0, market="spot")
    blocks = window_starts(known.ticks - window_ticks(job, known), 80, seed=1)
    starts = np.concatenate(blocks)
    fixed = replace(job, sizes=(16,), speeds=(1.0,))
    ours, only = ((job.work - join([planned(each, known, b) for b in blocks]).work).mean() for each in (job, fixed))
    least = (job.work - optimum(job, known, starts, leftover=1e6) / 1e6 * HOUR).mean()
    return name, ours / least, only / least, ours / job.work * 16 * 24


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ratios(parts: Sequence[tuple[Windows, np.ndarray]]) -> dict[str, float]:
    """Cost of each policy over all these windows, as a multiple of the optimum's; a window weighs as its optimum."""
    least = sum(float(windows.shares["optimum"][chosen].sum()) for windows, chosen in parts)
    names = ["this policy", *POLICIES]
    return {name: sum(float(windows.shares[name][chosen].sum()) for windows, chosen in parts) / least for name in names}


def bands(results: Sequence[Windows]) -> tuple[str, list[str]]:
    """The table of eight bands, and what is wrong with them."""
    rows, wrong = [], []
    for high in (True, False):
        for deadline in DEADLINES:
            for overhead in OVERHEADS:
                parts = [
                    (each, each.high == high)
                    for each in results
                    if (each.deadline, each.overhead) == (deadline, overhead)
                ]
                found = ratios(parts)
                count = sum(int(chosen.sum()) for _, chosen in parts)
                band = ("high" if high else "low", deadline, overhead)
                rows.append((*band, str(count), *(f"{value:.3f}" for value in found.values())))
                ours, *others = found.values()
                wrong += [f"{band}: {ours:.3f}, not below {other:.3f}" for other in others if ours >= other]
    return table(("availability", "deadline", "start", "windows", "this policy", *POLICIES), rows), wrong


def markets(results: Sequence[Windows]) -> str:
    """The table of markets."""
    rows = []
    for name in dict.fromkeys(each.name for each in results):
        parts = [(each, np.ones_like(each.high)) for each in results if each.name == name]
        present = np.concatenate([each.high for each, _ in parts]).mean()
        cost = np.concatenate([each.shares["this policy"] for each, _ in parts]).mean()
        found = ratios(parts)
        rows.append(
            (name, f"{present:.0%}".replace("%", " %"), f"{cost:.2f}", *(f"{value:.3f}" for value in found.values()))
        )
    return table(("market", "high", "of on-demand", "this policy", *POLICIES), rows)


def main() -> int:
    """Run all windows and print the tables; 1 if a bound does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    full = parser.parse_args().full
    began, load = time.monotonic(), os.getloadavg()[0]
    count = 280 * (2 if full else 1)
    combinations = [(deadline, overhead) for deadline in DEADLINES for overhead in OVERHEADS]
    cases = [(name, *each, count) for name in RECORDED for each in combinations]
    cases += [(name, *each, count // 8) for name in synthetic() for each in combinations]
    gangs = [name for name, (_, _, gang) in RECORDED.items() if gang == max(SIZES)]
    with multiprocessing.Pool(2) as pool:
        elastic = pool.map_async(sizes, gangs, chunksize=1)
        everything = pool.map(run, cases, chunksize=1)
        several = elastic.get()
    results = [each for each in everything if each.name in RECORDED]
    extremes = [each for each in everything if each.name not in RECORDED]
    missed = sum(each.missed for each in everything)
    windows = sum(len(each.high) for each in everything)
    overall = ratios([(each, np.ones_like(each.high)) for each in results])["this policy"]
    by_band, wrong = bands(results)
    wrong += [f"{missed} deadlines missed"] if missed else []
    wrong += [f"cost {overall:.3f} times the optimum"] if overall > 1.10 else []
    wrong += [f"{name}: {share:.1%} of the node hours" for name, share, _, _ in several if share < 0.95]
    rows = [
        (name, f"{100 * share:.1f} %", f"{100 * only:.1f} %", f"{hours:.0f}") for name, share, only, hours in several
    ]
    date = datetime.now(UTC)
    text = "\n\n".join(
        [
            f"Of {date:%-d %B %Y}: {windows:,} windows, {missed} deadlines missed; recorded markets cost "
            f"{overall:.3f} times the optimum.",
            by_band,
            markets(results),
            markets(extremes),
            table(("market", "4, 8 or 16 nodes", "16 nodes", "node hours in a day"), rows),
        ]
    )
    print(text + f"\n\n{time.monotonic() - began:.0f} s on two processes, load before {load:.1f}")
    if full:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(
            re.sub(r"(?s)(<!-- figures -->\n).*(<!-- end -->)", rf"\1\n{text}\n\n\2", page), encoding="utf-8"
        )
    for each in wrong:
        print(f"not reached: {each}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
