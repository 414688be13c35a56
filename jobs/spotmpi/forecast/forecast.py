"""Time and money by node count, from a model: the cheapest count in time, and where more nodes stop paying. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from spotmpi.core import wording
from spotmpi.core.errors import InputError, Problem, input_error
from spotmpi.core.price import Price, paid_nodes
from spotmpi.core.wording import counted, dollars, duration
from spotmpi.forecast.model import Model, Prediction, Series

MIN_EFFICIENCY = 0.5
_HOUR = 3600.0
_MAX_NODES = 10_000


@dataclass(frozen=True)
class Goal:
    """How long to train (iterations, epochs or neither), within which time, and at which price.

    ``price`` is in dollars per node and hour, ``price_source`` where and when it was valid, or why there is none;
    ``deadline`` is in seconds. Another node pays while it adds at least ``min_efficiency`` of the rate per node at the
    smallest measured count. ``workers_price`` is in dollars per hour of all workers of a stream, whose number stays.
    Where all of these are one *machine*, ``price`` is that of the machine.
    """

    iterations: int | None = None
    epochs: float | None = None
    deadline: float | None = None
    price: float | None = None
    min_efficiency: float = MIN_EFFICIENCY
    price_source: str | None = None
    workers_price: float = 0.0
    machine: bool = False

    def check(self, series: Series) -> None:
        """Raise InputError with every reason why this cannot be forecast for *series*."""
        problems = []
        deadline = self.deadline
        text = duration(deadline) if deadline is not None and math.isfinite(deadline) else deadline
        if self.iterations is not None and self.epochs is not None:
            problems.append(
                Problem(
                    wording.option("epochs"),
                    self.epochs,
                    f"set either {wording.option('iterations')} or {wording.option('epochs')}",
                )
            )
        if self.deadline is not None and self.iterations is None and self.epochs is None:
            problems.append(
                Problem(
                    wording.option("deadline"),
                    text,
                    f"needs {wording.option('iterations')} or {wording.option('epochs')}",
                )
            )
        if self.epochs is not None and (series.batch is None or series.samples is None):
            problems.append(
                Problem(
                    wording.option("epochs"),
                    self.epochs,
                    f"{series.name} does not report its samples; use {wording.option('iterations')}",
                )
            )
        for name in ("iterations", "epochs", "deadline", "price", "min_efficiency"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                shown = text if name == "deadline" else value
                problems.append(Problem(wording.option(name.replace("_", "-")), shown, "must be above 0"))
        if problems:
            raise InputError(problems)

    def iterations_on(self, series: Series, nodes: int) -> float | None:
        """The iterations to train on *nodes*, None if that is not part of the goal."""
        if self.epochs is None:
            return self.iterations
        assert series.batch and series.samples
        return self.epochs * series.samples / (series.batch * (1 if series.strong else nodes))


@dataclass(frozen=True)
class NodeForecast:
    """One node count: prediction, efficiency, dollars per 1,000 iterations, and seconds and dollars to the goal.

    They are based on the measured rate where there is one, else on the predicted one; time and dollars are None where
    that is not valid.
    """

    prediction: Prediction
    efficiency: float
    dollars_per_thousand: float | None
    seconds: float | None
    dollars: float | None

    @property
    def nodes(self) -> int:
        """The node count."""
        return self.prediction.nodes


@dataclass(frozen=True)
class Forecast:
    """All node counts of one series; ``cheapest`` meets the deadline, after ``last_paying`` another node does not pay.

    ``answers`` has both as text, or the reason why there is no answer.
    """

    model: Model
    by_nodes: tuple[NodeForecast, ...]
    cheapest: int | None
    last_paying: int | None
    answers: tuple[str, ...]


def forecast(model: Model, nodes: Sequence[int], goal: Goal) -> Forecast:
    """The forecast of *model* for the counts *nodes* and for *goal*."""
    goal.check(model.series)
    _check_counts(nodes, wording.option("nodes"), ",".join(map(str, nodes)))
    by_nodes = tuple(_forecast_nodes(model, count, goal) for count in sorted(set(nodes)))
    usable = [each for each in by_nodes if each.prediction.usable]
    cheapest = _cheapest(usable, goal)
    last = _last_paying(model, [each.nodes for each in usable], goal.min_efficiency)
    answers = [
        *_price_answers(goal),
        *_deadline_answers(cheapest, usable, goal),
        *(_efficiency_answers(last, usable, goal) if max(nodes) > model.series.nodes[0] else ()),
    ]
    return Forecast(model, by_nodes, cheapest.nodes if cheapest else None, last, tuple(answers))


def _check_counts(counts: Sequence[int], field: str, text: str) -> None:
    """Raise InputError where these, given as *text*, are not node counts."""
    if not counts or min(counts) < 1:
        raise input_error(field, text, "counts must be at least 1")
    if max(counts) > _MAX_NODES:
        raise input_error(field, text, f"counts must be at most {_MAX_NODES}")


def node_counts(text: str, field: str = "--nodes") -> list[int]:
    """Node counts from ``2,3,8``, or from ``2..64``: the first, its doublings, and the last; InputError otherwise."""
    first, dots, last = text.partition("..")
    try:
        counts = [int(part) for part in text.split(",")] if not dots else [int(first), int(last)]
    except ValueError:
        raise input_error(field, text, "must be counts such as 2,4,8 or a range such as 2..64") from None
    if dots and counts[0] > counts[1]:
        raise input_error(field, text, "the smaller count comes first")
    _check_counts(counts, field, text)
    if not dots:
        return sorted(set(counts))
    doubled = itertools.takewhile(lambda count: count < counts[1], (counts[0] << step for step in itertools.count()))
    return [*doubled, counts[1]]


def _forecast_nodes(model: Model, nodes: int, goal: Goal) -> NodeForecast:
    prediction = model.predict(nodes)
    rate = prediction.best_rate
    iterations = goal.iterations_on(model.series, nodes) if prediction.usable else None
    seconds = None if iterations is None else iterations / rate
    hourly = None
    if goal.price is not None and prediction.usable:
        hourly = goal.price * paid_nodes(nodes, goal.machine) + goal.workers_price
    return NodeForecast(
        prediction,
        efficiency=model.series.efficiency(nodes, rate),
        dollars_per_thousand=None if hourly is None else hourly * 1000 / rate / _HOUR,
        seconds=seconds,
        dollars=None if hourly is None or seconds is None else hourly * seconds / _HOUR,
    )


def _cheapest(forecasts: Sequence[NodeForecast], goal: Goal) -> NodeForecast | None:
    """The cheapest count within the deadline; without a price, the one with the fewest node hours."""
    if goal.deadline is None:
        return None
    in_time = [each for each in forecasts if each.seconds is not None and each.seconds <= goal.deadline]
    workers = goal.workers_price / goal.price if goal.price else 0.0  # as so many nodes
    return min(
        in_time,
        key=lambda each: ((paid_nodes(each.nodes, goal.machine) + workers) * (each.seconds or 0.0), each.nodes),
        default=None,
    )


def _last_paying(model: Model, nodes: Sequence[int], min_efficiency: float) -> int | None:
    """The largest count, up to the largest of *nodes*, at which the last node added was worth its price.

    The model is scaled such that it agrees with the measured rates: its error at one of them is not a gain of a node.
    """
    import numpy

    series = model.series
    if not nodes:
        return None
    base = series.nodes[0]
    each = series.rate(base) / base if series.strong else series.rate(base)
    counts = range(base, max(nodes) + 1)
    scales = numpy.interp(counts, series.nodes, [series.rate(count) * model.seconds(count) for count in series.nodes])
    rates = (float(scale) / model.seconds(count) for count, scale in zip(counts, scales, strict=True))
    work = (rate * (1 if series.strong else count) for count, rate in zip(counts, rates, strict=True))
    gains = itertools.pairwise(work)
    return base + sum(1 for _ in itertools.takewhile(lambda pair: pair[1] - pair[0] >= min_efficiency * each, gains))


def _price_answers(goal: Goal) -> list[str]:
    if not goal.price_source:
        return []
    if goal.price is None:
        return [goal.price_source]
    return [f"node price: {Price(goal.price, goal.price_source, machine=goal.machine)}"]


def _deadline_answers(cheapest: NodeForecast | None, usable: Sequence[NodeForecast], goal: Goal) -> list[str]:
    if goal.deadline is None:
        return []
    if cheapest:
        cost = "" if cheapest.dollars is None else f" for {dollars(cheapest.dollars)}"
        hours = (cheapest.seconds or 0.0) / _HOUR
        return [f"cheapest within the deadline: {counted(cheapest.nodes, 'node')}, {hours:.2f} h{cost}"]
    reason = "" if usable else " (the model is not valid for any of them)"
    return [f"cheapest within the deadline: none of these counts{reason}"]


def _efficiency_answers(last: int | None, usable: Sequence[NodeForecast], goal: Goal) -> list[str]:
    share = f"{goal.min_efficiency:.0%}".replace("%", " %")
    if last is None:
        return ["unknown where more nodes stop paying: the model is not valid for any of these counts"]
    if last >= max(each.nodes for each in usable):
        return [f"up to {counted(last, 'node')}, each additional node adds at least {share} of the base rate per node"]
    return [f"more nodes than {last} do not pay: each additional one adds less than {share} of the base rate per node"]
