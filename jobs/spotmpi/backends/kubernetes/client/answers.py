"""What commands print in pods, whose images and programs may be anybody's: no more of it than fits into memory."""

from __future__ import annotations

import io
from typing import Any

from spotmpi.core.errors import SpotmpiError

LIMIT = 1 << 29  # bytes: the output of a long run, or the index of a million files
LONGEST_ERRORS = 1 << 16  # bytes of a command's error output of which the last line is shown


class OversizedAnswer(SpotmpiError):
    """A command in a pod printed more than is read."""


class Answer(io.BytesIO):
    """Takes what a command prints in *pod*, up to *limit* bytes (by default `LIMIT`); OversizedAnswer beyond."""

    def __init__(self, pod: str, limit: int | None = None) -> None:
        super().__init__()
        self._pod, self._limit = pod, LIMIT if limit is None else limit

    def write(self, data: Any) -> int:
        """Take the next bytes."""
        if self.tell() + len(data) > self._limit:
            raise OversizedAnswer(f"pod {self._pod} printed more than {self._limit:,} bytes; check its image")
        return super().write(data)


class ErrorOutput:
    """Takes the error output of a command, and keeps its end."""

    def __init__(self) -> None:
        self._end = bytearray()

    def write(self, data: bytes) -> None:
        """Take the next bytes."""
        self._end += data
        del self._end[:-LONGEST_ERRORS]

    def text(self) -> str:
        """The end."""
        return self._end.decode("utf-8", "replace")
