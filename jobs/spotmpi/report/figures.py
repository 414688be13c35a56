"""Numbers as text, common to all output formats of a report. Pure."""

from __future__ import annotations

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
        return f"{value:.{digits - 1}g}"
    return f"{value:#.{digits}g}".rstrip(".")


def share(value: float | None, decimals: int = 1) -> str:
    """*value* as a percentage."""
    return MISSING if value is None else f"{value:z.{decimals}%}".replace("%", " %")


def tick(value: float, percent: bool = False) -> str:
    """The shortest label of a tick."""
    if percent:
        return share(value, 0)
    return f"{value:,.10g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.3g}"


def counted(name: str, count: int, what: str) -> str:
    """A count with an optional name: "fp16, 2 nodes"."""
    return f"{name}, {count} {what}{'s' * (count != 1)}" if name else f"{count} {what}{'s' * (count != 1)}"


def factor(value: float) -> str:
    """A ratio as a factor with a multiplication sign."""
    return f"\N{MULTIPLICATION SIGN}{value:.3f}"


def interval(bounds: Bounds | None, as_share: bool = False) -> str:
    """Bounds as numbers or shares, such as "1.02 to 1.08"."""
    if bounds is None:
        return MISSING
    return " to ".join((share if as_share else number)(value) for value in (bounds.low, bounds.high))
