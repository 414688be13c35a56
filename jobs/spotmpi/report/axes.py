"""Where values fall on a chart's axes, and which of them are named. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spotmpi.report.chart import IDEAL, Chart, Strips


@dataclass(frozen=True)
class Axis:
    """From *low* to *high*, with named *ticks*."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def at(self, value: float) -> float:
        """Where *value* falls: 0 at the low end, 1 at the high one."""
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)


def x_axis(chart: Chart) -> Axis:
    """Around the counts of a chart over nodes; from 0 in one over time."""
    if chart.ticks:
        low, high = chart.ticks[0], chart.ticks[-1]
        room = (high - low) * 0.08
        return Axis(low - room, high + room, _apart(chart.ticks, high - low))
    high = max(x for curve in chart.curves for x, _ in curve.points)
    ticks = round_ticks(0.0, high)
    return Axis(0.0, high, tuple(tick for tick in ticks if tick <= high * 1.001))


def y_axis(chart: Chart) -> Axis:
    """From 0 where that is honest (rates, shares), between decades where the chart is logarithmic."""
    values = [y for curve in chart.curves for _, y in curve.points]
    values += [high for curve in chart.curves for _, _, high in curve.bars]
    values += [y for curve in chart.curves for _, y in curve.trials]
    if chart.log:
        return _log_axis(min(values), max(values))
    if chart.percent:
        top = max(1.0, *(y for curve in chart.curves if curve.kind != IDEAL for _, y in curve.points))
        high = math.ceil(top * 5 + 0.01) / 5 if top > 1.05 else 1.1
        return Axis(0.0, high, tuple(tick / 5 for tick in range(int(high * 5 + 0.001) + 1)))
    ticks = round_ticks(min(0.0, *values), max(values))
    return Axis(ticks[0], ticks[-1], ticks)


def strips_axis(strips: Strips) -> Axis:
    """From 0 to 1 for shares, else around all values and what they are held against."""
    if any(strip.parts for strip in strips.strips):
        return Axis(0.0, 1.0, (0.0, 0.25, 0.5, 0.75, 1.0))
    values = [value for strip in strips.strips for value in (strip.value, *(strip.bounds or ())) if value is not None]
    values += [] if strips.mark is None else [strips.mark]
    ticks = round_ticks(min(values), max(values))
    return Axis(ticks[0], ticks[-1], ticks)


def round_ticks(low: float, high: float, count: int = 5) -> tuple[float, ...]:
    """About *count* round numbers that take in *low* and *high*."""
    if high <= low:
        high = low + 1.0
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(round(index * step, 12) for index in range(first, last + 1))


def _log_axis(low: float, high: float) -> Axis:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
    inside = [tick for tick in every if low * 0.8 <= tick <= high * 1.25]
    named = [tick for tick in inside if math.log10(tick) % 1 in (0.0,)] if len(inside) > 7 else inside
    return Axis(min(low, *named) * 0.9, max(high, *named) * 1.1, tuple(named), log=True)


def _apart(ticks: tuple[float, ...], width: float) -> tuple[float, ...]:
    """The ticks that can be named without running into each other; the last one always is."""
    kept = [ticks[-1]]
    for tick in reversed(ticks[:-1]):
        if kept[-1] - tick >= width * 0.05:
            kept.append(tick)
    return tuple(reversed(kept))
