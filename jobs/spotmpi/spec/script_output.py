"""How a script prints its progress, as a `metrics.pattern`; the script is read and never run. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_CALLS = frozenset({"print", "info", "write", "warning", "debug", "log", "echo"})
_PERCENT = re.compile(r"%(?:\(\w+\))?[-+ #]*(?P<width>\d*)(?:\.\d+)?[a-zA-Z]")
_BRACES = re.compile(r"\{[^{}:]*(?::[^{}\d.]*(?P<width>\d*)[^{}]*)?\}")
_WIDTH = re.compile(r"[^\d.]*\d")  # of a format specification
_NUMBER_OF = r"(?<![a-z])(?:%s)['\"]?[ \t]*[:=#\[(]*[ \t]*$"
_STEP = re.compile(_NUMBER_OF % "step|iteration|iter|batch", re.IGNORECASE)
_EPOCH = re.compile(_NUMBER_OF % "epoch", re.IGNORECASE)
_SCALAR = re.compile(r"(?P<name>[a-z_]*(?:loss|accuracy|acc))['\"]?(?: *[:=] *| is | +)['\"]?$", re.IGNORECASE)
_ITERATION = r"(?P<iteration>\d+)"
_OTHER = r"[-+\w.]+"


class _Value(NamedTuple):
    """What a script fills in, maybe padded with spaces."""

    padded: bool = False


_Line = list["str | _Value"]  # a printed line


def pattern_of(source: str) -> str | None:
    """The pattern of a line with the number of a step, else of an epoch, that the script *source* prints.

    It is the first one in a loop that has a scalar, else in a loop, else with a scalar: "resumed from step 3" is no
    progress. None where it prints no such line or is not Python, and where that line has an epoch as well or is in a
    loop in a loop: numbers of steps may begin anew in each epoch, which recognition understands and a pattern does not.
    """
    try:
        lines = list(_printed_lines(ast.parse(source), 0))
    except (SyntaxError, ValueError, RecursionError):
        return None
    for word in (_STEP, _EPOCH):
        found = [each for each in lines if _number(each[0], word) is not None]
        if found:
            line, loops = max(found, key=lambda each: (each[1] > 0, _pattern(each[0], word).count("(?P<") > 1))
            in_epochs = loops > 1 or (word is _STEP and _number(line, _EPOCH) is not None)
            return None if in_epochs else _pattern(line, word)
    return None


def _printed_lines(node: ast.AST, loops: int) -> Iterator[tuple[_Line, int]]:
    """The lines that *node* prints, each with the number of *loops* around it."""
    for line in _printed(node):
        yield line, loops
    for child in ast.iter_child_nodes(node):
        yield from _printed_lines(child, loops + isinstance(node, (ast.For, ast.While)))


def _printed(node: ast.AST) -> Iterator[_Line]:
    """What a call prints or logs, up to the end of its first line."""
    if not isinstance(node, ast.Call) or not node.args:
        return
    name = getattr(node.func, "attr", getattr(node.func, "id", None))
    if name == "print":
        line: _Line = []
        for argument in node.args:
            line += [*([" "] if line else []), *_parts(argument)]
        yield _first_line(line)
    elif name in _CALLS:
        first = node.args[0]
        is_format = isinstance(first, ast.Constant) and isinstance(first.value, str) and len(node.args) > 1
        yield _first_line(_filled(_text(first), _PERCENT) if is_format else _parts(first))


def _parts(node: ast.expr) -> _Line:
    """The texts and values of an expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return [part for value in node.values for part in _parts(value)]
    if isinstance(node, ast.FormattedValue):
        return [_Value(node.format_spec is not None and bool(_WIDTH.match(_text(node.format_spec))))]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _parts(node.left) + _parts(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _filled(_text(node.left), _PERCENT)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return _filled(_text(node.func.value), _BRACES)
    return [_Value()]


def _text(node: ast.expr) -> str:
    """The text of a constant, or of the constants in an f-string."""
    return "".join(part for part in _parts(node) if isinstance(part, str))


def _filled(text: str, place: re.Pattern[str]) -> _Line:
    """The parts of a text with places for values."""
    line: _Line = []
    end = 0
    for match in place.finditer(text):
        line += [text[end : match.start()], _Value(bool(match["width"]))]
        end = match.end()
    return [*line, text[end:]]


def _first_line(line: _Line) -> _Line:
    """The parts in front of the first line break, without carriage returns."""
    result: _Line = []
    for part in line:
        text, end, _ = part.partition("\n") if isinstance(part, str) else ("", "", "")
        result.append(text.replace("\r", "") if isinstance(part, str) else part)
        if end:
            break
    return result


def _number(line: Sequence[str | _Value], word: re.Pattern[str]) -> int | None:
    """The index of the value that a *word* announces, or None."""
    for index, part in enumerate(line):
        if isinstance(part, _Value) and word.search(_before(line, index)):
            return index
    return None


def _before(line: Sequence[str | _Value], index: int) -> str:
    """The text between a value and the one before it."""
    texts: list[str] = []
    while index and isinstance(text := line[index - 1], str):
        texts.insert(0, text)
        index -= 1
    return "".join(texts)


def _pattern(line: Sequence[str | _Value], word: re.Pattern[str]) -> str:
    """The pattern of a line, from the *word* in front of its number to its last scalar."""
    number = _number(line, word)
    assert number is not None
    start = word.search(_before(line, number))
    assert start is not None
    text = _escaped(start.group()) + _value(line[number], _ITERATION)
    whole, names = text, {"iteration"}
    for index in range(number + 1, len(line)):
        part = line[index]
        if isinstance(part, str):
            text += _escaped(part)
            continue
        scalar = _SCALAR.search(_before(line, index))
        name = scalar["name"].lower().strip("_") if scalar else ""
        if scalar and name not in names:
            names.add(name)
            text += _value(part, f"(?P<{name}>{_OTHER})")
            whole = text
        else:
            text += _value(part, _OTHER)
    return whole


def _value(part: str | _Value, pattern: str) -> str:
    return f" *{pattern}" if isinstance(part, _Value) and part.padded else pattern


def _escaped(text: str) -> str:
    """The pattern of *text* itself; `re.escape` would escape spaces too."""
    return re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\1", text)
