"""What a stream raises."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

_OWN = (f"{Path(__file__).parent}/", "<frozen runpy>")  # where the frames before those of the user are


class StreamError(Exception):
    """A stream cannot continue, and a retry would not help; the message has batch, source and remedy."""


def loading_error(what: str, whose: str, how: str, error: BaseException) -> StreamError:
    """Why the interpreter of *whose* process cannot load *what* another one sent; *how* says what to send instead."""
    return StreamError(
        f"{what} cannot be loaded by {whose} interpreter {sys.executable}: {type(error).__name__}: {error}; "
        f"install what it needs there too, or {how}"
    )


class SourceError(Exception):
    """The storage of a source does not answer; a new attempt of the run may succeed."""


class StreamLost(Exception):
    """The scheduler or all workers of a stream are lost; a new attempt of the run continues from its checkpoint."""


def at_user(error: BaseException) -> BaseException:
    """*error* with the traceback from the user's first frame on, if there is one."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN):
        trace = trace.tb_next
    return error.with_traceback(trace or error.__traceback__)


def with_trace(text: str, error: BaseException) -> StreamError:
    """A StreamError that says *text*, with the traceback of *error* in the user's functions on the lines below."""
    trace = "".join(traceback.format_exception(at_user(error))).rstrip()
    return StreamError(f"{text}\n{trace}")
