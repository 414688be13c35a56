"""The figures of a report: numbers as text, common to all formats, and charts as data. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from string import ascii_lowercase

from spotmpi.core.wording import counted
from spotmpi.metrics.intervals import Bounds

MISSING = "-"


def number(value: float | None, digits: int = 4) -> str:
    """*value* with that many significant digits, with an exponent only below 0.0001 and from 1e15 on."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    if abs(value) >= 1e15:
        return f"{value:.{digits - 1}e}"
    if abs(value) >= 10**digits - 0.5:
        return f"{value:,.0f}"
    if abs(value) < 1e-4:
        return f"{value:.{digits}g}"
    return f"{value:#.{digits}g}".rstrip(".")


def share(value: float | None, decimals: int = 1) -> str:
    """*value* as a percentage."""
    return MISSING if value is None else f"{value:z.{decimals}%}".replace("%", " %")


def tick(value: float) -> str:
    """The shortest label of a tick."""
    return f"{value:,.10g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.3g}"


def time_unit(longest: float) -> tuple[str, float]:
    """The unit of an axis that shows times up to *longest* seconds, and how many seconds it has."""
    return ("hours", 3600.0) if longest > 7200 else ("minutes", 60.0) if longest > 300 else ("seconds", 1.0)


def with_count(name: str, count: int, what: str) -> str:
    """A name with a count: "fp16, 2 nodes"."""
    return f"{name}, {counted(count, what)}" if name else counted(count, what)


def letters(number: int) -> str:
    """The name of a number from 0 on: a to z, then aa, ab and so on."""
    return (letters(number // 26 - 1) if number >= 26 else "") + ascii_lowercase[number % 26]


def factor(value: float) -> str:
    """A ratio as a factor with a multiplication sign."""
    return f"\N{MULTIPLICATION SIGN}{value:.3f}"


def interval(bounds: Bounds | None, as_share: bool = False) -> str:
    """Bounds as numbers or shares, such as "1.02 to 1.08"."""
    if bounds is None:
        return MISSING
    return " to ".join((share if as_share else number)(value) for value in (bounds.low, bounds.high))


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


@dataclass(frozen=True)
class Item:
    """A line of a tree, *depth* levels below its root, with a *note* under its name."""

    name: str
    note: str
    depth: int
    colour: int = 0


@dataclass(frozen=True)
class Tree:
    """Items below each other, each followed by those one level deeper; ``legend`` is (colour, label)."""

    title: str
    subtitle: str
    items: tuple[Item, ...]
    legend: tuple[tuple[int, str], ...] = ()


Drawing = Chart | BarChart | Tree
