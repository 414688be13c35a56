"""A model of the time of an iteration over node counts: computation and allreduce, fitted to small counts.

With N nodes, a computation ``C(N) = fixed + divided / N`` under strong scaling (``fixed`` alone under weak) and an
allreduce ``R(N) = 2 (N - 1) / N * volume + 2 (N - 1) * latency``, an iteration takes
``max(C(N), serial * C(N) + R(N))`` seconds. ``serial`` is 1 without overlap, 0 with double buffering (the allreduce
overlaps with the whole iteration) and 1/3 where buckets are reduced during the backward pass. With a stream it takes at
least what the workers need to prepare its batches, as measured.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spotmpi.core import wording
from spotmpi.core.errors import input_error

if TYPE_CHECKING:
    from numpy import ndarray

EFFICIENCY_LIMIT = 1.05
ERROR_LIMIT = 0.10
NOT_VALID = "not valid here"
UNCHECKED = "not checked"
FITTED = "fitted"
CHECKED = "checked"
EXTRAPOLATED = "extrapolated"

_LEVEL = 0.975  # upper end of a two-sided interval of 95 %
_WIDEST = 1000.0  # factor of an interval that is still worth showing
_STARTING_SHARES = (0.05, 0.7)  # of every unknown, as shares of the time on the fewest nodes
_REGULARIZATION = 1e-5  # towards 0
_LIMITED = 1.1  # times what the workers of a stream need: an iteration that takes less is limited by them

Times = Sequence[tuple[int, float, bool]]  # nodes, seconds of an iteration, whether without allreduce


@dataclass(frozen=True)
class Series:
    """The rates of one variant over node counts.

    ``rates`` holds iterations/s of each trial by nodes, ``without_allreduce`` those of trials without the allreduce of
    gradients. ``strong`` means strong scaling: the global batch is constant. ``serial`` is the share of the computation
    that cannot overlap with the allreduce (1 without overlap). ``batch`` is the global one under strong scaling, else
    that of one node; ``samples`` are those of an epoch. ``variant`` is the name of the variant in its sweep.
    ``preparation`` is the least seconds in which the workers of a stream prepare the batches of an iteration, under
    weak scaling those of one node; 0 without a stream.
    """

    name: str
    rates: Mapping[int, Sequence[float]]
    strong: bool = True
    serial: float = 1.0
    without_allreduce: Mapping[int, Sequence[float]] | None = None
    batch: int | None = None
    samples: int | None = None
    variant: str = ""
    preparation: float = 0.0

    @property
    def nodes(self) -> list[int]:
        """The node counts with a rate, in order."""
        return sorted(self.rates)

    def rate(self, nodes: int) -> float:
        """The median rate at a measured count, iterations/s."""
        return statistics.median(self.rates[nodes])

    def preparation_on(self, nodes: int) -> float:
        """The least seconds of an iteration on so many nodes for the workers of a stream, whose number stays."""
        return self.preparation * (1 if self.strong else nodes)

    def efficiency(self, nodes: int, rate: float) -> float:
        """*rate* at so many nodes per node, over that of the smallest measured count."""
        base = self.nodes[0]
        ideal = self.rate(base) * (nodes / base if self.strong else 1.0)
        return rate / ideal

    def warnings(self) -> list[str]:
        """Implausible measured rates."""
        warnings, base = [], wording.counted(self.nodes[0], "node")
        for nodes in self.nodes[1:]:
            efficiency = self.efficiency(nodes, self.rate(nodes))
            if efficiency > EFFICIENCY_LIMIT:
                warnings.append(
                    f"{self.name}, {nodes} nodes: efficiency {efficiency:.1%} against {base} is above "
                    f"{EFFICIENCY_LIMIT:.0%}: slow base, or different work".replace("%", " %")
                )
        return warnings


@dataclass(frozen=True)
class Prediction:
    """Iterations/s at a node count; ``low`` and ``high`` are the 95 % interval, None without degrees of freedom.

    They are None, too, where the interval is wider than a factor of 1,000, or the workers of a stream are the limit.
    ``measured`` is the median of the trials and ``error`` the relative deviation of the model from it.
    """

    nodes: int
    rate: float
    low: float | None
    high: float | None
    measured: float | None
    error: float | None
    verdict: str

    @property
    def best_rate(self) -> float:
        """The measured rate, else the predicted one."""
        return self.rate if self.measured is None else self.measured

    @property
    def usable(self) -> bool:
        """Whether the rate is measured, or predicted by a model that is valid here."""
        return self.measured is not None or self.verdict != NOT_VALID


@dataclass(frozen=True)
class Model:
    """A fit to the trials of ``series`` at ``counts``.

    ``parameters`` are in seconds; ``degrees_of_freedom`` is the number of trials minus that of parameters.
    """

    series: Series
    counts: tuple[int, ...]
    parameters: dict[str, float]
    degrees_of_freedom: int
    _covariance: Any

    def seconds(self, nodes: int, without_allreduce: bool = False) -> float:
        """The time of an iteration on *nodes*, with or without the allreduce of gradients."""
        least = self.series.preparation_on(nodes)
        return max(_seconds(self.parameters, self.series, nodes, without_allreduce), least)

    def predict(self, nodes: int) -> Prediction:
        """The predicted rate on *nodes*, with its interval and verdict."""
        rate = 1 / self.seconds(nodes)
        measured = self.series.rate(nodes) if nodes in self.series.rates else None
        error = None if measured is None else rate / measured - 1
        spread = self._spread(nodes)
        low, high = (None, None) if spread is None else (rate / spread, rate * spread)
        return Prediction(nodes, rate, low, high, measured, error, self._verdict(nodes))

    @property
    def notes(self) -> list[str]:
        """Caveats of the fit."""
        fit = f"fitted on {' and '.join(map(str, self.counts))} nodes"
        notes = []
        if self.degrees_of_freedom < 1:
            notes.append(f"{fit} with as many parameters as trials: no degrees of freedom, hence no interval")
        elif len(self.counts) <= len(self.parameters) and not (
            self.series.without_allreduce and "latency" in self.parameters
        ):
            notes.append(
                f"{fit} with as many parameters: the interval covers the noise of the trials, not the model error"
            )
        if max(self.counts) > 1 and all(
            self.seconds(count) <= self.seconds(count, without_allreduce=True) for count in self.counts
        ):
            notes.append("the allreduce had no visible cost at these counts: its effect on more nodes is unknown")
        if self.series.preparation:
            most = f"{1 / self.series.preparation:.4g}{'' if self.series.strong else ' / nodes'} iterations/s"
            notes.append(
                f"the stream's workers prepare batches for at most {most}: raise stream.workers.count for more"
            )
        return notes

    def _verdict(self, nodes: int) -> str:
        if nodes in self.counts:
            return FITTED
        measured = self.series.nodes
        following = next((count for count in measured if count > nodes), nodes)
        others = [count for count in measured if count not in self.counts and count <= following]
        if any(abs(1 / self.seconds(count) / self.series.rate(count) - 1) > ERROR_LIMIT for count in others):
            return NOT_VALID
        checked = [count for count in others if count <= nodes]
        if not checked:
            return UNCHECKED
        return CHECKED if nodes <= self.series.nodes[-1] else EXTRAPOLATED

    def _spread(self, nodes: int) -> float | None:
        """Half the 95 % interval of the rate, as a factor; None where the trials say nothing about it."""
        if self._covariance is None or self.seconds(nodes) == self.series.preparation_on(nodes):
            return None
        from scipy.optimize import approx_fprime
        from scipy.special import stdtrit  # scipy.stats has it too, but takes a second to import

        names, values = list(self.parameters), list(self.parameters.values())
        slope = approx_fprime(values, _log_seconds, 1e-6 * self.seconds(nodes), names, self.series, nodes, False)
        variance = float(slope @ self._covariance @ slope)
        width = float(stdtrit(self.degrees_of_freedom, _LEVEL)) * math.sqrt(max(variance, 0.0))
        return math.exp(width) if width < math.log(_WIDEST) else None


def fit(series: Series, counts: Sequence[int] | None = None) -> Model:
    """The model of *series*, fitted to its trials at *counts*, by default the smaller half of them and at least two.

    Raises:
        InputError: a count was not measured, or there are fewer than two.
    """
    chosen = tuple(sorted(set(counts or small_counts(series))))
    missing = [count for count in chosen if count not in series.rates]
    if missing or len(chosen) < 2:
        measured = ", ".join(map(str, series.nodes)) or "none"
        remedy = f"a model needs at least two of the measured counts of {series.name}: {measured}"
        raise input_error(wording.option("fit"), ",".join(map(str, chosen)) or None, remedy)
    times: Times = [
        *((nodes, 1 / rate, False) for nodes in chosen for rate in series.rates[nodes]),
        *((nodes, 1 / rate, True) for nodes in chosen for rate in (series.without_allreduce or {}).get(nodes, ())),
    ]
    parameters, covariance = _least_squares(times, series, _parameters_to_fit(series, chosen))
    return Model(series, chosen, parameters, len(times) - len(parameters), covariance)


def small_counts(series: Series) -> list[int]:
    """The node counts that a model is fitted to by default; the others check it."""
    return series.nodes[: max(2, math.ceil(len(series.nodes) / 2))]


def _parameters_to_fit(series: Series, counts: Sequence[int]) -> list[str]:
    """As many parameters as the counts can determine, the most important first.

    Without trials that skip the allreduce, a fixed part of the computation cannot be told from ``volume``: it is then
    counted as volume, unless computation and allreduce overlap, where what the computation hides comes last.
    """
    if not series.strong:
        return ["fixed", "volume", "latency"][: len(counts)]
    without_allreduce = len(set(series.without_allreduce or ()) & set(counts))
    if without_allreduce >= 2:
        return ["divided", "volume", "fixed", "latency"][: len(counts) + 1]
    order = ["divided", "volume", "latency"] if series.serial == 1 else ["divided", "fixed", "volume", "latency"]
    return order[: len(counts)]


def _seconds(parameters: dict[str, float], series: Series, nodes: int, without_allreduce: bool) -> float:
    compute = parameters.get("fixed", 0.0) + parameters.get("divided", 0.0) / nodes
    if without_allreduce:
        return compute
    links = 2 * (nodes - 1)
    allreduce = links / nodes * parameters.get("volume", 0.0) + links * parameters.get("latency", 0.0)
    return max(compute, series.serial * compute + allreduce)


def _log_seconds(
    values: Sequence[float], names: Sequence[str], series: Series, nodes: int, without_allreduce: bool
) -> float:
    parameters = dict(zip(names, values, strict=True))
    return math.log(max(_seconds(parameters, series, nodes, without_allreduce), 1e-12))


def _least_squares(times: Times, series: Series, names: Sequence[str]) -> tuple[dict[str, float], ndarray | None]:
    """The parameters that minimise the squared errors of logarithms, and their covariance.

    Logarithms give all counts the same weight. There is no covariance without a degree of freedom. A parameter that
    the data does not determine, such as an allreduce hidden at all counts, tends to 0. Overlap makes the problem
    non-convex, hence several starting points.
    """
    import numpy
    from scipy.optimize import least_squares

    size = times[0][1]

    def misfit_of(values: Sequence[float], nodes: int, seconds: float, skipped: bool) -> float:
        error = _log_seconds(values, names, series, nodes, skipped) - math.log(seconds)
        is_limited = seconds < _LIMITED * series.preparation_on(nodes)  # of the rest it is known that it took no longer
        return max(error, 0.0) if is_limited else error

    def errors(values: Sequence[float]) -> list[float]:
        misfit = [misfit_of(values, *each) for each in times]
        return [*misfit, *(_REGULARIZATION * value / size for value in values)]

    starts = [[0.3] * len(names)] if series.serial == 1 else itertools.product(_STARTING_SHARES, repeat=len(names))
    tight = {"xtol": 1e-11, "ftol": 1e-11, "gtol": 1e-11}
    fits = [
        least_squares(errors, [share * size for share in shares], bounds=(0, math.inf), x_scale=size, **tight)
        for shares in starts
    ]
    best = min(fits, key=lambda result: result.cost)
    parameters = dict(zip(names, map(float, best.x), strict=True))
    freedom = len(times) - len(names)
    if freedom < 1:
        return parameters, None
    jacobian, misfit = best.jac[: len(times)], best.fun[: len(times)]  # without the rows of the regularization
    variance = float(misfit @ misfit) / freedom
    return parameters, numpy.asarray(numpy.linalg.pinv(jacobian.T @ jacobian, rcond=1e-10) * variance)
