"""Texts of programs and other users, made harmless for a terminal or a page. Pure."""

from __future__ import annotations

import re

LONGEST = 1000  # characters of a reason, a name or a value; of a longer one both ends are kept
WHOLE = 100_000  # characters of a long text, such as all hosts of a run

_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,40}m")
_RESET = "\x1b[0m"
_JOINERS = "\u200c\u200d"  # needed by some scripts and emoji
_SPACES = "\u00a0\u2002\u2003\u2007\u2009\u202f\u3000"
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: object, longest: int = LONGEST) -> str:
    r"""*text* on one line of at most *longest* letters, with control characters as escapes such as ``\x1b``.

    So are marks that turn the direction of writing, and half surrogate pairs.
    """
    shown = shorten(str(text), longest)
    return shown if shown.isprintable() else "".join(map(_escaped, shown))


def printable_output(line: str) -> str:
    """A line of a program's output for a terminal: colours and tabs stay, other control characters are escapes."""
    if line.isprintable():
        return line
    parts, at = [], 0
    for colour in _COLOUR.finditer(line):
        parts += [_shown(line[at : colour.start()]), colour.group()]
        at = colour.end()
    return "".join([*parts, _shown(line[at:]), _RESET if at else ""])


def printable_lines(text: str) -> str:
    """`printable` of text that may have several lines and tabs."""
    return "\n".join(_shown(line) for line in shorten(text, WHOLE).split("\n"))


def counted(count: int, what: str) -> str:
    """A number with its noun: "1 node", "2 nodes"."""
    return f"{count} {what}{'s' * (count != 1)}"


def shorten(text: str, longest: int) -> str:
    """*text* with at most so many letters: of a longer one both ends, since the ends of paths differ."""
    half = (longest - 3) // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[len(text) - half :]}"


def _shown(line: str) -> str:
    return line if line.isprintable() else "".join(letter if letter == "\t" else _escaped(letter) for letter in line)


def _escaped(letter: str) -> str:
    if letter.isprintable() or letter in _JOINERS or letter in _SPACES:
        return letter
    return _ESCAPES.get(letter) or letter.encode("unicode_escape").decode()
