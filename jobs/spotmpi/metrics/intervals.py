"""Confidence intervals of median rates, from the rates of whole trials. Pure.

The rate of a trial has the noise of its iterations already: resampling those too would count it twice.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy import ndarray

FEWEST_TRIALS = 5
INTERVAL = "95 % interval of the median"
RANGE = "range over the trials"

_SEED = 1
_RESAMPLES = 2000
_TAIL = 0.025  # outside of the interval at either end
_FALSE_CLAIMS = 0.05  # the chance of any among all that a table makes
_EDGE_SHARE, _EDGE_LEAST = 0.1, 20  # first and last window: share and minimum number of iterations

Seconds = Sequence[float]  # of the counted iterations of one trial, in order
Pairs = Sequence[tuple[Sequence[Seconds], Sequence[Seconds]]]  # of sets of trials that are compared


@dataclass(frozen=True)
class Bounds:
    """Lower and upper bound of a value; ``kind`` is INTERVAL, or RANGE with few trials."""

    low: float
    high: float
    kind: str

    def contains(self, value: float) -> bool:
        """Whether *value* is between the bounds."""
        return self.low <= value <= self.high


def rate(seconds: Seconds) -> float:
    """Iterations per second: iterations over the sum of their seconds.

    The sum is exact, since that of `sum` depends on the version of Python.
    """
    return len(seconds) / math.fsum(seconds)


def rate_bounds(trials: Sequence[Seconds]) -> Bounds | None:
    """Bounds of the median rate of *trials*: their range with fewer than 5, None with a single one."""
    if len(trials) < 2:
        return None
    rates = sorted(map(rate, trials))
    if len(trials) < FEWEST_TRIALS:
        return Bounds(rates[0], rates[-1], RANGE)
    import numpy

    # So many trials are below the true median as coins show heads, whatever the distribution of rates. Resampling the
    # trials would give intervals that hold it in 87 of 100 studies with 7 trials.
    orders = [math.comb(len(rates), count) / 2 ** len(rates) for count in range(len(rates))]
    low, high = numpy.interp((_TAIL, 1 - _TAIL), numpy.cumsum(orders), rates)
    return Bounds(float(low), float(high), INTERVAL)


def mean_ratio(pairs: Pairs) -> tuple[float, Bounds | None]:
    """The geometric mean of the ratios of several pairs of sets of trials, and its bounds as in `ratio_bounds`."""
    mean = statistics.geometric_mean(ratio(above, below) for above, below in pairs)
    fewest = _fewest(pairs)
    if len(pairs) == 1 or fewest < 2:
        return mean, ratio_bounds(*pairs[0]) if len(pairs) == 1 else None
    if fewest < FEWEST_TRIALS:
        each = [bounds for pair in pairs if (bounds := ratio_bounds(*pair))]
        low, high = (statistics.geometric_mean(ends) for ends in zip(*((b.low, b.high) for b in each), strict=True))
        return mean, Bounds(low, high, RANGE)
    import numpy

    drawn = [
        numpy.log(_medians(above, _generator(2 * at)) / _medians(below, _generator(2 * at + 1)))
        for at, (above, below) in enumerate(pairs)
    ]
    return mean, _quantiles(numpy.exp(numpy.mean(drawn, axis=0)))


def ratio_bounds(above: Sequence[Seconds], below: Sequence[Seconds]) -> Bounds | None:
    """Bounds of the ratio of the median rates of two independent sets of trials, of the kinds of `rate_bounds`."""
    fewest = min(len(above), len(below))
    if fewest < 2:
        return None
    if fewest < FEWEST_TRIALS:
        upper, lower = [rate(trial) for trial in above], [rate(trial) for trial in below]
        return Bounds(min(upper) / max(lower), max(upper) / min(lower), RANGE)
    return _quantiles(_medians(above, _generator(0)) / _medians(below, _generator(1)))


def ratio(above: Sequence[Seconds], below: Sequence[Seconds]) -> float:
    """The median rate of one set of trials over that of another."""
    upper, lower = ([rate(trial) for trial in trials] for trials in (above, below))
    return statistics.median(upper) / statistics.median(lower)


def hold_together(comparisons: Sequence[Pairs]) -> list[bool]:
    """Which of several *comparisons* differ such that the chance of any false claim is at most 5 % (Holm's method).

    Each is a t-test of the logarithms of rates with unequal variances (Welch). Resampling 5 trials cannot tell levels
    below 1 in 300. One comparison is left to its interval, and those of few trials count for nothing.
    """
    chances = {at: _chance(pairs) for at, pairs in enumerate(comparisons) if _fewest(pairs) >= FEWEST_TRIALS}
    found = [len(chances) == 1] * len(comparisons)
    for rank, at in enumerate(sorted(chances, key=lambda at: chances[at])):
        if chances[at] > _FALSE_CLAIMS / (len(chances) - rank):
            break
        found[at] = True
    return found


def _chance(pairs: Pairs) -> float:
    """How likely rates are to differ by as much as those of *pairs* do in the mean, or more, by chance."""
    from scipy.special import stdtr  # quick to import

    difference, variance, divisor = 0.0, 0.0, 0.0
    for pair in pairs:
        for sign, trials in zip((1, -1), pair, strict=True):
            logs = [math.log(rate(trial)) for trial in trials]
            difference += sign * statistics.fmean(logs)
            variance += (share := statistics.variance(logs) / len(logs))
            divisor += share**2 / (len(logs) - 1)
    if divisor == 0.0:
        return float(difference == 0.0)
    return float(2 * stdtr(variance**2 / divisor, -abs(difference) / math.sqrt(variance)))


def _fewest(pairs: Pairs) -> int:
    return min(len(trials) for pair in pairs for trials in pair)


def exposed_share(trained: Sequence[Seconds], without_allreduce: Sequence[Seconds]) -> tuple[float, Bounds | None]:
    """The share of exposed communication in an iteration, and its bounds.

    *without_allreduce* are trials of the same work without the allreduce of gradients: the time that they save is
    exposed communication. Noise can make it slightly negative.
    """
    bounds = ratio_bounds(trained, without_allreduce)
    share = 1 - ratio(trained, without_allreduce)
    return share, bounds and Bounds(1 - bounds.high, 1 - bounds.low, bounds.kind)


def edges(seconds: Seconds) -> tuple[float, float] | None:
    """The rates of the first and the last tenth of the iterations; None with too few or too short ones."""
    size = max(int(len(seconds) * _EDGE_SHARE), _EDGE_LEAST)
    first, last = seconds[:size], seconds[-size:]
    if len(seconds) < 2 * size or not sum(first) or not sum(last):
        return None
    return rate(first), rate(last)


def _generator(number: int) -> Any:
    import numpy

    return numpy.random.default_rng((_SEED, number))


def _medians(trials: Sequence[Seconds], generator: Any) -> ndarray:
    """The median rate of each resample of the trials."""
    import numpy

    rates = numpy.array([rate(trial) for trial in trials])
    return numpy.asarray(numpy.median(rates[generator.integers(0, len(rates), (_RESAMPLES, len(rates)))], axis=1))


def _quantiles(values: ndarray) -> Bounds:
    import numpy

    low, high = numpy.quantile(values, (_TAIL, 1 - _TAIL))
    return Bounds(float(low), float(high), INTERVAL)
