"""A chart as data, whatever draws it."""

from __future__ import annotations

from dataclasses import dataclass

MEASURED = "measured"
IDEAL = "ideal"
TRACE = "trace"

XY = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """One line: ``points`` in order of x, ``bars`` (x, low, high), and single ``trials`` where there are several.

    ``tone`` numbers the colour; an ideal line has the tone of what it belongs to.
    """

    label: str
    kind: str
    tone: int
    points: tuple[XY, ...]
    bars: tuple[tuple[float, float, float], ...] = ()
    trials: tuple[XY, ...] = ()


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
