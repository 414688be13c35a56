"""Strips as inline SVG: each line of text with its parts or its interval below. Pure."""

from __future__ import annotations

from spotmpi.report.axes import Axis, strips_axis
from spotmpi.report.chart import NAMED_FROM, Strip, Strips
from spotmpi.report.figures import number, share, tick
from spotmpi.report.svg import TONES, escape

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 400, 20, 28, 6, 44
_LINE, _ROW, _BAR = 16, 30, 18  # heights of a line of text, of the rest of a strip, and of a bar in it


def svg(strips: Strips) -> str:
    """The strips as one ``svg`` element, 400 units wide and as high as they need."""
    axis = strips_axis(strips)
    row = _ROW + _LINE * strips.deepest
    height = _TOP + row * len(strips.strips) + _BOTTOM
    parts = [_grid(strips, axis, height)]
    parts += [
        _strip(strip, name, _TOP + row * at, axis)
        for at, (strip, name) in enumerate(zip(strips.strips, strips.names, strict=True))
    ]
    told = f"<title>{escape(strips.title)}: {escape(strips.x_label)}</title>"
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" class="chart">{told}{"".join(parts)}</svg>'


def legend(strips: Strips) -> list[tuple[str, str]]:
    """(swatch, label) of each tone."""
    box = '<svg viewBox="0 0 28 14" class="swatch" aria-hidden="true"><rect x="7" y="0" width="14" height="14" rx="2" '
    return [(f'{box}class="t{tone % TONES}"/></svg>', name) for tone, name in strips.legend]


def _grid(strips: Strips, axis: Axis, height: int) -> str:
    bottom = height - _BOTTOM
    parts = []
    for at in axis.ticks:
        x = _across(axis, at)
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" class="grid"/>')
        named = tick(at, strips.percent)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" class="tick" text-anchor="middle">{named}</text>')
    if strips.mark is not None:
        x = _across(axis, strips.mark)
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" class="axis" stroke-dasharray="4 4"/>')
    label = (
        f'<text x="{_WIDTH / 2}" y="{height - 8}" class="label" text-anchor="middle">{escape(strips.x_label)}</text>'
    )
    return "".join([*parts, label])


def _strip(strip: Strip, lines: list[str], top: int, axis: Axis) -> str:
    said = "".join(
        f'<text x="{_LEFT}" y="{top + _LINE * at}" class="name">{escape(line)}</text>'
        for at, line in enumerate(lines, 1)
    )
    top += _LINE * len(lines) + 6
    drawn = _parts(strip, top, axis) if strip.value is None else _interval(strip, top + _BAR // 2, axis)
    kind = ' class="faint"' if strip.faint else ""
    return f"<g{kind}>{said}{drawn}</g>"


def _parts(strip: Strip, top: int, axis: Axis) -> str:
    parts, until = [], 0.0
    for tone, size in strip.parts:
        left, right = _across(axis, until), _across(axis, until + size)
        box = f'x="{left:.1f}" y="{top}" width="{max(right - left, 0):.1f}" height="{_BAR}"'
        parts.append(f'<g><rect {box} class="t{tone % TONES}"/><title>{share(size)}</title></g>')
        if size >= NAMED_FROM:
            middle = f'x="{(left + right) / 2:.1f}" y="{top + 13.5}"'
            parts.append(f'<text {middle} class="inside" text-anchor="middle">{share(size, 0)}</text>')
        until += size
    return "".join(parts)


def _interval(strip: Strip, middle: int, axis: Axis) -> str:
    assert strip.value is not None
    tone, at = strip.tone % TONES, _across(axis, strip.value)
    bar = ""
    if strip.bounds:
        low, high = (_across(axis, end) for end in strip.bounds)
        path = f"M{low:.1f} {middle - 5}v10M{high:.1f} {middle - 5}v10M{low:.1f} {middle}H{high:.1f}"
        bar = f'<path d="{path}" class="bar s{tone}"/>'
    mark = f'<circle cx="{at:.1f}" cy="{middle}" r="5" class="mark t{tone}"/>'
    return f"{bar}<g>{mark}<title>{number(strip.value)}</title></g>"


def _across(axis: Axis, value: float) -> float:
    return _LEFT + axis.at(value) * (_WIDTH - _LEFT - _RIGHT)
