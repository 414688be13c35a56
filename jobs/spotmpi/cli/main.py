"""Where `spotmpi` begins: its commands are in `spotmpi.cli.app`, and every error is one line."""

from __future__ import annotations

import gc
import io
import sys

from spotmpi.cli.app import app
from spotmpi.cli.error_output import exit_code_of


def main() -> None:
    """Run the command line; every error is one clear line on stderr and an exit code."""
    gc.freeze()  # what was imported stays until the end: searching it for garbage once more there takes 10 ms
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks a letter still gets the rest
            stream.reconfigure(errors="replace")
    try:
        code = app(prog_name="spotmpi", standalone_mode=False)
    except BaseException as error:
        if "--debug" in sys.argv and not isinstance(error, SystemExit):
            raise
        sys.exit(exit_code_of(error))
    sys.exit(code if isinstance(code, int) else 0)
