"""A trial: one measured run of a study, and the budget of time and money that all trials share. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spotmpi.core.price import Price
from spotmpi.spec.job import duration

PENDING = "pending"
RUNNING = "running"
SUCCEEDED = "succeeded"
FAILED = "failed"

# Roles. WITHOUT_ALLREDUCE is a measurement and no training: gradients are not synchronized.
MEASURED = "measured"
WITHOUT_ALLREDUCE = "without allreduce"
ALLREDUCE = "allreduce"  # micro-benchmark of the network, before the measured trials
READ = "read"  # micro-benchmark of reading the data, before the measured trials
BASELINE = "baseline"  # the smallest configuration, before and after all other trials


@dataclass(frozen=True)
class Trial:
    """One trial; ``runs`` are the ids of all its tries, of which the last one counts, ``seconds`` their total time.

    ``role`` is what it is for: measured, without allreduce, baseline, allreduce or read.
    """

    number: int
    variant: str
    nodes: int
    repeat: int
    state: str = PENDING
    runs: tuple[str, ...] = ()
    failures: int = 0
    reason: str | None = None
    role: str = MEASURED
    seconds: float = 0.0

    @property
    def finished(self) -> bool:
        """Whether it succeeded or failed for good."""
        return self.state in (SUCCEEDED, FAILED)

    @property
    def is_micro_benchmark(self) -> bool:
        """Whether it is a micro-benchmark."""
        return self.role in (ALLREDUCE, READ)


Configuration = tuple[str, int]  # the name of a variant, and nodes

_HOUR = 3600.0


@dataclass(frozen=True)
class Budget:
    """Limits on the total seconds and dollars of trials; ``trial_seconds`` is the expected time of one.

    ``prices`` holds node prices by configuration; ``price`` applies to all other configurations.
    """

    time_limit: float | None = None
    money_limit: float | None = None
    trial_seconds: float | None = None
    price: Price | None = None
    prices: Mapping[Configuration, Price] = field(default_factory=dict)

    @property
    def all_prices(self) -> list[Price]:
        """Every known price, the highest first."""
        known = {*self.prices.values(), *([self.price] if self.price else [])}
        return sorted(known, key=lambda price: (-price.node_hour, price.source))

    def price_of(self, variant: str, nodes: int) -> Price | None:
        """The price of a node in the trials of a configuration, None where unknown."""
        return self.prices.get((variant, nodes), self.price)

    def cost(self, trial: Trial, seconds: float) -> float | None:
        """Dollars for the nodes of *trial* over *seconds*, None without a price."""
        price = self.price_of(trial.variant, trial.nodes)
        return None if price is None else trial.nodes * seconds / _HOUR * price.node_hour

    def spent(self, trials: Sequence[Trial]) -> tuple[float, float]:
        """Seconds and dollars spent on *trials*, failed tries included."""
        seconds = sum(trial.seconds for trial in trials)
        return seconds, sum(self.cost(trial, trial.seconds) or 0.0 for trial in trials)

    def expected_seconds(self, trial: Trial, trials: Sequence[Trial]) -> float | None:
        """Expected seconds of *trial*.

        That is the median of its configuration, its node count or all trials, else ``trial_seconds``. The time
        of a micro-benchmark says nothing about that of training.
        """
        finished = [
            each
            for each in trials
            if each.seconds and each.finished and each.is_micro_benchmark == trial.is_micro_benchmark
        ]
        same_nodes = [each for each in finished if each.nodes == trial.nodes]
        similar = [each for each in same_nodes if each.variant == trial.variant] or same_nodes or finished
        return statistics.median(each.seconds for each in similar) if similar else self.trial_seconds

    def estimate(self, trials: Sequence[Trial]) -> str:
        """The time and money that the remaining trials will take, as text."""
        remaining = [trial for trial in trials if not trial.finished]
        each = [self.expected_seconds(trial, trials) for trial in remaining]
        known = [seconds for seconds in each if seconds is not None]
        if len(known) < len(remaining):
            return f"{len(remaining)} trials of unknown duration (set limits.trial in the study for an estimate)"
        costs = [self.cost(trial, seconds) for trial, seconds in zip(remaining, known, strict=True)]
        money = "" if not self.all_prices else f" and ${sum(cost or 0.0 for cost in costs):.2f}"
        exceeded = self._exceeded_limits(trials, sum(known), costs)
        return f"{len(remaining)} trials, about {_minutes(sum(known))}{money}{exceeded}"

    def exhausted(self, trial: Trial, trials: Sequence[Trial]) -> str | None:
        """Why *trial* exceeds the limits, or None if it may start."""
        seconds, dollars = self.spent(trials)
        more = self.expected_seconds(trial, trials) or 0.0
        cost = self.cost(trial, more) or 0.0
        if self.time_limit is not None and seconds + more > self.time_limit:
            return f"limits.time = {duration(self.time_limit)!r} reached: {_minutes(seconds)} spent"
        if self.money_limit is not None and dollars + cost > self.money_limit:
            return (
                f"limits.money = {self.money_limit:g} reached: ${dollars:.2f} spent, the next trial costs ${cost:.2f}"
            )
        return None

    def _exceeded_limits(self, trials: Sequence[Trial], seconds: float, costs: Sequence[float | None]) -> str:
        spent_seconds, spent_dollars = self.spent(trials)
        exceeded = []
        if self.time_limit is not None and spent_seconds + seconds > self.time_limit:
            exceeded.append(f"limits.time = {duration(self.time_limit)!r}")
        if self.money_limit is not None and spent_dollars + sum(cost or 0.0 for cost in costs) > self.money_limit:
            exceeded.append(f"limits.money = {self.money_limit:g}")
        return f"; exceeds {' and '.join(exceeded)}, where it will stop" if exceeded else ""


def _minutes(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )
