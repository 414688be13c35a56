"""What a study may cost: its estimate before it starts, what it has spent, and when it must stop. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spotmpi.core.price import Price
from spotmpi.spec.job import duration
from spotmpi.study.trial import Trial

Cell = tuple[str, int]  # the name of a variant, and nodes

_HOUR = 3600.0


@dataclass(frozen=True)
class Budget:
    """Limits in ``seconds`` of trials and in ``dollars``; ``trial`` is how long one is expected to take, in seconds.

    ``price`` is that of a node of any trial, unless ``prices`` has another one for its cell.
    """

    seconds: float | None = None
    dollars: float | None = None
    trial: float | None = None
    price: Price | None = None
    prices: Mapping[Cell, Price] = field(default_factory=dict)

    @property
    def told(self) -> list[Price]:
        """Every price that is known, the dearest first."""
        known = {*self.prices.values(), *([self.price] if self.price else [])}
        return sorted(known, key=lambda price: (-price.node_hour, price.told))

    def price_of(self, variant: str, nodes: int) -> Price | None:
        """What a node costs in the trials of a cell."""
        return self.prices.get((variant, nodes), self.price)

    def cost(self, trial: Trial, seconds: float) -> float | None:
        """Dollars for the nodes of a trial during so many seconds."""
        price = self.price_of(trial.variant, trial.nodes)
        return None if price is None else trial.nodes * seconds / _HOUR * price.node_hour

    def spent(self, trials: Sequence[Trial]) -> tuple[float, float]:
        """Seconds and dollars that trials have taken, failed tries included."""
        seconds = sum(trial.seconds for trial in trials)
        return seconds, sum(self.cost(trial, trial.seconds) or 0.0 for trial in trials)

    def expected(self, trial: Trial, trials: Sequence[Trial]) -> float | None:
        """Seconds that a trial will take: as others of its cell, else on as many nodes, else any; else as foreseen."""
        done = [each for each in trials if each.seconds and each.over]
        on_as_many = [each for each in done if each.nodes == trial.nodes]
        alike = [each for each in on_as_many if each.variant == trial.variant] or on_as_many or done
        return statistics.median(each.seconds for each in alike) if alike else self.trial

    def estimate(self, trials: Sequence[Trial]) -> str:
        """What the trials that are left will take, in words."""
        left = [trial for trial in trials if not trial.over]
        each = [self.expected(trial, trials) for trial in left]
        known = [seconds for seconds in each if seconds is not None]
        if len(known) < len(left):
            return f"{len(left)} trials; how long they take is not known (limits.trial in the study would tell)"
        costs = [self.cost(trial, seconds) for trial, seconds in zip(left, known, strict=True)]
        money = "" if not self.told else f" and ${sum(cost or 0.0 for cost in costs):.2f}"
        return f"{len(left)} trials, about {_minutes(sum(known))}{money}{self._beyond(trials, sum(known), costs)}"

    def exhausted(self, trial: Trial, trials: Sequence[Trial]) -> str | None:
        """Why *trial* may not start, or None where it may."""
        seconds, dollars = self.spent(trials)
        more = self.expected(trial, trials) or 0.0
        cost = self.cost(trial, more) or 0.0
        if self.seconds is not None and seconds + more > self.seconds:
            return f"limits.time = {duration(self.seconds)!r} is reached: {_minutes(seconds)} spent"
        if self.dollars is not None and dollars + cost > self.dollars:
            return f"limits.money = {self.dollars:g} is reached: ${dollars:.2f} spent, the next trial costs ${cost:.2f}"
        return None

    def _beyond(self, trials: Sequence[Trial], seconds: float, costs: Sequence[float | None]) -> str:
        spent, paid = self.spent(trials)
        over = []
        if self.seconds is not None and spent + seconds > self.seconds:
            over.append(f"limits.time = {duration(self.seconds)!r}")
        if self.dollars is not None and paid + sum(cost or 0.0 for cost in costs) > self.dollars:
            over.append(f"limits.money = {self.dollars:g}")
        return f": more than {' and '.join(over)}, where it will be cut off" if over else ""


def _minutes(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )
