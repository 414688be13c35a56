"""Charts as data. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

MEASURED = "measured"
IDEAL = "ideal"
TRACE = "trace"

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


Drawing = Chart | BarChart
