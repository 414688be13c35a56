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
    Chart,
    Curve,
    Strip,
    Strips,
    strips_axis,
    x_axis,
    y_axis,
)
from spotmpi.report.figures import number, share, tick

TONES = 6  # colours in the style sheet

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
    mark = "" if curve.kind in (IDEAL, TRACE) else _mark(14, 7, curve.tone)
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
    parts += [_bar(_across(x, at), _down(y, low), _down(y, high), curve) for at, low, high in curve.bars]
    parts += [
        f'<circle cx="{_across(x, px):.1f}" cy="{_down(y, py):.1f}" r="2.2" class="trial t{curve.tone % TONES}"/>'
        for px, py in curve.trials
    ]
    if curve.kind not in (IDEAL, TRACE):
        for (px, py), (across, down) in zip(title.points, points, strict=True):
            words = f"{curve.label}, {tick(px)} {chart.x_label}: {share(py) if chart.percent else number(py)}"
            parts.append(f"<g>{_mark(across, down, curve.tone)}<title>{escape(words)}</title></g>")
    return f"<g data-curve={saxutils.quoteattr(printable(curve.label))}>{''.join(parts)}</g>"


def _bar(x: float, low: float, high: float, curve: Curve) -> str:
    path = f"M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {high:.1f}h8M{x:.1f} {low:.1f}V{high:.1f}"
    return f'<path d="{path}" class="bar s{curve.tone % TONES}"/>'


def _mark(x: float, y: float, tone: int) -> str:
    """A marker whose shape depends on the tone too, for colour-blind readers and monochrome printers."""
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
    """(swatch, label) of each distinct label, measured curves first."""
    label_text = {curve.label: curve for curve in reversed(list(curves))}
    return [(swatch(curve), name) for name, curve in sorted(label_text.items(), key=_last_if_ideal)]


def _last_if_ideal(pair: tuple[str, Curve]) -> tuple[bool, int]:
    return pair[1].kind == IDEAL, pair[1].tone


_STRIPS_WIDTH, _STRIPS_LEFT, _STRIPS_RIGHT, _STRIPS_TOP, _STRIPS_BOTTOM = 400, 20, 28, 6, 44
_NAME_HEIGHT = 16  # of one line of a name
_STRIP_HEIGHT = 30  # of the rest of a strip
_BAR_HEIGHT = 18


def strips_svg(strips: Strips) -> str:
    """The strips as one ``svg`` element, 400 units wide and as high as they need."""
    axis = strips_axis(strips)
    row = _STRIP_HEIGHT + _NAME_HEIGHT * strips.longest_name
    height = _STRIPS_TOP + row * len(strips.strips) + _STRIPS_BOTTOM
    parts = [_strips_grid(strips, axis, height)]
    parts += [
        _strip(strip, name, _STRIPS_TOP + row * at, axis)
        for at, (strip, name) in enumerate(zip(strips.strips, strips.names, strict=True))
    ]
    title = f"<title>{escape(strips.title)}: {escape(strips.x_label)}</title>"
    return f'<svg viewBox="0 0 {_STRIPS_WIDTH} {height}" role="img" class="chart">{title}{"".join(parts)}</svg>'


def strips_legend(strips: Strips) -> list[tuple[str, str]]:
    """(swatch, label) of each tone."""
    box = '<svg viewBox="0 0 28 14" class="swatch" aria-hidden="true"><rect x="7" y="0" width="14" height="14" rx="2" '
    return [(f'{box}class="t{tone % TONES}"/></svg>', name) for tone, name in strips.legend]


def _strips_grid(strips: Strips, axis: Axis, height: int) -> str:
    bottom = height - _STRIPS_BOTTOM
    parts = []
    for at in axis.ticks:
        x = _strips_across(axis, at)
        parts.append(f'<line x1="{x:.1f}" y1="{_STRIPS_TOP}" x2="{x:.1f}" y2="{bottom}" class="grid"/>')
        label_text = tick(at, strips.percent)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" class="tick" text-anchor="middle">{label_text}</text>')
    if strips.mark is not None:
        x = _strips_across(axis, strips.mark)
        ends = f'x1="{x:.1f}" y1="{_STRIPS_TOP}" x2="{x:.1f}" y2="{bottom}"'
        parts.append(f'<line {ends} class="axis" stroke-dasharray="4 4"/>')
    middle, label = _STRIPS_WIDTH / 2, escape(strips.x_label)
    parts.append(f'<text x="{middle}" y="{height - 8}" class="label" text-anchor="middle">{label}</text>')
    return "".join(parts)


def _strip(strip: Strip, lines: list[str], top: int, axis: Axis) -> str:
    name = "".join(
        f'<text x="{_STRIPS_LEFT}" y="{top + _NAME_HEIGHT * at}" class="name">{escape(line)}</text>'
        for at, line in enumerate(lines, 1)
    )
    top += _NAME_HEIGHT * len(lines) + 6
    drawn = _parts(strip, top, axis) if strip.value is None else _interval(strip, top + _BAR_HEIGHT // 2, axis)
    kind = ' class="faint"' if strip.faint else ""
    return f"<g{kind}>{name}{drawn}</g>"


def _parts(strip: Strip, top: int, axis: Axis) -> str:
    parts, until = [], 0.0
    for tone, size in strip.parts:
        left, right = _strips_across(axis, until), _strips_across(axis, until + size)
        box = f'x="{left:.1f}" y="{top}" width="{max(right - left, 0):.1f}" height="{_BAR_HEIGHT}"'
        parts.append(f'<g><rect {box} class="t{tone % TONES}"/><title>{share(size)}</title></g>')
        if size >= LABEL_THRESHOLD:
            middle = f'x="{(left + right) / 2:.1f}" y="{top + 13.5}"'
            parts.append(f'<text {middle} class="inside" text-anchor="middle">{share(size, 0)}</text>')
        until += size
    return "".join(parts)


def _interval(strip: Strip, middle: int, axis: Axis) -> str:
    assert strip.value is not None
    tone, at = strip.tone % TONES, _strips_across(axis, strip.value)
    bar = ""
    if strip.bounds:
        low, high = (_strips_across(axis, end) for end in strip.bounds)
        path = f"M{low:.1f} {middle - 5}v10M{high:.1f} {middle - 5}v10M{low:.1f} {middle}H{high:.1f}"
        bar = f'<path d="{path}" class="bar s{tone}"/>'
    mark = f'<circle cx="{at:.1f}" cy="{middle}" r="5" class="mark t{tone}"/>'
    return f"{bar}<g>{mark}<title>{number(strip.value)}</title></g>"


def _strips_across(axis: Axis, value: float) -> float:
    return _STRIPS_LEFT + axis.at(value) * (_STRIPS_WIDTH - _STRIPS_LEFT - _STRIPS_RIGHT)
