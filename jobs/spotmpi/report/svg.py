"""Charts as inline SVG: colours come from the page's style sheet, so that they follow light and dark. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.sax import saxutils

from spotmpi.core.printable import printable
from spotmpi.report.axes import Axis, x_axis, y_axis
from spotmpi.report.chart import IDEAL, TRACE, XY, Chart, Curve
from spotmpi.report.figures import number, share, tick

TONES = 6  # colours that the style sheet has

_WIDTH, _HEIGHT = 400, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 22, 12, 44
_DASHES = ("", "6 3", "2 3", "8 3 2 3")


def escape(text: str) -> str:
    """*text* as what an element holds, without control characters."""
    return saxutils.escape(printable(text))


def svg(chart: Chart) -> str:
    """The chart as one ``svg`` element, 400 x 280 units, readable from about 320 pixels on."""
    x, y = x_axis(chart), y_axis(chart)
    parts = [_grid(chart, x, y)]
    for curve in sorted(chart.curves, key=lambda curve: curve.kind != IDEAL):
        parts.append(_curve(chart, curve, x, y))
    told = escape(f"{chart.title}: {chart.y_label} over {chart.x_label}")
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" class="chart"><title>{told}</title>{"".join(parts)}</svg>'


def swatch(curve: Curve) -> str:
    """A small picture of a curve for the legend."""
    line = f'<line x1="1" y1="7" x2="27" y2="7" class="line {_classes(curve)}"{_dash(curve)}/>'
    mark = "" if curve.kind in (IDEAL, TRACE) else _mark(14, 7, curve.tone)
    return f'<svg viewBox="0 0 28 14" class="swatch" aria-hidden="true">{line}{mark}</svg>'


def _grid(chart: Chart, x: Axis, y: Axis) -> str:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for at_y in y.ticks:
        at = _down(y, at_y)
        parts.append(f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}" class="grid"/>')
        named = escape(tick(at_y, chart.percent))
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" class="tick" text-anchor="end">{named}</text>')
    for at_x in x.ticks:
        at = _across(x, at_x)
        parts.append(f'<line x1="{at:.1f}" y1="{bottom}" x2="{at:.1f}" y2="{bottom + 4}" class="axis"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 18}" class="tick" text-anchor="middle">{tick(at_x)}</text>')
    parts.append(f'<line x1="{_LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}" class="axis"/>')
    middle = (_LEFT + right) / 2
    label = escape(chart.x_label)
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" class="label" text-anchor="middle">{label}</text>')
    high = (_TOP + bottom) / 2
    parts.append(
        f'<text transform="translate(12 {high}) rotate(-90)" class="label" text-anchor="middle">'
        f"{escape(chart.y_label)}{' (log)' if chart.log else ''}</text>"
    )
    return "".join(parts)


def _curve(chart: Chart, told: Curve, x: Axis, y: Axis) -> str:
    curve = told.placed
    points = [(_across(x, px), _down(y, py)) for px, py in curve.points]
    parts = [f'<polyline points="{_path(points)}" class="line {_classes(curve)}"{_dash(curve)}/>']
    parts += [_bar(_across(x, at), _down(y, low), _down(y, high), curve) for at, low, high in curve.bars]
    parts += [
        f'<circle cx="{_across(x, px):.1f}" cy="{_down(y, py):.1f}" r="2.2" class="trial t{curve.tone % TONES}"/>'
        for px, py in curve.trials
    ]
    if curve.kind not in (IDEAL, TRACE):
        for (px, py), (across, down) in zip(told.points, points, strict=True):
            words = f"{curve.label}, {tick(px)} {chart.x_label}: {share(py) if chart.percent else number(py)}"
            parts.append(f"<g>{_mark(across, down, curve.tone)}<title>{escape(words)}</title></g>")
    return f"<g data-curve={saxutils.quoteattr(printable(curve.label))}>{''.join(parts)}</g>"


def _bar(x: float, low: float, high: float, curve: Curve) -> str:
    path = f"M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {high:.1f}h8M{x:.1f} {low:.1f}V{high:.1f}"
    return f'<path d="{path}" class="bar s{curve.tone % TONES}"/>'


def _mark(x: float, y: float, tone: int) -> str:
    """A marker whose shape tells the tone too, for eyes and printers that take colours for one."""
    shapes = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5"',
        f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"',
        f'<path d="M{x:.1f} {y - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z"',
        f'<path d="M{x:.1f} {y - 5:.1f}l5 9h-10z"',
    )
    return f'{shapes[tone % len(shapes)]} class="mark t{tone % TONES}"/>'


def _classes(curve: Curve) -> str:
    return f"s{curve.tone % TONES}" + (" ideal" if curve.kind == IDEAL else "")


def _dash(curve: Curve) -> str:
    pattern = "4 4" if curve.kind == IDEAL else _DASHES[curve.tone % len(_DASHES)] if curve.kind == TRACE else ""
    return f' stroke-dasharray="{pattern}"' if pattern else ""


def _across(axis: Axis, value: float) -> float:
    return _LEFT + axis.at(value) * (_WIDTH - _LEFT - _RIGHT)


def _down(axis: Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - axis.at(value) * (_HEIGHT - _TOP - _BOTTOM)


def _path(points: Sequence[XY]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def legend(curves: Iterable[Curve]) -> list[tuple[str, str]]:
    """(swatch, label) of each curve, measured ones first, a label that several have once."""
    named = {curve.label: curve for curve in reversed(list(curves))}
    return [(swatch(curve), name) for name, curve in sorted(named.items(), key=_last_if_ideal)]


def _last_if_ideal(pair: tuple[str, Curve]) -> tuple[bool, int]:
    return pair[1].kind == IDEAL, pair[1].tone
