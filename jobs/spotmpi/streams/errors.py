"""What a stream raises."""

from __future__ import annotations

import sys


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
