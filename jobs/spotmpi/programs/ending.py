"""How a rank ends: with everybody, at once, and with an exit code that says whether starting again can help."""

import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import NoReturn

from spotmpi.agent import protocol

STOPPED = 143  # 128 + SIGTERM, what an agent expects of a rank that was told to end


class Fatal(Exception):
    """Starting again cannot help; the text says what is wrong, which value, and what to do."""


class Failed(Exception):
    """This attempt is lost though another may work; the text says why, no traceback is needed."""


def ends_together(main: Callable[[], None]) -> Callable[[], None]:
    """*main* such that whatever ends it in one rank ends the whole job.

    Without this, one rank that raises waits in MPI_Finalize for the others, which wait for it in a collective.
    """

    def run() -> None:
        try:
            main()
        except Fatal as problem:
            _fatal(str(problem))
        except Failed as problem:
            print(f"error: {problem}", file=sys.stderr)
            leave(protocol.FAILED)
        except SystemExit as ending:
            if ending.code:
                leave(ending.code if isinstance(ending.code, int) else protocol.FAILED)
            raise
        except KeyboardInterrupt:
            leave(130)
        except BaseException:
            traceback.print_exc()
            leave(protocol.FAILED)

    return run


def leave(code: int) -> NoReturn:
    """End this process now; any launcher takes that for the end of the job, no collective is waited for."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)


def rank_given_by_launcher(environ: Mapping[str, str] | None = None) -> int:
    """This process' rank as mpirun or torchrun put it into the environment, before any framework is up; else 0."""
    environ = os.environ if environ is None else environ
    return int(environ.get("OMPI_COMM_WORLD_RANK") or environ.get("RANK") or 0)


def _fatal(reason: str) -> NoReturn:
    # Most fatal things are found by every rank at once: rank 0 says it and thereby ends the others.
    if rank_given_by_launcher():
        time.sleep(1)
    print(protocol.encode(protocol.FATAL, reason=reason), flush=True)
    print(f"error: {reason}", file=sys.stderr)
    leave(protocol.NOT_RETRYABLE)
