"""Charts as data, and their axes. Pure."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, replace

MEASURED = "measured"
IDEAL = "ideal"
TRACE = "trace"

LABEL_THRESHOLD = 0.12  # smallest part of a bar that is labelled with its share

_LINE = 52  # letters of a bar's name in one line

XY = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """One line: ``points`` in order of x, ``error_bars`` (x, low, high), and single ``trials`` if there are several.

    ``colour`` is the number of the colour; an ideal line has that of its variant. ``offset`` shifts the curve along x,
    so that the error bars of several lines do not overlap.
    """

    label: str
    kind: str
    colour: int
    points: tuple[XY, ...]
    error_bars: tuple[tuple[float, float, float], ...] = ()
    trials: tuple[XY, ...] = ()
    offset: float = 0.0

    @property
    def shifted(self) -> Curve:
        """The curve shifted by its offset."""
        by = self.offset
        return replace(
            self,
            points=tuple((x + by, y) for x, y in self.points),
            error_bars=tuple((x + by, low, high) for x, low, high in self.error_bars),
            trials=tuple((x + by, y) for x, y in self.trials),
            offset=0.0,
        )


@dataclass(frozen=True)
class Chart:
    """One chart; ``ticks`` are those of x in a chart over nodes, and with ``percent`` y is a share."""

    title: str
    subtitle: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    ticks: tuple[float, ...] = ()
    percent: bool = False
    log: bool = False

    @property
    def is_trace(self) -> bool:
        """Whether x is time rather than nodes."""
        return not self.ticks


@dataclass(frozen=True)
class Bar:
    """A name, and below it either ``parts`` (colour, size) end to end, or a value with ``bounds``.

    A ``muted`` bar is not significant.
    """

    name: str
    parts: tuple[tuple[int, float], ...] = ()
    value: float | None = None
    bounds: tuple[float, float] | None = None
    colour: int = 0
    muted: bool = False


@dataclass(frozen=True)
class BarChart:
    """Bars below each other over one axis.

    ``legend`` is (colour, label), ``mark`` a reference value.
    """

    title: str
    subtitle: str
    x_label: str
    bars: tuple[Bar, ...]
    legend: tuple[tuple[int, str], ...] = ()
    mark: float | None = None
    percent: bool = False

    @property
    def names(self) -> list[list[str]]:
        """The name of each bar, wrapped into lines."""
        return [textwrap.wrap(bar.name, _LINE) for bar in self.bars]

    @property
    def longest_name(self) -> int:
        """The number of lines of the longest name."""
        return max(map(len, self.names))


Drawing = Chart | BarChart


@dataclass(frozen=True)
class Axis:
    """From *low* to *high*, with named *ticks*."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def at(self, value: float) -> float:
        """The position of *value*: 0 at the low end, 1 at the high one."""
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)


def x_axis(chart: Chart) -> Axis:
    """The x axis: around the counts in a chart over nodes, from 0 in one over time."""
    if chart.ticks:
        low, high = chart.ticks[0], chart.ticks[-1]
        margin = (high - low) * 0.08
        return Axis(low - margin, high + margin, _without_overlap(chart.ticks, high - low))
    high = max(x for curve in chart.curves for x, _ in curve.points)
    if high <= 0:  # a clock that was set back, or too coarse
        high = 1.0
    ticks = round_ticks(0.0, high)
    return Axis(0.0, high, tuple(tick for tick in ticks if tick <= high * 1.001))


def y_axis(chart: Chart) -> Axis:
    """The y axis: from 0, or between decades in a logarithmic chart."""
    values = [y for curve in chart.curves for _, y in curve.points]
    values += [high for curve in chart.curves for _, _, high in curve.error_bars]
    values += [y for curve in chart.curves for _, y in curve.trials]
    if chart.log:
        return _log_axis(min(values), max(values))
    if chart.percent:
        top = max(1.0, *(y for curve in chart.curves if curve.kind != IDEAL for _, y in curve.points))
        high = math.ceil(top * 5 + 0.01) / 5 if top > 1.05 else 1.1
        return Axis(0.0, high, tuple(tick / 5 for tick in range(int(high * 5 + 0.001) + 1)))
    ticks = round_ticks(min(0.0, *values), max(values))
    return Axis(ticks[0], ticks[-1], ticks)


def bar_chart_axis(chart: BarChart) -> Axis:
    """The axis of bars: from 0 to 1 for parts, else around all values, bounds and the mark."""
    if any(bar.parts for bar in chart.bars):
        return Axis(0.0, 1.0, (0.0, 0.25, 0.5, 0.75, 1.0))
    values = [value for bar in chart.bars for value in (bar.value, *(bar.bounds or ())) if value is not None]
    values += [] if chart.mark is None else [chart.mark]
    ticks = round_ticks(min(values), max(values))
    return Axis(ticks[0], ticks[-1], ticks)


def round_ticks(low: float, high: float, count: int = 5) -> tuple[float, ...]:
    """About *count* round numbers that enclose *low* and *high*."""
    if high <= low:
        high = low + 1.0
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = 2 - math.floor(math.log10(step))  # of a step, which may be as small as the loss of a perfect model
    return tuple(round(index * step, digits) for index in range(first, last + 1))


def _log_axis(low: float, high: float) -> Axis:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    candidates = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
    in_range = [tick for tick in candidates if low * 0.8 <= tick <= high * 1.25]
    labelled = [tick for tick in in_range if math.log10(tick) % 1 in (0.0,)] if len(in_range) > 7 else in_range
    return Axis(min(low, *labelled) * 0.9, max(high, *labelled) * 1.1, tuple(labelled), log=True)


def _without_overlap(ticks: tuple[float, ...], width: float) -> tuple[float, ...]:
    """The ticks whose labels do not overlap; always with the last one."""
    labelled = [ticks[-1]]
    for tick in reversed(ticks[:-1]):
        if labelled[-1] - tick >= width * 0.05:
            labelled.append(tick)
    return tuple(reversed(labelled))
