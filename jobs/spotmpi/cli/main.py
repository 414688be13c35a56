"""Entry point of `spotmpi`: runs a command, and turns every error into one line on stderr and an exit code."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from itertools import takewhile

import typer
from typer.exceptions import TyperException

from spotmpi.cli.app import app
from spotmpi.core.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_WRONG_INPUT, InputError, SpotmpiError
from spotmpi.core.printable import printable_lines

# A folder of another user's, a full disk below a file to which stdout is redirected, and a disk that fails.
_NOT_UNEXPECTED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE)


def main() -> None:
    """Run the command line and exit with its code; ``--debug`` before the command shows tracebacks."""
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters that the terminal lacks are replaced, the rest is shown
            stream.reconfigure(errors="replace")
    try:
        code = app(prog_name="spotmpi", standalone_mode=False)
        sys.stdout.flush()  # else a full disk or a closed pipe would show only when the interpreter ends, with code 120
    except BaseException as error:
        before_command = takewhile(lambda word: word.startswith("-"), sys.argv[1:])
        if "--debug" in before_command and not isinstance(error, SystemExit):
            code = _report_traceback(error)
        else:
            code = _report(error)
    _discard_unwritten()
    sys.exit(code if isinstance(code, int) else 0)


def _discard_unwritten() -> None:
    """Write what stdout and stderr still hold, and discard what they cannot take, which is already reported."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def _open_standard_streams() -> None:
    """Connect to nothing what the caller has closed of stdin, stdout and stderr.

    Else the next files get their numbers, such as the lock of a run, which its agent would not inherit then.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def _report(error: BaseException) -> int:
    """Print *error* on stderr, a line for each problem; its exit code."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else EXIT_FAILURE
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return EXIT_INTERRUPTED
    if isinstance(error, BrokenPipeError):  # the reader of our output is gone, as with `head`
        return EXIT_FAILURE
    is_help = type(error).__name__ == "NoArgsIsHelpError"  # a command group alone; typer does not export the class
    texts = [str(error)] if is_help else [f"spotmpi: {printable_lines(line)}" for line in _lines(error)]
    with contextlib.suppress(OSError):  # stderr takes nothing either
        print(*texts, sep="\n", file=sys.stderr)
    if is_help:
        return EXIT_WRONG_INPUT
    if isinstance(error, SpotmpiError):
        return error.exit_code
    return EXIT_WRONG_INPUT if isinstance(error, TyperException) else EXIT_FAILURE


def _report_traceback(error: BaseException) -> int:
    """Print *error* as the interpreter would, which exits with code 120 where stderr takes nothing."""
    import traceback  # a start without --debug needs none

    with contextlib.suppress(OSError):
        traceback.print_exception(error)
    return EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else EXIT_FAILURE


def _lines(error: BaseException) -> list[str]:
    """What is printed of *error*: what happened, the value and the remedy, a line for each problem."""
    if isinstance(error, InputError):
        return [str(problem) for problem in error.problems]
    if isinstance(error, TyperException):
        message, context = error.format_message(), getattr(error, "ctx", None)
        if type(error).__name__ == "MissingParameter" and context is not None:
            message = f"{message.rstrip('.')}; `{context.command_path} --help` shows what it takes"
        return [message]
    if isinstance(error, SpotmpiError):
        return [str(error)]
    if isinstance(error, FileNotFoundError) and error.filename is None:  # os.getcwd
        return ["the current folder does not exist any more; change to another one"]
    if isinstance(error, OSError) and error.errno in _NOT_UNEXPECTED:
        return [f"cannot access {error.filename}: {error.strerror}" if error.filename else str(error.strerror)]
    return [f"{type(error).__name__}: {error} (unexpected; `spotmpi --debug COMMAND` shows a traceback)"]
