"""Errors that a user can fix: one base class and few subclasses."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from datetime import date, time
from typing import Any, NamedTuple

from spotmpi.core.wording import shorten

EXIT_FAILURE = 1
EXIT_WRONG_INPUT = 2
EXIT_INTERRUPTED = 130
_LONGEST = 80  # letters of a value in a message


class SpotmpiError(Exception):
    """Something failed; the message says what happened, the value and the remedy."""

    exit_code = EXIT_FAILURE

    def __reduce__(self) -> tuple[Any, ...]:
        """How pickle and copy make it again: with its fields, not by a call with the message alone."""
        return _new, (type(self), *self.args), self.__dict__


class Problem(NamedTuple):
    """One thing wrong with the input: its field path, the value found there and the remedy."""

    field: str
    value: object
    remedy: str

    def __str__(self) -> str:
        try:
            text = written(self.value)
        except RecursionError:  # as of a key with thousands of dots
            text = reprlib.repr(self.value)
        text = " ".join(line.strip() for line in text.splitlines())
        shown = "" if self.value is None else f" = {shorten(text, _LONGEST)}"
        field = self.field if self.field.isprintable() else shorten(repr(self.field), _LONGEST)
        return f"{field}{shown}: {self.remedy}"


class InputError(SpotmpiError):
    """The input is wrong; ``problems`` has all problems, at least one."""

    exit_code = EXIT_WRONG_INPUT

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems
        self.problems = tuple(problems)
        super().__init__("; ".join(str(problem) for problem in problems))


class UnknownRun(InputError):
    """No run of that id is recorded at the target."""


class NotPermitted(SpotmpiError):
    """This user lacks the permission; others may have it."""


class UnreadableRun(SpotmpiError):
    """A run on a cluster whose JobSet this version cannot read: another version or another program created it."""


class RunInUse(SpotmpiError):
    """Another agent holds the run folder."""


def input_error(field: str, value: object, remedy: str) -> InputError:
    """An InputError of a single problem."""
    return InputError([Problem(field, value, remedy)])


def written(value: object) -> str:
    """A value as TOML has it, which a spec and ``--set`` take."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {written(each)}' for key, each in value.items())} }}" if value else "{}"
    return repr(value)


def _new(kind: type[SpotmpiError], *args: object) -> SpotmpiError:
    """An error without its fields yet."""
    return kind.__new__(kind, *args)
