"""How sure a rate is: bounds from resampling whole trials and then blocks of their iterations. Pure."""

from __future__ import annotations

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
_TAIL = 0.025  # what the interval leaves out at either end
_EDGE_SHARE, _EDGE_LEAST = 0.1, 20  # first and last window: a share of the iterations, at least so many

Seconds = Sequence[float]  # of the iterations of one trial that count, in order


@dataclass(frozen=True)
class Bounds:
    """Where a value lies between; ``kind`` says whether that is an interval or the mere range of few trials."""

    low: float
    high: float
    kind: str

    def holds(self, value: float) -> bool:
        """Whether *value* is inside."""
        return self.low <= value <= self.high


def rate(seconds: Seconds) -> float:
    """Iterations per second: iterations over the sum of their seconds."""
    return len(seconds) / sum(seconds)


def of_rate(trials: Sequence[Seconds]) -> Bounds | None:
    """Bounds of the median rate of *trials*: with fewer than 5 their range, with a single one nothing."""
    if len(trials) < 2:
        return None
    if len(trials) < FEWEST_TRIALS:
        rates = [rate(trial) for trial in trials]
        return Bounds(min(rates), max(rates), RANGE)
    return _quantiles(_medians(trials, _generator(0)))


def of_ratios(pairs: Sequence[tuple[Sequence[Seconds], Sequence[Seconds]]]) -> tuple[float, Bounds | None]:
    """The geometric mean of the ratios of several pairs of sets of trials, and its bounds as `of_ratio` has them."""
    mean = statistics.geometric_mean(ratio(above, below) for above, below in pairs)
    fewest = min(len(trials) for pair in pairs for trials in pair)
    if len(pairs) == 1 or fewest < 2:
        return mean, of_ratio(*pairs[0]) if len(pairs) == 1 else None
    if fewest < FEWEST_TRIALS:
        each = [bounds for pair in pairs if (bounds := of_ratio(*pair))]
        low, high = (statistics.geometric_mean(ends) for ends in zip(*((b.low, b.high) for b in each), strict=True))
        return mean, Bounds(low, high, RANGE)
    import numpy

    drawn = [
        numpy.log(_medians(above, _generator(2 * at)) / _medians(below, _generator(2 * at + 1)))
        for at, (above, below) in enumerate(pairs)
    ]
    return mean, _quantiles(numpy.exp(numpy.mean(drawn, axis=0)))


def of_ratio(above: Sequence[Seconds], below: Sequence[Seconds]) -> Bounds | None:
    """Bounds of the median rate of one set of trials over that of another, independent one; as `of_rate` does."""
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


def exposed(trained: Sequence[Seconds], silent: Sequence[Seconds]) -> tuple[float, Bounds | None]:
    """The share of an iteration that waits for communication, and its bounds.

    *silent* are trials of the same work without the exchange of gradients; what they save is what was exposed. Noise
    can make it slightly negative.
    """
    bounds = of_ratio(trained, silent)
    share = 1 - ratio(trained, silent)
    return share, bounds and Bounds(1 - bounds.high, 1 - bounds.low, bounds.kind)


def edges(seconds: Seconds) -> tuple[float, float] | None:
    """The rates of the first and the last window, a tenth of the iterations each; None where they would be too few."""
    size = max(int(len(seconds) * _EDGE_SHARE), _EDGE_LEAST)
    if len(seconds) < 2 * size:
        return None
    return rate(seconds[:size]), rate(seconds[-size:])


def _generator(number: int) -> Any:
    import numpy

    return numpy.random.default_rng((_SEED, number))


def _medians(trials: Sequence[Seconds], chance: Any) -> ndarray:
    """The median rate of each resample: whole trials drawn with replacement, and within each its blocks."""
    import numpy

    pools = numpy.array([_rates(trial, chance) for trial in trials])
    drawn = chance.integers(0, len(trials), (_RESAMPLES, len(trials)))
    which = chance.integers(0, _RESAMPLES, drawn.shape)
    return numpy.asarray(numpy.median(pools[drawn, which], axis=1))


def _rates(seconds: Seconds, chance: Any) -> ndarray:
    """The rate of one trial in each resample of its blocks; a block is the root of the iterations long.

    Neighbouring iterations are alike (a slow moment lasts), so that single ones would promise too much.
    """
    import numpy

    size = max(1, round(len(seconds) ** 0.5))
    until = numpy.concatenate(([0.0], numpy.cumsum(seconds)))
    blocks = until[size:] - until[:-size]
    count = -(-len(seconds) // size)
    sums = blocks[chance.integers(0, len(blocks), (_RESAMPLES, count))].sum(axis=1)
    return numpy.asarray(count * size / sums)


def _quantiles(values: ndarray) -> Bounds:
    import numpy

    low, high = numpy.quantile(values, (_TAIL, 1 - _TAIL))
    return Bounds(float(low), float(high), INTERVAL)
