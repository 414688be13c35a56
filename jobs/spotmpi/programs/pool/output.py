"""What functions print and log in a worker: written as it is, and sent to the drivers that are connected."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any, TextIO

TOPIC = "spotmpi-output"  # of Dask's events
MAX_LINE = 10_000  # characters of a line that drivers get


class ForwardedStream(io.TextIOBase):
    """A text stream that passes everything on to *stream*, and whole lines to the drivers of a pool too.

    Each thread has an unfinished line of its own.
    """

    def __init__(self, stream: TextIO, name: str, dask_worker: Any, worker: int) -> None:
        self._stream, self._name = stream, name
        self._dask_worker, self._worker = dask_worker, worker
        self._unfinished = threading.local()

    def write(self, text: str) -> int:
        """Write *text*; returns its length."""
        self._stream.write(text)
        *lines, rest = (getattr(self._unfinished, "text", "") + text).split("\n")
        self._unfinished.text = rest[:MAX_LINE]
        if lines:
            self._stream.flush()
            texts = [sendable(line[:MAX_LINE]) for line in lines]
            message = {"index": self._worker, "stream": self._name, "lines": texts}
            self._dask_worker.log_event(TOPIC, message)
        return len(text)

    def flush(self) -> None:
        """Flush the stream below."""
        self._stream.flush()

    def fileno(self) -> int:
        """The file descriptor of the stream below."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """False: nobody types here."""
        return False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream below."""
        return self._stream.encoding


def sendable(text: str) -> str:
    """*text* without surrogates, as names of files have that are not UTF-8: they would end Dask's connection."""
    return text.encode("utf-8", "backslashreplace").decode()


def forward_output(dask_worker: Any, worker: int) -> None:
    """From now on send what is printed in this process to the drivers, as output of worker number *worker*."""
    sys.stdout = ForwardedStream(sys.stdout, "stdout", dask_worker, worker)
    sys.stderr = ForwardedStream(sys.stderr, "stderr", dask_worker, worker)
    import logging

    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
