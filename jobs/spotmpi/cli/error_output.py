"""From an exception to one line on stderr and an exit code."""

from __future__ import annotations

import os
import sys

import typer
from typer.exceptions import TyperException

from spotmpi.core.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_WRONG_INPUT, InputError, SpotmpiError
from spotmpi.core.printable import printable_lines


def exit_code_of(error: BaseException) -> int:
    """The exit code for *error*, after telling the user on stderr."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else EXIT_FAILURE
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return EXIT_INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # The reader of our output went away, as `head` does: end quietly, also at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    for line in _lines(error):
        print(f"spotmpi: {printable_lines(line)}", file=sys.stderr)
    if isinstance(error, SpotmpiError):
        return error.exit_code
    return EXIT_WRONG_INPUT if isinstance(error, TyperException) else EXIT_FAILURE


def _lines(error: BaseException) -> list[str]:
    if isinstance(error, InputError):
        return [str(problem) for problem in error.problems]
    if isinstance(error, TyperException):
        return [error.format_message()]
    if isinstance(error, SpotmpiError):
        return [str(error)]
    return [f"{type(error).__name__}: {error} (a fault of spotmpi's own? --debug before the command shows where)"]
