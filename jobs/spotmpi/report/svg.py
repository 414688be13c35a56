"""Charts as inline SVG: colours come from the page's style sheet, so that they follow light and dark. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.sax import saxutils

from spotmpi.core.printable import printable
from spotmpi.report.chart import (
    IDEAL,
    LABEL_THRESHOLD,
    TRACE,
    XY,
    Axis,
    Bar,
    BarChart,
    Chart,
    Curve,
    bar_chart_axis,
    x_axis,
    y_axis,
)
from spotmpi.report.figures import number, share, tick

COLOURS = 6  # colours in the style sheet

_WIDTH, _HEIGHT = 400, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 22, 12, 44
_DASHES = ("", "6 3", "2 3", "8 3 2 3")


def escape(text: str) -> str:
    """*text* escaped for XML, without control characters."""
    return saxutils.escape(printable(text))


def svg(chart: Chart) -> str:
    """The chart as one ``svg`` element of 400 x 280 units, readable from a width of about 320 pixels."""
    x, y = x_axis(chart), y_axis(chart)
    parts = [_grid(chart, x, y)]
    for curve in sorted(chart.curves, key=lambda curve: curve.kind != IDEAL):
        parts.append(_curve(chart, curve, x, y))
    title = escape(f"{chart.title}: {chart.y_label} over {chart.x_label}")
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" class="chart"><title>{title}</title>{"".join(parts)}</svg>'
    )


def swatch(curve: Curve) -> str:
    """A small picture of a curve for the legend."""
    line = f'<line x1="1" y1="7" x2="27" y2="7" class="line {_classes(curve)}"{_dash(curve)}/>'
    mark = "" if curve.kind in (IDEAL, TRACE) else _mark(14, 7, curve.colour)
    return f'<svg viewBox="0 0 28 14" class="swatch" aria-hidden="true">{line}{mark}</svg>'


def _grid(chart: Chart, x: Axis, y: Axis) -> str:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for at_y in y.ticks:
        at = _down(y, at_y)
        parts.append(f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}" class="grid"/>')
        label_text = escape(tick(at_y, chart.percent))
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" class="tick" text-anchor="end">{label_text}</text>')
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


def _curve(chart: Chart, title: Curve, x: Axis, y: Axis) -> str:
    curve = title.shifted
    points = [(_across(x, px), _down(y, py)) for px, py in curve.points]
    parts = [f'<polyline points="{_path(points)}" class="line {_classes(curve)}"{_dash(curve)}/>']
    parts += [_error_bar(_across(x, at), _down(y, low), _down(y, high), curve) for at, low, high in curve.error_bars]
    parts += [
        f'<circle cx="{_across(x, px):.1f}" cy="{_down(y, py):.1f}" r="2.2" class="trial t{curve.colour % COLOURS}"/>'
        for px, py in curve.trials
    ]
    if curve.kind not in (IDEAL, TRACE):
        for (px, py), (across, down) in zip(title.points, points, strict=True):
            words = f"{curve.label}, {tick(px)} {chart.x_label}: {share(py) if chart.percent else number(py)}"
            parts.append(f"<g>{_mark(across, down, curve.colour)}<title>{escape(words)}</title></g>")
    return f"<g data-curve={saxutils.quoteattr(printable(curve.label))}>{''.join(parts)}</g>"


def _error_bar(x: float, low: float, high: float, curve: Curve) -> str:
    path = f"M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {high:.1f}h8M{x:.1f} {low:.1f}V{high:.1f}"
    return f'<path d="{path}" class="bar s{curve.colour % COLOURS}"/>'


def _mark(x: float, y: float, colour: int) -> str:
    """A marker whose shape depends on the colour too, for colour-blind readers and monochrome printers."""
    shapes = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5"',
        f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"',
        f'<path d="M{x:.1f} {y - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z"',
        f'<path d="M{x:.1f} {y - 5:.1f}l5 9h-10z"',
    )
    return f'{shapes[colour % len(shapes)]} class="mark t{colour % COLOURS}"/>'


def _classes(curve: Curve) -> str:
    return f"s{curve.colour % COLOURS}" + (" ideal" if curve.kind == IDEAL else "")


def _dash(curve: Curve) -> str:
    pattern = "4 4" if curve.kind == IDEAL else _DASHES[curve.colour % len(_DASHES)] if curve.kind == TRACE else ""
    return f' stroke-dasharray="{pattern}"' if pattern else ""


def _across(axis: Axis, value: float) -> float:
    return _LEFT + axis.at(value) * (_WIDTH - _LEFT - _RIGHT)


def _down(axis: Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - axis.at(value) * (_HEIGHT - _TOP - _BOTTOM)


def _path(points: Sequence[XY]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def legend(curves: Iterable[Curve]) -> list[tuple[str, str]]:
    """(swatch, label) of each distinct label, measured curves first."""
    label_text = {curve.label: curve for curve in reversed(list(curves))}
    return [(swatch(curve), name) for name, curve in sorted(label_text.items(), key=_last_if_ideal)]


def _last_if_ideal(pair: tuple[str, Curve]) -> tuple[bool, int]:
    return pair[1].kind == IDEAL, pair[1].colour


_BARS_WIDTH, _BARS_LEFT, _BARS_RIGHT, _BARS_TOP, _BARS_BOTTOM = 400, 20, 28, 6, 44
_NAME_HEIGHT = 16  # of one line of a name
_ROW_HEIGHT = 30  # of a bar without its name
_BAR_HEIGHT = 18


def bar_chart_svg(chart: BarChart) -> str:
    """The bars as one ``svg`` element, 400 units wide and as high as they need."""
    axis = bar_chart_axis(chart)
    row = _ROW_HEIGHT + _NAME_HEIGHT * chart.longest_name
    height = _BARS_TOP + row * len(chart.bars) + _BARS_BOTTOM
    parts = [_bar_chart_grid(chart, axis, height)]
    parts += [
        _bar(bar, name, _BARS_TOP + row * at, axis)
        for at, (bar, name) in enumerate(zip(chart.bars, chart.names, strict=True))
    ]
    title = f"<title>{escape(chart.title)}: {escape(chart.x_label)}</title>"
    return f'<svg viewBox="0 0 {_BARS_WIDTH} {height}" role="img" class="chart">{title}{"".join(parts)}</svg>'


def bar_chart_legend(chart: BarChart) -> list[tuple[str, str]]:
    """(swatch, label) of each colour."""
    box = '<svg viewBox="0 0 28 14" class="swatch" aria-hidden="true"><rect x="7" y="0" width="14" height="14" rx="2" '
    return [(f'{box}class="t{colour % COLOURS}"/></svg>', name) for colour, name in chart.legend]


def _bar_chart_grid(chart: BarChart, axis: Axis, height: int) -> str:
    bottom = height - _BARS_BOTTOM
    parts = []
    for at in axis.ticks:
        x = _bar_chart_across(axis, at)
        parts.append(f'<line x1="{x:.1f}" y1="{_BARS_TOP}" x2="{x:.1f}" y2="{bottom}" class="grid"/>')
        label_text = tick(at, chart.percent)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" class="tick" text-anchor="middle">{label_text}</text>')
    if chart.mark is not None:
        x = _bar_chart_across(axis, chart.mark)
        ends = f'x1="{x:.1f}" y1="{_BARS_TOP}" x2="{x:.1f}" y2="{bottom}"'
        parts.append(f'<line {ends} class="axis" stroke-dasharray="4 4"/>')
    middle, label = _BARS_WIDTH / 2, escape(chart.x_label)
    parts.append(f'<text x="{middle}" y="{height - 8}" class="label" text-anchor="middle">{label}</text>')
    return "".join(parts)


def _bar(bar: Bar, lines: list[str], top: int, axis: Axis) -> str:
    name = "".join(
        f'<text x="{_BARS_LEFT}" y="{top + _NAME_HEIGHT * at}" class="name">{escape(line)}</text>'
        for at, line in enumerate(lines, 1)
    )
    top += _NAME_HEIGHT * len(lines) + 6
    drawn = _parts(bar, top, axis) if bar.value is None else _interval(bar, top + _BAR_HEIGHT // 2, axis)
    kind = ' class="muted"' if bar.muted else ""
    return f"<g{kind}>{name}{drawn}</g>"


def _parts(bar: Bar, top: int, axis: Axis) -> str:
    parts, until = [], 0.0
    for colour, size in bar.parts:
        left, right = _bar_chart_across(axis, until), _bar_chart_across(axis, until + size)
        box = f'x="{left:.1f}" y="{top}" width="{max(right - left, 0):.1f}" height="{_BAR_HEIGHT}"'
        parts.append(f'<g><rect {box} class="t{colour % COLOURS}"/><title>{share(size)}</title></g>')
        if size >= LABEL_THRESHOLD:
            middle = f'x="{(left + right) / 2:.1f}" y="{top + 13.5}"'
            parts.append(f'<text {middle} class="inside" text-anchor="middle">{share(size, 0)}</text>')
        until += size
    return "".join(parts)


def _interval(bar: Bar, middle: int, axis: Axis) -> str:
    assert bar.value is not None
    colour, at = bar.colour % COLOURS, _bar_chart_across(axis, bar.value)
    error_bar = ""
    if bar.bounds:
        low, high = (_bar_chart_across(axis, end) for end in bar.bounds)
        path = f"M{low:.1f} {middle - 5}v10M{high:.1f} {middle - 5}v10M{low:.1f} {middle}H{high:.1f}"
        error_bar = f'<path d="{path}" class="bar s{colour}"/>'
    mark = f'<circle cx="{at:.1f}" cy="{middle}" r="5" class="mark t{colour}"/>'
    return f"{error_bar}<g>{mark}<title>{number(bar.value)}</title></g>"


def _bar_chart_across(axis: Axis, value: float) -> float:
    return _BARS_LEFT + axis.at(value) * (_BARS_WIDTH - _BARS_LEFT - _BARS_RIGHT)
