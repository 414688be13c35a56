"""How Vega-Lite draws charts: for the page as SVG in the colours of its style, and as one picture."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from unicodedata import east_asian_width
from xml.etree import ElementTree

from spotmpi.core.wording import printable
from spotmpi.report.figures import (
    IDEAL,
    MEASURED,
    TRACE,
    Bar,
    BarChart,
    Chart,
    Curve,
    Drawing,
    Tree,
    number,
    share,
    tick,
)

Object = dict[str, Any]  # of a Vega-Lite specification

COLOURS = 6  # in each theme; they differ in lightness too, for colour-blind readers and monochrome printers
_WIDTH, _HEIGHT = 400, 224  # of a chart with its labels, and of the area of its curves alone
_LINE, _LABEL = 48, 40  # letters of a line across a chart, and of one in its legend
_FILLER, _MORE = "\0", " ..."  # beside a wide letter while lines are broken, and after a text that is cut
_TITLE, _HIGH = 42, 30  # letters of a line of its title, and of one beside the axis of y
_MARKS = ("circle", "square", "diamond", "triangle-up")
_DASHES: tuple[list[int], ...] = ([1, 0], [6, 3], [2, 3], [8, 3, 2, 3])
_IDEAL_DASH = [4, 4]
_FONT = "Liberation Sans"  # Vega has it; the page sets its own

# Of bars, in pixels: one with its distances, a line of its name, the bar itself, and the margin to the left of it.
_ROW, _NAME, _BAR = 30, 16, 18
_INDENT, _INDENTED = 20, 180  # pixels of a level of a tree, and at most of all its levels
INSIDE = "inside"  # the name of their labels in the drawing
_LABEL_THRESHOLD = 0.12  # smallest part of a bar that is labelled with its share

_COLUMNS, _SCALE = 2, 2.0  # of a picture
_SPACE = 24  # between and around its charts
_TICK = "format(datum.value, datum.value && abs(datum.value) < 1e-3 ? '.3~g' : ',.10~g')"
_PERCENT = "format(datum.value * 100, '.0f') + ' %'"


@dataclass(frozen=True)
class Theme:
    """The colours of a chart, and whether it has its title, which the page writes itself."""

    colours: Sequence[str]
    text: str
    soft: str
    rule: str
    background: str
    with_title: bool


PAGE = Theme(
    [f"var(--c{at})" for at in range(COLOURS)], "var(--text)", "var(--soft)", "var(--rule)", "var(--card)", False
)
PICTURE = Theme(
    ("#0067a6", "#c44e00", "#00805c", "#a8437e", "#6b5b00", "#4c4fa8"), "#16202c", "#556273", "#dfe4ea", "#ffffff", True
)


def svg(chart: Drawing) -> str:
    """The chart as one ``svg`` element of a page; marks name their values when the pointer is over them."""
    return ElementTree.tostring(_drawn(chart, PAGE), encoding="unicode")


def picture(charts: Sequence[Drawing]) -> bytes:
    """The charts as a PNG, two in a row; the last of an odd number is in the middle of its row."""
    import vl_convert

    drawn = [_drawn(chart, PICTURE) for chart in charts]
    columns = min(len(drawn), _COLUMNS)
    rows = [drawn[at : at + columns] for at in range(0, len(drawn), columns)]
    width, down = columns * (_WIDTH + _SPACE) + _SPACE, float(_SPACE)
    whole = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg"})
    ElementTree.SubElement(whole, "rect", {"width": "100%", "height": "100%", "fill": PICTURE.background})
    for row in rows:
        left = (width - len(row) * (_WIDTH + _SPACE) + _SPACE) / 2
        for at, element in enumerate(row):
            element.attrib |= {"x": str(left + at * (_WIDTH + _SPACE)), "y": str(down)}
            whole.append(element)
        down += max(float(element.attrib["height"]) for element in row) + _SPACE
    whole.attrib |= {"width": str(width), "height": str(down)}
    return vl_convert.svg_to_png(ElementTree.tostring(whole, encoding="unicode"), scale=_SCALE)


def _drawn(chart: Drawing, theme: Theme) -> ElementTree.Element:
    import vl_convert

    text = vl_convert.vegalite_to_svg(json.dumps(specification(chart, theme)))
    root = ElementTree.fromstring(text.replace(' xmlns="http://www.w3.org/2000/svg"', "", 1))
    # Vega describes marks for screen readers alone; browsers show a title.
    for mark in root.iterfind(".//*[@role='graphics-symbol'][@aria-label]"):
        if mark.get("aria-roledescription") not in ("axis", "legend"):
            ElementTree.SubElement(mark, "title").text = mark.get("aria-label")
    root.attrib |= {"class": "chart", "role": "graphics-document document", "aria-label": _description(chart)}
    return root


def specification(chart: Drawing, theme: Theme) -> Object:
    """The Vega-Lite specification of *chart*. Pure."""
    draw: Any = {Chart: _curves, BarChart: _bars, Tree: _tree}[type(chart)]
    content: Object = draw(chart, theme)
    subtitle = _wrapped(printable(chart.subtitle), _LINE + 8, 2)
    heading = _wrapped(printable(chart.title), _TITLE, 2)
    title = {"title": {"text": heading, "subtitle": subtitle}} if theme.with_title else {}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": _WIDTH,
        "autosize": {"type": "fit-x", "contains": "padding"},
        **title,
        **content,
        "config": _configuration(theme),
    }


def _configuration(theme: Theme) -> Object:
    """What all charts have in common, as the ``config`` of Vega-Lite."""
    words = {"labelColor": theme.soft, "titleColor": theme.soft, "labelFontSize": 13, "titleFontSize": 13}
    title = {"anchor": "start", "frame": "bounds", "color": theme.text, "fontSize": 16, "offset": 12}
    axis = {"domainColor": theme.soft, "tickColor": theme.soft, "gridColor": theme.rule, "titleFontWeight": "normal"}
    legend = {"orient": "top", "title": None, "labelColor": theme.text, "labelLimit": 0, "symbolLimit": 0}
    return {
        "background": None,
        "font": _FONT,
        "padding": 4,
        "view": {"stroke": None},
        "title": {**title, "subtitleColor": theme.soft, "subtitleFontSize": 12, "subtitlePadding": 6},
        "axis": {**words, **axis, "titlePadding": 10},
        "legend": {**words, **legend, "symbolOpacity": 1, "rowPadding": 4, "columnPadding": 18, "offset": 12},
    }


def _wrapped(text: str, letters: int, lines: int | None = None) -> list[str]:
    """*text* in lines of so many letters, at most *lines*; the wide ones of East Asian scripts count twice."""
    doubled = "".join(f"{letter}{_FILLER}" if east_asian_width(letter) in "WF" else letter for letter in text)
    wrapped = textwrap.wrap(doubled, letters, max_lines=lines, placeholder=_MORE)
    if lines is not None and wrapped[-1:] == [_MORE.strip()]:  # it leaves a word out as a whole
        cut = textwrap.wrap(doubled, letters)[len(wrapped) - 1][: letters - len(_MORE)]
        wrapped = [*wrapped[:-1], f"{cut}{_MORE}"]
    return [line.replace(_FILLER, "") for line in wrapped]


def _description(chart: Drawing) -> str:
    if isinstance(chart, Tree):
        return printable(f"{chart.title}: {', '.join(item.name for item in chart.items)}")
    over = "" if isinstance(chart, BarChart) else f"{chart.y_label} over "
    return printable(f"{chart.title}: {over}{chart.x_label}")


# The channel and its settings that a key of a row stands for; those of pixels have no scale.
_PIXELS: Object = {"type": "quantitative", "scale": None, "axis": None}
_CHANNELS: dict[str, tuple[str, Object]] = {
    **{key: (key, {"type": "quantitative"}) for key in ("x", "y")},
    **{key: (key, {}) for key in ("x2", "y2", "order", "text")},
    "top": ("y", _PIXELS),
    "bottom": ("y2", {}),
    "left": ("x", _PIXELS),
    "right": ("x2", {}),
    "words": ("description", {}),
    "colour": ("color", {"type": "nominal", "scale": None}),
    "opacity": ("opacity", {"type": "quantitative", "scale": None}),
}


def _layer(mark: str, rows: Sequence[Object], **options: Any) -> Object:
    """A layer of marks, one for each row; `words` of a row describe its mark, others are hidden from screen readers."""
    keys = rows[0].keys() if rows else ()
    encoding = {_CHANNELS[key][0]: {"field": key, **_CHANNELS[key][1]} for key in keys}
    aria = {} if "words" in keys else {"aria": False}
    return {"data": {"values": rows}, "mark": {"type": mark, **aria, **options}, "encoding": encoding}


def _curves(chart: Chart, theme: Theme) -> Object:
    layers = [
        layer
        for curve in sorted(chart.curves, key=lambda curve: curve.kind != IDEAL)
        for layer in _curve(chart, curve, theme)
    ]
    label = f"{chart.y_label} (log)" if chart.log else chart.y_label
    y_axis = {"title": _wrapped(printable(label), _HIGH, 2), "tickCount": 5, "domain": False, "ticks": False}
    y_axis["labelExpr"] = _PERCENT if chart.percent else _TICK
    y_axis |= {"values": _log_ticks(chart)} if chart.log else {}
    x_axis = {"title": printable(chart.x_label), "grid": False, "labelExpr": _TICK, "labelFlush": False}
    x_axis |= {"values": list(chart.ticks), "labelOverlap": True} if chart.ticks else {"tickCount": 5}
    shared = {
        "x": {"type": "quantitative", "axis": x_axis, "scale": _x_scale(chart)},
        "y": {"type": "quantitative", "axis": y_axis, "scale": _y_scale(chart)},
    }
    return {"height": _HEIGHT, "encoding": shared, "layer": [_legend(_legend_rows(chart.curves), theme), *layers]}


def _x_scale(chart: Chart) -> Object:
    """Around the counts in a chart over nodes, from 0 in one over time."""
    if not chart.ticks:
        all_x = [x for curve in chart.curves for x, _ in curve.points]
        first, last = min(0, *all_x), max(all_x)  # below 0 by a clock that was set back
        return {"domain": [first, last if last > first else first + 1], "nice": False}
    low, high = chart.ticks[0], chart.ticks[-1]
    margin = (high - low) * 0.08
    return {"domain": [low - margin, high + margin], "nice": False}


def _y_scale(chart: Chart) -> Object:
    """From 0, unless the values are negative or the scale is logarithmic."""
    if chart.log:
        return {"type": "log", "nice": True}
    if chart.percent:  # the ideal of another chart's variant raises no axis
        measured = [curve for curve in chart.curves if curve.kind != IDEAL]
        ends = [high for curve in measured for _, _, high in curve.error_bars]
        top = max(1.0, *ends, *(y for curve in measured for _, y in curve.points))
        return {"domainMax": max(1.1, top * 1.05), "nice": top > 1.05}
    return {"zero": True, "nice": True}


def _log_ticks(chart: Chart) -> list[float]:
    """1, 2 and 5 in each decade; over more than two decades 1 alone."""
    values = [y for curve in chart.curves for _, y in curve.points]
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    return [factor * 10.0**power for power in range(first, last + 1) for factor in factors]


def _curve(chart: Chart, original: Curve, theme: Theme) -> Iterator[Object]:
    """The layers of one curve: line, error bars, single trials and points."""
    curve, colour = original.shifted, theme.colours[original.colour % COLOURS]
    points = [{"x": x, "y": y, "order": at} for at, (x, y) in enumerate(curve.points)]
    width = {IDEAL: 1.4, TRACE: 2.2, MEASURED: 2.2}[curve.kind]
    opacity = 0.65 if curve.kind == IDEAL else 1.0
    yield _layer("line", points, color=colour, strokeWidth=width, strokeDash=_dash(curve), opacity=opacity)
    if curve.error_bars:
        yield _layer(
            "rule", [{"x": x, "y": low, "y2": high} for x, low, high in curve.error_bars], color=colour, strokeWidth=1.6
        )
        ends = [{"x": x, "y": end} for x, *both in curve.error_bars for end in both]
        yield _layer("tick", ends, color=colour, orient="horizontal", size=9, thickness=1.6)
    if curve.trials:
        yield _layer("circle", [{"x": x, "y": y} for x, y in curve.trials], color=colour, size=16, opacity=0.5)
    if curve.kind == MEASURED:
        marks = [
            {"x": x, "y": y, "words": printable(f"{curve.label}, {tick(at)} {chart.x_label}: {_value(chart, y)}")}
            for (at, _), (x, y) in zip(original.points, curve.points, strict=True)
        ]
        mark = _MARKS[curve.colour % len(_MARKS)]
        edge = {"stroke": theme.background, "strokeWidth": 1.5, "opacity": 1.0}
        yield _layer("point", marks, shape=mark, fill=colour, size=80, **edge)


def _value(chart: Chart, value: float) -> str:
    return share(value) if chart.percent else number(value)


def _dash(curve: Curve) -> list[int]:
    if curve.kind == IDEAL:
        return _IDEAL_DASH
    return _DASHES[curve.colour % len(_DASHES)] if curve.kind == TRACE else _DASHES[0]


def _legend_rows(curves: Sequence[Curve]) -> list[tuple[str, int, str, list[int]]]:
    """(label, colour, mark, dash) of each distinct label, measured curves first."""
    by_label = {curve.label: curve for curve in reversed(curves)}
    ordered = sorted(by_label.values(), key=lambda curve: (curve.kind == IDEAL, curve.colour))
    return [
        (each.label, each.colour, _MARKS[each.colour % 4] if each.kind == MEASURED else "stroke", _dash(each))
        for each in ordered
    ]


def _legend(rows: Sequence[tuple[str, int, str, list[int]]], theme: Theme) -> Object:
    """A layer that draws nothing and has the legend: long labels in lines, short ones side by side."""
    labels = ["\n".join(_wrapped(printable(label), _LABEL)) for label, *_ in rows]
    columns = max(1, (_LINE + 8) // (max(map(len, labels)) + 6))
    legend = {"columns": columns, "labelExpr": "split(datum.label, '\\n')"}
    colours = [theme.colours[colour % COLOURS] for _, colour, _, _ in rows]
    ranges: dict[str, list[Any]] = {"fill": colours, "stroke": colours, "shape": [mark for _, _, mark, _ in rows]}
    ranges |= {
        "strokeDash": [dash for *_, dash in rows],
        "size": [324 if mark == "stroke" else 80 for *_, mark, _ in rows],
    }
    encoding = {
        channel: {
            "field": "label",
            "type": "nominal",
            "scale": {"type": "ordinal", "domain": labels, "range": found},
            "legend": legend,
        }
        for channel, found in ranges.items()
    }
    return {"data": {"values": []}, "mark": {"type": "point", "aria": False, "opacity": 1}, "encoding": encoding}


def _bars(chart: BarChart, theme: Theme) -> Object:
    """A bar chart, with the name of each bar above it, as a view of Vega-Lite."""
    names = [_wrapped(printable(bar.name), _LINE) for bar in chart.bars]
    *tops, height = accumulate((_ROW + _NAME * len(lines) for lines in names), initial=0)
    texts = [{"top": top, "text": lines} for top, lines in zip(tops, names, strict=True)]
    placed = [(bar, top + _NAME * len(lines) + 4) for bar, top, lines in zip(chart.bars, tops, names, strict=True)]
    entries = [(name, colour, "square", _DASHES[0]) for colour, name in chart.legend]
    style = {"align": "left", "baseline": "top", "fontSize": 13, "lineHeight": _NAME}
    layers = [_layer("text", texts, x=0, color=theme.text, **style)]
    if chart.mark is not None:
        ends = [{"x": chart.mark, "top": top - 2, "bottom": top + _BAR + 2} for _, top in placed]
        layers.append(_layer("rule", ends, color=theme.soft, strokeDash=_IDEAL_DASH))
    layers += [*_parts(placed, theme), *_intervals(placed, theme)]
    x_axis = {"title": printable(chart.x_label), "tickCount": 5, "domain": False, "ticks": False}
    x_axis["labelExpr"] = _PERCENT if chart.percent else _TICK
    scale = {"domain": [0, 1]} if any(bar.parts for bar in chart.bars) else {"zero": False, "nice": True}
    shared = {"x": {"type": "quantitative", "axis": x_axis, "scale": scale}}
    drawn = [layer for layer in layers if layer["data"]["values"]]
    return {"height": height, "encoding": shared, "layer": [*([_legend(entries, theme)] if entries else []), *drawn]}


def _parts(placed: Sequence[tuple[Bar, int]], theme: Theme) -> list[Object]:
    """The parts of each bar end to end, with their shares."""
    boxes: list[Object] = []
    for bar, top in placed:
        ends = accumulate((size for _, size in bar.parts), initial=0.0)
        for (colour, size), start in zip(bar.parts, ends, strict=False):
            end = {"x": start, "x2": start + size, "top": top, "bottom": top + _BAR}
            boxes.append({**end, "words": share(size), "colour": theme.colours[colour % COLOURS]})
    labels = [
        {"x": (box["x"] + box["x2"]) / 2, "top": box["top"] + _BAR / 2, "text": share(box["x2"] - box["x"], 0)}
        for box in boxes
        if box["x2"] - box["x"] >= _LABEL_THRESHOLD
    ]
    style = {"color": theme.background, "fontSize": 13, "fontWeight": 600}
    return [_layer("rect", boxes), {**_layer("text", labels, **style), "name": INSIDE}]


def _intervals(placed: Sequence[tuple[Bar, int]], theme: Theme) -> list[Object]:
    """The value of each bar between its bounds."""
    values, bounds = [], []
    for bar, top in placed:
        if bar.value is not None:
            colour = theme.colours[bar.colour % COLOURS]
            style = {"top": top + _BAR // 2, "colour": colour, "opacity": 0.5 if bar.muted else 1.0}
            values.append({"x": bar.value, "words": number(bar.value), **style})
            bounds += [(style, *bar.bounds)] if bar.bounds else []
    ends = [{"x": end, **style} for style, *both in bounds for end in both]
    return [
        _layer("rule", [{"x": low, "x2": high, **style} for style, low, high in bounds], strokeWidth=1.6),
        _layer("tick", ends, orient="vertical", size=11, thickness=1.6),
        _layer("circle", values, size=80),
    ]


def _tree(chart: Tree, theme: Theme) -> Object:
    """A dot for each item, with a line from that of the level above, and its name and note to the right."""
    indent = min(_INDENT, _INDENTED / max(1, *(item.depth for item in chart.items)))
    letters = [_LINE - 5 - math.ceil(3 * item.depth * indent / _INDENT) for item in chart.items]
    names = [_wrapped(printable(item.name), size) for item, size in zip(chart.items, letters, strict=True)]
    notes = [_wrapped(printable(item.note), size + 6, 3) for item, size in zip(chart.items, letters, strict=True)]
    heights = [_NAME * (len(name) + len(note)) + 12 for name, note in zip(names, notes, strict=True)]
    *tops, height = accumulate(heights, initial=4)
    dots, lines, open_dots = list[Object](), list[Object](), dict[int, float]()
    texts: tuple[list[Object], list[Object]] = ([], [])
    for item, top, name, note in zip(chart.items, tops, names, notes, strict=True):
        left, middle = 8 + indent * item.depth, top + _NAME / 2
        if item.depth:
            above = left - indent
            lines.append({"left": above, "right": above, "top": open_dots[item.depth - 1], "bottom": middle})
            lines.append({"left": above, "right": left, "top": middle, "bottom": middle})
        open_dots[item.depth] = middle
        words = f"{item.name}, {item.note}" if item.note else item.name
        dots.append({"left": left, "top": middle, "words": printable(words), "colour": theme.colours[item.colour]})
        texts[0].append({"left": left + 12, "top": top, "text": name})
        texts[1].append({"left": left + 12, "top": top + _NAME * len(name), "text": note})
    style = {"align": "left", "baseline": "top", "lineHeight": _NAME}
    layers = [
        _layer("rule", lines, color=theme.soft, strokeWidth=1.4),
        _layer("circle", dots, size=110, opacity=1),
        _layer("text", texts[0], color=theme.text, fontSize=13, fontWeight=600, **style),
        _layer("text", [row for row in texts[1] if row["text"]], color=theme.soft, fontSize=12, **style),
    ]
    entries = [(name, colour, "circle", _DASHES[0]) for colour, name in chart.legend]
    drawn = [layer for layer in layers if layer["data"]["values"]]
    return {"height": height, "layer": [*([_legend(entries, theme)] if entries else []), *drawn]}
