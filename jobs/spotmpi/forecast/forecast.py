"""What a model says to somebody who pays: time and money by node count, and where more nodes stop paying. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from spotmpi.core.errors import InputError, Problem, input_error
from spotmpi.core.price import Price
from spotmpi.forecast.model import Model, Prediction
from spotmpi.forecast.series import Series

WORTH = 0.5
_HOUR = 3600.0
_MOST = 10_000  # nodes that are asked about


@dataclass(frozen=True)
class Goal:
    """What is asked: how long to train (one of both, or neither), until when, and what a node costs an hour.

    ``price`` is in dollars per node and hour, ``told`` where and when that was so, or why there is none; ``deadline``
    is in seconds. A further node pays while it brings at least ``worth`` of what each node of the smallest measured
    count brings.
    """

    iterations: int | None = None
    epochs: float | None = None
    deadline: float | None = None
    price: float | None = None
    worth: float = WORTH
    told: str | None = None

    def check(self, series: Series) -> None:
        """Raise InputError with everything that keeps this from being answered for *series*."""
        problems = []
        if self.iterations is not None and self.epochs is not None:
            problems.append(Problem("--epochs", self.epochs, "give either --iterations or --epochs"))
        if self.deadline is not None and self.iterations is None and self.epochs is None:
            problems.append(Problem("--deadline", self.deadline, "say how long to train: --iterations or --epochs"))
        if self.epochs is not None and (series.batch is None or series.samples is None):
            problems.append(Problem("--epochs", self.epochs, f"{series.name} does not tell its samples: --iterations"))
        for name in ("iterations", "epochs", "deadline", "price", "worth"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                problems.append(Problem(f"--{name}", value, "give a number above 0"))
        if problems:
            raise InputError(problems)

    def iterations_on(self, series: Series, nodes: int) -> float | None:
        """How many iterations the goal takes at so many nodes."""
        if self.epochs is None:
            return self.iterations
        assert series.batch and series.samples
        return self.epochs * series.samples / (series.batch * (1 if series.strong else nodes))


@dataclass(frozen=True)
class Outlook:
    """One node count: prediction, efficiency, dollars per 1,000 iterations, and seconds and dollars to the goal.

    All are those of the measured rate where there is one, else of the predicted one.
    """

    prediction: Prediction
    efficiency: float
    per_thousand: float | None
    seconds: float | None
    dollars: float | None

    @property
    def nodes(self) -> int:
        """The node count."""
        return self.prediction.nodes


@dataclass(frozen=True)
class Forecast:
    """All node counts of one series; ``cheapest`` meets the deadline, after ``last_paying`` a node no longer pays.

    ``answers`` says both in words, and what keeps them from being answered.
    """

    model: Model
    outlooks: tuple[Outlook, ...]
    cheapest: int | None
    last_paying: int | None
    answers: tuple[str, ...]


def forecast(model: Model, nodes: Sequence[int], goal: Goal) -> Forecast:
    """What *model* says of the counts *nodes* and of the *goal*."""
    goal.check(model.series)
    outlooks = tuple(_outlook(model, count, goal) for count in sorted(set(nodes)))
    trusted = [outlook for outlook in outlooks if outlook.prediction.trusted]
    cheapest = _cheapest(trusted, goal)
    last = _last_paying(model, [outlook.nodes for outlook in trusted], goal.worth)
    answers = [*_on_price(goal), *_on_deadline(cheapest, trusted, goal), *_on_worth(last, trusted, goal)]
    return Forecast(model, outlooks, cheapest.nodes if cheapest else None, last, tuple(answers))


def node_counts(text: str, field: str = "--nodes") -> list[int]:
    """Node counts from ``2,3,8``, or ``2..64``: doubling from the first, and the last; InputError for neither."""
    first, dots, last = text.partition("..")
    try:
        counts = [int(part) for part in text.split(",")] if not dots else [int(first), int(last)]
    except ValueError:
        raise input_error(
            field, text, "write counts with commas between, such as 2,4,8, or a range such as 2..64"
        ) from None
    if min(counts) < 1 or (dots and counts[0] > counts[1]):
        raise input_error(field, text, "give counts from 1, the smaller one first")
    if max(counts) > _MOST:
        raise input_error(field, text, f"give counts up to {_MOST}")
    if not dots:
        return sorted(set(counts))
    doubled = itertools.takewhile(lambda count: count < counts[1], (counts[0] << step for step in itertools.count()))
    return [*doubled, counts[1]]


def _outlook(model: Model, nodes: int, goal: Goal) -> Outlook:
    prediction = model.predict(nodes)
    rate = prediction.believed
    iterations = goal.iterations_on(model.series, nodes)
    seconds = None if iterations is None else iterations / rate
    hourly = None if goal.price is None else goal.price * nodes
    return Outlook(
        prediction,
        efficiency=model.series.efficiency(nodes, rate),
        per_thousand=None if hourly is None else hourly * 1000 / rate / _HOUR,
        seconds=seconds,
        dollars=None if hourly is None or seconds is None else hourly * seconds / _HOUR,
    )


def _cheapest(outlooks: Sequence[Outlook], goal: Goal) -> Outlook | None:
    """Without a price the fewest node hours are the cheapest."""
    if goal.deadline is None:
        return None
    in_time = [outlook for outlook in outlooks if outlook.seconds is not None and outlook.seconds <= goal.deadline]
    return min(in_time, key=lambda outlook: (outlook.nodes * (outlook.seconds or 0.0), outlook.nodes), default=None)


def _last_paying(model: Model, nodes: Sequence[int], worth: float) -> int | None:
    """The last count, one by one up to the largest of *nodes*, to which a further node was worth adding."""
    series = model.series
    if not nodes:
        return None
    base = series.nodes[0]
    each = series.rate(base) / base if series.strong else series.rate(base)
    work = (model.predict(count).believed * (1 if series.strong else count) for count in range(base, max(nodes) + 1))
    gains = itertools.pairwise(work)
    return base + sum(1 for _ in itertools.takewhile(lambda pair: pair[1] - pair[0] >= worth * each, gains))


def _on_price(goal: Goal) -> list[str]:
    if not goal.told:
        return []
    return [goal.told if goal.price is None else f"a node costs {Price(goal.price, goal.told)}"]


def _on_deadline(cheapest: Outlook | None, trusted: Sequence[Outlook], goal: Goal) -> list[str]:
    if goal.deadline is None:
        return []
    if cheapest:
        cost = "" if cheapest.dollars is None else f" for ${cheapest.dollars:.2f}"
        return [f"cheapest in time: {cheapest.nodes} nodes, {(cheapest.seconds or 0.0) / _HOUR:.2f} h{cost}"]
    among = "of these counts" if trusted else "of these counts, for the model is valid at none of them"
    return [f"cheapest in time: none {among}"]


def _on_worth(last: int | None, trusted: Sequence[Outlook], goal: Goal) -> list[str]:
    share = f"{goal.worth:.0%}".replace("%", " %")
    if last is None:
        return ["where another node no longer pays is not known: the model is valid at none of these counts"]
    if last >= max(outlook.nodes for outlook in trusted):
        return [f"up to {last} nodes each further node brings at least {share} of what a node of the base brings"]
    of = f"{share} of what a node of the base does"
    return [f"after {last} nodes another one no longer pays: it brings less than {of}"]
