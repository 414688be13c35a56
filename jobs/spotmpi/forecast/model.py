"""What an iteration takes on more nodes: a model of computation and exchange, fitted to the small node counts.

With N nodes, a computation ``C(N) = fixed + divided / N`` under strong scaling (``fixed`` alone under weak) and an
allreduce ``R(N) = 2 (N - 1) / N * volume + 2 (N - 1) * latency``, an iteration takes
``max(C(N), serial * C(N) + R(N))`` seconds. ``serial`` is 1 without overlap, 0 with double buffering (the exchange
hides behind the whole iteration) and 1/3 where buckets are exchanged during the backward pass.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spotmpi.core.errors import input_error
from spotmpi.forecast.series import Series

if TYPE_CHECKING:
    from numpy import ndarray

ERROR_LIMIT = 0.10
NOT_VALID = "not valid here"
UNCHECKED = "not checked"
FITTED = "fitted"
CHECKED = "checked"
BEYOND = "beyond what was measured"

_LEVEL = 0.975  # upper end of a two-sided interval of 95 %
_STARTS = (0.05, 0.7)  # of every unknown, as shares of the time on the fewest nodes
_LEANING = 1e-5  # towards 0

Times = Sequence[tuple[int, float, bool]]  # nodes, seconds of an iteration, whether without exchange


@dataclass(frozen=True)
class Prediction:
    """Iterations/s at a node count; ``low`` and ``high`` bound it at 95 %, None where the fit leaves no freedom.

    ``measured`` is the median of the trials there and ``error`` what the model misses it by, as a share of it.
    """

    nodes: int
    rate: float
    low: float | None
    high: float | None
    measured: float | None
    error: float | None
    verdict: str

    @property
    def believed(self) -> float:
        """The rate to reckon with: what was measured, else what is predicted."""
        return self.rate if self.measured is None else self.measured

    @property
    def trusted(self) -> bool:
        """Whether to reckon with it at all."""
        return self.measured is not None or self.verdict != NOT_VALID


@dataclass(frozen=True)
class Model:
    """A fit to the trials of ``series`` at ``counts``: ``unknowns`` in seconds, ``freedom`` is trials less unknowns."""

    series: Series
    counts: tuple[int, ...]
    unknowns: dict[str, float]
    freedom: int
    _covariance: Any

    def seconds(self, nodes: int, silent: bool = False) -> float:
        """An iteration at so many nodes; *silent* without the exchange of gradients."""
        return _seconds(self.unknowns, self.series, nodes, silent)

    def predict(self, nodes: int) -> Prediction:
        """The rate at so many nodes, and what is to be thought of it."""
        rate = 1 / self.seconds(nodes)
        measured = self.series.rate(nodes) if nodes in self.series.rates else None
        error = None if measured is None else rate / measured - 1
        spread = self._spread(nodes)
        low, high = (None, None) if spread is None else (rate / spread, rate * spread)
        return Prediction(nodes, rate, low, high, measured, error, self._verdict(nodes))

    @property
    def notes(self) -> list[str]:
        """What a reader must know of the fit."""
        where = f"fitted on {' and '.join(map(str, self.counts))} nodes"
        found = []
        if self.freedom < 1:
            found.append(f"{where} with as many unknowns as trials: no degrees of freedom, so there is no interval")
        elif len(self.counts) <= len(self.unknowns) and not self.series.silent:
            found.append(f"{where} with as many unknowns: the interval holds the noise of the trials, not of the form")
        if max(self.counts) > 1 and all(
            self.seconds(count) <= self.seconds(count, silent=True) for count in self.counts
        ):
            found.append("the exchange did not show at these counts: where it would slow more nodes down is not known")
        return found

    def _verdict(self, nodes: int) -> str:
        if nodes in self.counts:
            return FITTED
        checked = [count for count in self.series.nodes if count not in self.counts and count <= nodes]
        if any(abs(_error(self, count)) > ERROR_LIMIT for count in checked):
            return NOT_VALID
        if not checked:
            return UNCHECKED
        return CHECKED if nodes <= self.series.nodes[-1] else BEYOND

    def _spread(self, nodes: int) -> float | None:
        """The factor by which the rate may be off either way."""
        if self._covariance is None:
            return None
        import numpy
        from scipy.special import stdtrit  # scipy.stats would say the same, and take a second to import

        slope = _slopes(self.unknowns, self.series, nodes, False)
        variance = float(slope @ self._covariance @ slope)
        return float(numpy.exp(stdtrit(self.freedom, _LEVEL) * math.sqrt(max(variance, 0.0))))


def fit(series: Series, counts: Sequence[int] | None = None) -> Model:
    """The model of *series*, fitted to its trials at *counts*, by default the smaller half of them and at least two.

    Raises:
        InputError: fewer than two of the counts were measured.
    """
    chosen = tuple(sorted(counts or small_counts(series)))
    missing = [count for count in chosen if count not in series.rates]
    if missing or len(chosen) < 2:
        there = ", ".join(map(str, series.nodes)) or "none"
        what = ",".join(map(str, chosen)) or None
        remedy = f"a model needs two of the counts that were measured of {series.name}: {there}"
        raise input_error("--fit", what, remedy)
    times: Times = [
        *((nodes, 1 / rate, False) for nodes in chosen for rate in series.rates[nodes]),
        *((nodes, 1 / rate, True) for nodes in chosen for rate in (series.silent or {}).get(nodes, ())),
    ]
    unknowns = _best(times, series, _unknowns(series, chosen))
    freedom = len(times) - len(unknowns)
    return Model(series, chosen, unknowns, freedom, _covariance(times, series, unknowns, freedom))


def small_counts(series: Series) -> list[int]:
    """The node counts that a model is fitted to; the others check it."""
    return series.nodes[: max(2, math.ceil(len(series.nodes) / 2))]


def _unknowns(series: Series, counts: Sequence[int]) -> list[str]:
    """As many as the counts can tell apart, the weightiest first.

    Without trials that leave the exchange out, a fixed part of the computation looks like volume: both are the same at
    any count. It is then counted as volume, unless they overlap: then what hides behind the computation comes last.
    """
    if not series.strong:
        return ["fixed", "volume", "latency"][: len(counts)]
    silent = len(set(series.silent or ()) & set(counts))
    if silent >= 2:
        return ["divided", "volume", "fixed", "latency"][: len(counts) + 1]
    order = ["divided", "volume", "latency"] if series.serial == 1 else ["divided", "fixed", "volume", "latency"]
    return order[: len(counts)]


def _seconds(unknowns: dict[str, float], series: Series, nodes: int, silent: bool) -> float:
    compute = unknowns.get("fixed", 0.0) + unknowns.get("divided", 0.0) / nodes
    if silent:
        return compute
    links = 2 * (nodes - 1)
    exchange = links / nodes * unknowns.get("volume", 0.0) + links * unknowns.get("latency", 0.0)
    return max(compute, series.serial * compute + exchange)


def _residuals(values: Sequence[float], names: Sequence[str], times: Times, series: Series) -> list[float]:
    unknowns = dict(zip(names, values, strict=True))
    return [math.log(max(_seconds(unknowns, series, n, silent), 1e-12) / t) for n, t, silent in times]


def _best(times: Times, series: Series, names: Sequence[str]) -> dict[str, float]:
    """The least squares of logarithms, so that every count weighs alike.

    What nothing tells, as the exchange that overlap hides at all counts, is taken for 0. Overlap makes corners, which
    are looked at from several starts.
    """
    from scipy.optimize import least_squares

    size = times[0][1]

    def misses(values: Sequence[float]) -> list[float]:
        return [*_residuals(values, names, times, series), *(_LEANING * value / size for value in values)]

    starts = [[0.3] * len(names)] if series.serial == 1 else itertools.product(_STARTS, repeat=len(names))
    tight = {"xtol": 1e-11, "ftol": 1e-11, "gtol": 1e-11}
    found = [
        least_squares(misses, [share * size for share in shares], bounds=(0, math.inf), x_scale=size, **tight)
        for shares in starts
    ]
    best = min(found, key=lambda result: result.cost)
    return dict(zip(names, map(float, best.x), strict=True))


def _covariance(times: Times, series: Series, unknowns: dict[str, float], freedom: int) -> ndarray | None:
    """Of the unknowns; None without a degree of freedom."""
    if freedom < 1:
        return None
    import numpy

    names = list(unknowns)
    residuals = numpy.array(_residuals(list(unknowns.values()), names, times, series))
    slopes = numpy.array([_slopes(unknowns, series, nodes, silent) for nodes, _, silent in times])
    scale = float(residuals @ residuals) / freedom
    return numpy.asarray(numpy.linalg.pinv(slopes.T @ slopes, rcond=1e-10) * scale)


def _slopes(unknowns: dict[str, float], series: Series, nodes: int, silent: bool) -> ndarray:
    """How the logarithm of an iteration's seconds follows each unknown."""
    import numpy

    here = _seconds(unknowns, series, nodes, silent)
    step = 1e-6 * here
    moved = [_seconds({**unknowns, name: value + step}, series, nodes, silent) for name, value in unknowns.items()]
    return numpy.array([(there - here) / step / here for there in moved])


def _error(model: Model, nodes: int) -> float:
    return 1 / model.seconds(nodes) / model.series.rate(nodes) - 1
