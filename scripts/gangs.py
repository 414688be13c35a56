"""What nodes that wait for others cost, and when a gang is whole, by each way in which its nodes can be asked for.

The same shortages are simulated for each way: times at which no zone of a recorded region has the gang, and one has a
part of it, and made-up shortages with partial answers. A zone's number of nodes is what a user can have there: held
nodes above it are lost. What the originals do, and from where that is known:

- An Auto Scaling group launches what is there of its desired capacity; the rest is a failed activity. EKS's managed
  groups and own ones do the same here: EKS adds drains at rebalance recommendations, for whose rate no source was
  found, so no restart is counted for them.
- The cluster autoscaler (kubernetes/autoscaler: cluster-autoscaler/cloudprovider/aws/auto_scaling_groups.go,
  isNodeGroupAvailable and DeleteInstances; clusterstate/clusterstate.go; utils/backoff/exponential_backoff.go) looks
  every ten seconds. At a failed activity it sets the desired capacity to the nodes that came, and leaves the group
  alone for 5, 10, 20, then 30 minutes, which events of pods say. It removes nodes that nothing uses.
- The placement controller is spotmpi's: `spotmpi.agent.placement.next_state` decides at each look.
- Kueue's ProvisioningRequest (cluster-autoscaler/provisioningrequest/besteffortatomic, core/scaleup/orchestrator/
  executor.go, increaseSize): AWS's groups have no AtomicIncreaseSize, so this is the usual increase, reported as
  provisioned before a node is there. For pods that consume a request no other node is asked (processors/provreq).
  Only `waitForPodsReady`, off by default, ends the wait, after 5 minutes, for pauses of 1, 2, 4 ... 60 (Kueue's
  defaults.go).
- CreateFleet of type `instant` makes one attempt, and with MinTargetCapacity it launches no instance where it cannot
  launch so many (EC2 API, SpotOptionsRequest). It has to be called again.
- LaunchInstances of EC2 Auto Scaling (API of November 2025) answers at once with the instances and errors. What is too
  few is terminated at once, and costs EC2's minimum of a minute.

A node is paid from its launch to its end. Of that, the boot of the nodes of a gang that starts is no waste, and all
else is idle: nodes that wait for others, and those that are released, until the autoscaler has removed them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from random import Random

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "jobs")]

from scripts.capacity import PAGE, RECORDED, table  # noqa: E402
from spotmpi.agent import placement  # noqa: E402
from spotmpi.agent.plan import PlacedCapacity  # noqa: E402
from spotmpi.api.simulation import read_traces  # noqa: E402
from spotmpi.capacity.job import Job  # noqa: E402
from spotmpi.capacity.traces import market  # noqa: E402
from spotmpi.spec.job import Capacity  # noqa: E402

STEP = 10.0  # seconds: the autoscaler's scan-interval, and a look of the controller, which has one each 5 s
HORIZON = 12 * 3600.0  # seconds after which a request is given up
BACKOFF, BACKOFF_RESET = 300.0, 3 * 3600.0  # s: the autoscaler's defaults
AFTER_ADD = 300.0  # s: infra/autoscaling.py, scale-down-delay-after-add
PODS_READY, REQUEUE, MOST_REQUEUE = 300.0, 60.0, 3600.0  # s: Kueue's waitForPodsReady and its requeuingStrategy
NO_LIMIT, LIMITED, DEFAULT = float("inf"), "groups, limit (spotmpi)", "as above"
MINIMUM = 60.0  # s that EC2 bills at least
REGIONS = {name: each[:2] for name, each in RECORDED.items() if each[2] == 16} | {
    "16 V100 us-east-2": ("v100-16", ("us-east-2b",)),
    "16 H100 us-east5": ("h100-16", ("us-east5-a",)),
    "16 H100 europe-west1": ("h100-16", ("europe-west1-c",)),
}
DOLLARS = {"g6.xlarge": 0.8048, "p5.48xlarge": 55.04}  # on demand, per hour in us-east-1, AWS's list in 2025


@dataclass(frozen=True)
class Times:
    """Seconds. The first three are guesses, and the others are settings."""

    stagger: float = 10.0  # between two instances of one request
    boot: float = 120.0  # from a launch to a node that is Ready
    failure: float = 30.0  # until a launch for which there is no instance is a failed activity
    unneeded: float = 180.0  # infra/autoscaling.py, scale-down-unneeded-time
    backoff: float = 1800.0  # the autoscaler's default of max-node-group-backoff-duration
    fleet: float = 60.0  # between calls of CreateFleet
    launch: float = 600.0  # between calls of LaunchInstances


@dataclass(frozen=True)
class Shortage:
    """A request for *size* nodes at a time at which no zone has them: nodes in each zone in ticks of *step* seconds."""

    size: int
    nodes: tuple[tuple[int, ...], ...]  # of each zone, from the request on
    step: float

    def offered(self, zone: int, now: float) -> int:
        """The nodes that *zone* has *now* seconds after the request; the last number lasts."""
        nodes = self.nodes[zone]
        return nodes[min(int(now // self.step), len(nodes) - 1)]


@dataclass(frozen=True)
class Outcome:
    """What became of a request."""

    start: float | None  # seconds until all nodes were Ready at once; None where that was not within `HORIZON`
    idle: float  # node-seconds paid for nothing
    calls: int  # of AWS's API that ask for nodes or end them
    longest: float = 0.0  # seconds for which Ready nodes waited for others at a stretch


class Group:
    """The Auto Scaling group of one zone, and what the cluster autoscaler does with it."""

    def __init__(self, offered: Callable[[float], int], times: Times) -> None:
        self.nodes: list[float] = []  # when each is Ready
        self.calls = 0
        self.backoff_until = 0.0
        self._offered, self._times = offered, times
        self._desired = 0
        self._next_launch = self._scaled = 0.0
        self._failed: float | None = None  # when its activity has failed
        self._backoff = self._backed_off = 0.0
        self._unused: float | None = None  # since when

    def step(self, now: float, pods: int, asks: bool = True) -> None:
        """What happens until *now*: *pods* want a node of this group each, for which the autoscaler *asks* or not."""
        offered = self._offered(now)
        del self.nodes[offered:]
        self._unused = None if pods else now if self._unused is None else self._unused
        if self._failed is not None and now >= self._failed:
            self._back_off(now)
        elif asks and pods > self._desired and now >= self.backoff_until:
            self._desired, self._scaled, self._next_launch = pods, now, now
            self.calls += 1
        if self._unused is not None and now >= self._scaled + AFTER_ADD:
            self._remove(now)
        due = max(self._next_launch, now - STEP)
        while len(self.nodes) < self._desired and self._failed is None and due <= now:
            if len(self.nodes) < offered:
                self.nodes.append(due + self._times.boot)
            else:
                self._failed = due + self._times.failure
            due += self._times.stagger
        self._next_launch = due

    def end(self, ready: float) -> float:
        """When the autoscaler removes a node that was *ready* then and that nothing uses."""
        assert self._unused is not None
        return max(self._unused, ready) + self._times.unneeded

    def _back_off(self, now: float) -> None:
        self._desired, self._failed = len(self.nodes), None
        self.calls += 1
        is_again = self.backoff_until < now <= self._backed_off + BACKOFF_RESET
        self._backoff = min(2 * self._backoff, self._times.backoff) if is_again and self._backoff else BACKOFF
        self.backoff_until, self._backed_off = now + self._backoff, now

    def _remove(self, now: float) -> None:
        left = [each for each in self.nodes if now < self.end(each)]
        removed, self.nodes = len(self.nodes) - len(left), left
        self._desired -= removed
        self.calls += removed


class Groups:
    """The groups of the zones of a shortage, and what their nodes cost."""

    def __init__(self, shortage: Shortage, times: Times) -> None:
        self._size, self._times = shortage.size, times
        self.zones = [Group(partial(shortage.offered, zone), times) for zone in range(len(shortage.nodes))]
        self.now = 0.0
        self._paid = self._longest = 0.0
        self._waiting: float | None = None  # since when Ready nodes wait

    def step(self, zone: int | None, asks: bool = True) -> list[float]:
        """Let `STEP` seconds pass with pods in *zone*, if any: since when each node of these is there."""
        self.now += STEP
        for number, group in enumerate(self.zones):
            group.step(self.now, self._size if number == zone else 0, asks)
            self._paid += STEP * len(group.nodes)
        ready = [] if zone is None else [each for each in self.zones[zone].nodes if each <= self.now]
        if not 0 < len(ready) < self._size:
            self._waiting = None
        elif self._waiting is None:
            self._waiting = self.now
        self._longest = max(self._longest, 0.0 if self._waiting is None else self.now - self._waiting)
        return ready

    def outcome(self, zone: int | None) -> Outcome:
        """What became of the request, whose gang starts in *zone*, or not at all."""
        calls = sum(each.calls for each in self.zones)
        if zone is None:
            return Outcome(None, self._paid, calls, self._longest)
        others = [each for number, each in enumerate(self.zones) if number != zone]
        tails = sum(each.end(ready) - self.now for each in others for ready in each.nodes)
        return Outcome(self.now, self._paid + tails - self._size * self._times.boot, calls, self._longest)


def controlled(shortage: Shortage, times: Times, capacity: PlacedCapacity) -> tuple[Outcome, placement.State]:
    """By Auto Scaling groups, with the decisions of spotmpi's controller, in the zones of the shortage in turn."""
    groups, names = Groups(shortage, times), [each["name"] for each in capacity["placements"]]
    state, created, sizes = placement.initial(capacity), 0.0, (shortage.size,)
    while groups.now < HORIZON:
        zone, gone = names.index(state["at"]), state["moving"]
        ready = groups.step(None if gone else zone)
        now = groups.now
        if gone:
            if now >= (placement.waits_until(state) or 0.0):
                state, created = {**state, "moving": False}, now
            continue
        if len(ready) == shortage.size:
            return groups.outcome(zone), state
        is_told = capacity["partial"] < NO_LIMIT and now < groups.zones[zone].backoff_until  # by events of pods
        idle = tuple(max(created, each) for each in ready)
        seen = placement.Gang(len(ready), created, created, idle, "in backoff" if is_told else "")
        state = placement.next_state(state, seen, capacity, sizes, now) or state
    return groups.outcome(None), state


def provisioned(shortage: Shortage, times: Times) -> Outcome:
    """By Kueue's ProvisioningRequest, in the first zone that the autoscaler does not leave alone."""
    groups, zone, admitted, again, pause = Groups(shortage, times), None, 0.0, 0.0, REQUEUE
    while groups.now < HORIZON:
        if zone is None and groups.now >= again:
            zones = [number for number, each in enumerate(groups.zones) if groups.now + STEP >= each.backoff_until]
            zone, admitted = (zones[0] if zones else None), groups.now
        ready = groups.step(zone, asks=groups.now == admitted)
        if zone is not None and len(ready) == shortage.size:
            return groups.outcome(zone)
        if zone is not None and groups.now - admitted >= PODS_READY:
            zone, again, pause = None, groups.now + pause, min(2 * pause, MOST_REQUEUE)
    return groups.outcome(None)


def together(shortage: Shortage, times: Times, is_minimum: bool) -> Outcome:
    """By one call for each zone after the other, again and again; with a minimum a call for too many launches none."""
    idle, calls, now = 0.0, 0, 0.0
    while now < HORIZON:
        for zone in range(len(shortage.nodes)):
            calls, offered = calls + 1, shortage.offered(zone, now)
            if offered >= shortage.size:
                boot = np.arange(now, now + times.boot + 1.0, STEP)
                lost = next((each for each in boot if shortage.offered(zone, each) < shortage.size), None)
                if lost is None:
                    return Outcome(now + times.boot, idle, calls)
                idle, now = idle + shortage.size * max(MINIMUM, lost - now), lost  # the others are ended at once
            elif not is_minimum and offered:
                idle, calls = idle + offered * MINIMUM, calls + offered
        now += times.fleet if is_minimum else times.launch
    return Outcome(None, idle, calls)


def capacity_of(zones: int, limit: float | None = None) -> PlacedCapacity:
    """The node groups of *zones* zones, by the defaults of the spec but for a *limit* of partial gangs, in seconds."""
    spec, machine = Capacity(), {"type": "any", "market": "spot"}
    names = [f"zone-{number}" for number in range(zones)]
    return {
        "patience": spec.patience,
        "partial": spec.partial if limit is None else limit,
        "retry": spec.retry,
        "overhead": 0.0,
        "pods": "",
        "standby": 0,
        "placements": [
            {"name": name, "node_selector": {}, "tolerations": [], "machine": machine, "rate": None} for name in names
        ],
        "reason": "",
        "deadline": None,
        "forecast": None,
    }


def _by_controller(shortage: Shortage, times: Times, limit: float | None = None) -> Outcome:
    return controlled(shortage, times, capacity_of(len(shortage.nodes), limit))[0]


WAYS: dict[str, Callable[[Shortage, Times], Outcome]] = {
    "groups, no limit": partial(_by_controller, limit=NO_LIMIT),
    LIMITED: _by_controller,
    "ProvisioningRequest": provisioned,
    "LaunchInstances": partial(together, is_minimum=False),
    "CreateFleet": partial(together, is_minimum=True),
}


@cache
def recorded(region: str) -> tuple[np.ndarray, float]:
    """The nodes of each zone of a region at each tick, and the seconds of a tick."""
    folder, zones = REGIONS[region]
    known = market(read_traces(ROOT / "tests" / "traces" / folder), Job(1.0, 1.0, zones=zones), None, None)
    return known.available, known.step


def recorded_shortages(region: str, size: int, count: int, seed: int) -> list[Shortage]:
    """Up to *count* ticks of a region at which no zone has the gang and one has a part of it, each at most once."""
    nodes, step = recorded(region)
    most, ticks = nodes.max(axis=0), int(HORIZON // step) + 1
    starts = np.flatnonzero((most > 0) & (most < size))
    starts = starts[starts + ticks < nodes.shape[1]]
    chosen = Random(seed).sample(list(map(int, starts)), min(count, len(starts)))
    return [Shortage(size, tuple(map(tuple, nodes[:, at : at + ticks].tolist())), step) for at in chosen]


def made_up(size: int, zones: int, count: int, seed: int) -> list[Shortage]:
    """Shortages as those of tests/unit/agent/test_placement.py: another part of the gang, or all, every six minutes."""
    random, ticks = Random(seed), int(HORIZON // 15.0) + 1

    def zone() -> tuple[int, ...]:
        nodes = [size - 1]
        while len(nodes) < ticks:
            is_new = random.random() < 0.04
            nodes.append(random.choice([0, 1, size - 1, size - 1, size]) if is_new else nodes[-1])
        return tuple(nodes)

    return [Shortage(size, tuple(zone() for _ in range(zones)), 15.0) for _ in range(count)]


SETS: dict[str, Callable[[int], list[Shortage]]] = {
    "16 nodes, recorded": lambda count: _everywhere(16, count),
    "4 nodes, recorded": lambda count: _everywhere(4, count),
    "16 nodes, made up": lambda count: [*made_up(16, 1, count, 1), *made_up(16, 3, count, 2)],
    "4 nodes, made up": lambda count: [*made_up(4, 1, count, 3), *made_up(4, 3, count, 4)],
}
VARIANTS = {DEFAULT: Times()} | {
    f"{what}: {value:g} s": replace(Times(), **{key: value})
    for key, what, values in (
        ("stagger", "between two instances of a request", (5.0, 20.0)),
        ("boot", "from a launch to a Ready node", (60.0, 240.0)),
        ("failure", "until a launch has failed", (15.0, 60.0)),
        ("unneeded", "the autoscaler removes nodes after", (60.0, 300.0)),
        ("backoff", "its longest backoff", (300.0,)),
        ("fleet", "between calls of CreateFleet", (300.0, 900.0)),
        ("launch", "between calls of LaunchInstances", (300.0, 1200.0)),
    )
    for value in values
}


def _everywhere(size: int, count: int) -> list[Shortage]:
    return [each for seed, region in enumerate(REGIONS) for each in recorded_shortages(region, size, count, seed)]


def outcomes(case: tuple[str, int, str, Times]) -> list[Outcome]:
    """What becomes of each request of a set, of which *count* are from each region or kind, by one way."""
    name, count, way, times = case
    return [WAYS[way](each, times) for each in SETS[name](count)]


def compare(found: Mapping[str, Sequence[Outcome]]) -> dict[str, dict[str, str]]:
    """The figures of each way by their names, where *found* has its outcomes of the same requests."""
    columns = zip(*found.values(), strict=True)
    first = [min(HORIZON if each.start is None else each.start for each in column) for column in columns]
    return {way: _figures(each, first) for way, each in found.items()}


def _figures(found: Sequence[Outcome], first: Sequence[float]) -> dict[str, str]:
    starts = [HORIZON if each.start is None else each.start for each in found]
    later = [(start - least) / 60 for start, least in zip(starts, first, strict=True)]
    idle, gangs = sum(each.idle for each in found) / 60, sum(each.start is not None for each in found)
    return {
        "idle per shortage": f"{idle / len(found):.0f} min",
        "per gang": f"{idle / max(1, gangs):.0f} min",
        "started": f"{100 * gangs / len(found):.0f} %",
        "later than the first": f"{np.median(later):.0f} min",
        "p95": f"{np.quantile(later, 0.95):.0f} min",
        "calls per hour": f"{sum(each.calls for each in found) / sum(starts) * 3600:.0f}",
    } | {kind: f"${idle / len(found) / 60 * price:.2f}" for kind, price in DOLLARS.items()}


def main() -> int:
    """Simulate all requests by each way, and print the tables; 1 if nodes waited longer than they may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--full", action="store_true", help="twice as many requests, and the tables go to docs/capacity.md"
    )
    full = parser.parse_args().full
    began, load, count = time.monotonic(), os.getloadavg()[0], 20 if full else 10
    cases = [(name, count, way, Times()) for name in SETS for way in WAYS]
    cases += [(next(iter(SETS)), count // 2, way, times) for times in VARIANTS.values() for way in WAYS]
    with multiprocessing.Pool(2) as pool:
        found = iter(pool.map(outcomes, cases, chunksize=1))
    results = {name: {way: next(found) for way in WAYS} for name in SETS}
    variants = {variant: {way: next(found) for way in WAYS} for variant in VARIANTS}
    compared = [(name, way, each) for name in SETS for way, each in compare(results[name]).items()]
    rows = [(name, way, *each.values()) for name, way, each in compared]
    changed = [
        (name, *(f"{each['idle per shortage']}; {each['later than the first']}" for each in compare(ways).values()))
        for name, ways in variants.items()
    ]
    requests, fewer = (sum(len(each[LIMITED]) for each in kind) for kind in (results.values(), [variants[DEFAULT]]))
    text = "\n\n".join(
        [
            f"Of {datetime.now(UTC):%-d %B %Y}: {requests} requests, {fewer} in the last table.",
            table(("requests", "way", *compared[0][2]), rows),
            table((f"{next(iter(SETS))}: idle; later", *WAYS), changed),
        ]
    )
    print(text + f"\n\n{time.monotonic() - began:.0f} s on two processes, load before {load:.1f}")
    if full:
        page = PAGE.read_text(encoding="utf-8")
        pattern = r"(?s)(<!-- gangs -->\n).*(<!-- end of gangs -->)"
        PAGE.write_text(re.sub(pattern, rf"\1\n{text}\n\n\2", page), encoding="utf-8")
    longest = max(each.longest for ways in results.values() for each in ways[LIMITED])
    if longest > Capacity().partial + STEP:
        print(f"nodes waited for others for {longest:.0f} s", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
