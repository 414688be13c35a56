"""How a message writes an option, a number with its noun, and text of programs and other users.

An option is written as the command line takes it in a command, else as the argument of a Python function. Like the
language of messages it is one setting of a process, so that no function has to know who has called it. Reasons that a
run records are read by both, and name no option. Text of others is made harmless for a terminal or a page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from spotmpi.agent.files import error_text
from spotmpi.agent.protocol import counted as counted
from spotmpi.agent.protocol import dollars as dollars
from spotmpi.agent.protocol import duration as duration

Echo = Callable[[str], None]  # how long operations report their progress: one line of text at a time
LONGEST = 1000  # characters of a reason, a name or a value; of a longer one both ends are kept
WHOLE = 100_000  # characters of a long text, such as all hosts of a run

_DIGITS = 12  # of a digest that people see
_DIGEST = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,40}m")
_ERASURE = re.compile(r"\x1b\[[0-2]?[JK]")  # of a line or screen, as by Chainer in front of each row of a table
_RESET = "\x1b[0m"
_JOINERS = "\u200c\u200d"  # needed by some scripts and emoji
_SPACES = "\u00a0\u2002\u2003\u2007\u2009\u202f\u3000"
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Arguments that are not called like the option, or have another form.
_ARGUMENTS = {
    "build-arg": "arguments",
    "env": 'overrides=["env.{}"]',
    "force": "force=True",
    "new": "StudyOptions(fresh=True)",
    "resume": "run",
    "runs": 'on=Target(on, Path("{}"))',
    "set": "overrides",
    "variant": "variants",
}

_in_command = False


@contextmanager
def of_commands() -> Iterator[None]:
    """Name options as the command line takes them, while in the context."""
    global _in_command
    before, _in_command = _in_command, True
    try:
        yield
    finally:
        _in_command = before


def format_size(count: float) -> str:
    """A number of bytes for people."""
    if count >= 1e9:
        return f"{count / 1e9:,.2f} GB"
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def dotted(values: Mapping[str, Any]) -> dict[str, Any]:
    """*values* by the keys that ``--set`` takes, such as ``limits.failures``; those of inner tables come last."""
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    inner = {f"{key}.{name}": value for key, table in tables.items() for name, value in dotted(table).items()}
    return {**{key: value for key, value in values.items() if key not in tables}, **inner}


def either(command: str, function: str) -> str:
    """What one does in a command, or where a function was called."""
    return command if _in_command else function


def option(name: str, value: object = "") -> str:
    """The option *name*, without its dashes, or the argument that it stands for; with *value* as it is written."""
    if _in_command:
        return f"--{name} {value}".rstrip()
    if name in _ARGUMENTS:
        return _ARGUMENTS[name].format(value)
    argument = name.replace("-", "_")
    if value == "":
        return argument
    return f"{argument}={value}" if isinstance(value, int) else f'{argument}="{value}"'


def reason_of(error: Exception) -> str:
    """What an error of the system or of a parser says, without numbers and names that are for programs."""
    if isinstance(error, UnicodeDecodeError):
        return f"the byte 0x{error.object[error.start]:02x} is not UTF-8"
    mark = getattr(error, "problem_mark", None)
    if mark is not None:  # of YAML
        return f"{getattr(error, 'problem', error)} (line {mark.line + 1}, column {mark.column + 1})"
    return " ".join(error_text(error).split())


def printable(text: object, longest: int = LONGEST) -> str:
    r"""*text* on one line of at most *longest* letters, with control characters as escapes such as ``\x1b``.

    So are marks that turn the direction of writing, and half surrogate pairs.
    """
    shown = shorten(str(text), longest)
    return shown if shown.isprintable() else "".join(map(_escaped, shown))


def printable_output(line: str) -> str:
    """A line of a program's output for a terminal: colours and tabs stay, erasures go, others become escapes."""
    if line.isprintable():
        return line
    line = _ERASURE.sub("", line)
    parts, at = [], 0
    for colour in _COLOUR.finditer(line):
        parts += [_shown(line[at : colour.start()]), colour.group()]
        at = colour.end()
    return "".join([*parts, _shown(line[at:]), _RESET if at else ""])


def printable_lines(text: str) -> str:
    """`printable` of text that may have several lines and tabs."""
    return "\n".join(_shown(line) for line in shorten(text, WHOLE).split("\n"))


def echo(text: str) -> None:
    """Print a message on stderr."""
    print(f"spotmpi: {printable_lines(text)}", file=sys.stderr, flush=True)


def print_message(text: str) -> None:
    """Print a message on stderr, of a command as its others."""
    if _in_command:
        echo(text)
    else:
        print(printable_lines(text), file=sys.stderr, flush=True)


def silent(text: str) -> None:
    """Print nothing, as functions do whose caller gives no `Echo`."""


def shorten(text: str, longest: int) -> str:
    """*text* with at most so many letters: of a longer one both ends, since the ends of paths differ."""
    half = (longest - 3) // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[len(text) - half :]}"


def shortened(value: object) -> str:
    """A value as text, of a digest in hexadecimal digits the first ones."""
    text = str(value)
    return text[:_DIGITS] if _DIGEST.fullmatch(text) else text


def _shown(line: str) -> str:
    return line if line.isprintable() else "".join(letter if letter == "\t" else _escaped(letter) for letter in line)


def _escaped(letter: str) -> str:
    if letter.isprintable() or letter in _JOINERS or letter in _SPACES:
        return letter
    return _ESCAPES.get(letter) or letter.encode("unicode_escape").decode()
