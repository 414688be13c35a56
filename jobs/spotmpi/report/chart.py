"""A chart as data, whatever draws it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace

MEASURED = "measured"
IDEAL = "ideal"
TRACE = "trace"

NAMED_FROM = 0.12  # a part of a strip that is at least so large holds its share as text

_LINE = 52  # letters of a strip's name in one line

XY = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """One line: ``points`` in order of x, ``bars`` (x, low, high), and single ``trials`` where there are several.

    ``tone`` numbers the colour; an ideal line has the tone of what it belongs to. ``aside`` is by how much of x it is
    drawn beside its place, so that the bars of several lines stay apart.
    """

    label: str
    kind: str
    tone: int
    points: tuple[XY, ...]
    bars: tuple[tuple[float, float, float], ...] = ()
    trials: tuple[XY, ...] = ()
    aside: float = 0.0

    @property
    def placed(self) -> Curve:
        """The curve where it is drawn."""
        by = self.aside
        return replace(
            self,
            points=tuple((x + by, y) for x, y in self.points),
            bars=tuple((x + by, low, high) for x, low, high in self.bars),
            trials=tuple((x + by, y) for x, y in self.trials),
            aside=0.0,
        )


@dataclass(frozen=True)
class Chart:
    """One chart; ``ticks`` are those of x where not every number makes sense, ``percent`` says that y is a share."""

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
        """Whether it shows something over time rather than over nodes."""
        return not self.ticks


@dataclass(frozen=True)
class Strip:
    """One line of text with what belongs to it below: ``parts`` (tone, size) end to end, or ``bounds`` around a value.

    One that is ``faint`` says less than it seems to.
    """

    name: str
    parts: tuple[tuple[int, float], ...] = ()
    value: float | None = None
    bounds: tuple[float, float] | None = None
    tone: int = 0
    faint: bool = False


@dataclass(frozen=True)
class Strips:
    """Strips below each other over one axis.

    ``legend`` is (tone, what it stands for), ``mark`` a value to hold the others against.
    """

    title: str
    subtitle: str
    x_label: str
    strips: tuple[Strip, ...]
    legend: tuple[tuple[int, str], ...] = ()
    mark: float | None = None
    percent: bool = False

    @property
    def names(self) -> list[list[str]]:
        """The name of each strip in lines."""
        return [textwrap.wrap(strip.name, _LINE) for strip in self.strips]

    @property
    def deepest(self) -> int:
        """How many lines the longest name has."""
        return max(map(len, self.names))


Drawing = Chart | Strips
