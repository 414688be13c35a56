"""What functions print and log in a worker: written as it is, and sent to the drivers that are connected."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TextIO

TOPIC = "spotmpi-output"  # of Dask's events
MAX_LINE = 10_000  # characters of a line that drivers get
RATE = (
    1 << 20
)  # characters a second that drivers get of a stream, and at once: the scheduler holds what they did not read
LEFT_OUT = "... the lines that follow come too fast for drivers: they are in the log of the run"


class ForwardedStream(io.TextIOBase):
    """A text stream that passes everything on to *stream*, and whole lines to the drivers of a pool too.

    Each thread has an unfinished line of its own. Of a line that is overwritten, as by a progress bar, drivers get the
    last state, and of more than `RATE` a part.
    """

    def __init__(
        self, stream: TextIO, name: str, dask_worker: Any, worker: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._name = stream, name
        self._dask_worker, self._worker = dask_worker, worker
        self._unfinished = threading.local()
        self._clock, self._time, self._budget = clock, clock(), float(RATE)
        self._leaves_out = False

    def write(self, text: str) -> int:
        """Write *text*; returns its length."""
        self._stream.write(text)
        *lines, rest = (getattr(self._unfinished, "text", "") + text).split("\n")
        self._unfinished.text = _last_state(rest)[:MAX_LINE]
        if lines:
            self._send(_last_state(line).rstrip("\r") for line in lines)
        return len(text)

    def end_line(self) -> None:
        """Send what this thread has written without the end of a line: nothing may follow it for a long time."""
        rest = getattr(self._unfinished, "text", "").rstrip()
        self._unfinished.text = ""
        if rest:
            self._send([rest])

    def _send(self, lines: Iterable[str]) -> None:
        self._stream.flush()
        texts = self._affordable(lines)
        if texts:
            message = {"index": self._worker, "stream": self._name, "lines": texts}
            self._dask_worker.log_event(TOPIC, message)

    def _affordable(self, lines: Iterable[str]) -> list[str]:
        """Those of *lines* that drivers get."""
        now = self._clock()
        self._budget, self._time = min(RATE, self._budget + (now - self._time) * RATE), now
        texts = []
        for line in lines:
            if self._budget > 0:
                self._leaves_out = False
                texts.append(sendable(line[:MAX_LINE]))
                self._budget -= len(texts[-1]) + 1
            elif not self._leaves_out:
                self._leaves_out = True
                texts.append(LEFT_OUT)
        return texts

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

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """What the stream below does about a letter that it cannot encode."""
        return self._stream.errors

    def __getattr__(self, name: str) -> Any:
        """What else programs know of a text stream, such as ``buffer`` and ``reconfigure``: that of the stream below.

        Drivers do not get what is written to its buffer.
        """
        if name.startswith("_"):  # as of a copy that is not set up yet
            raise AttributeError(name)
        return getattr(self._stream, name)


def end_lines() -> None:
    """Send the unfinished lines of this thread to the drivers, at the end of a call; elsewhere without effect."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, ForwardedStream):
            with contextlib.suppress(Exception):  # the call may have closed what is below
                stream.end_line()


def _last_state(line: str) -> str:
    """What a terminal shows of a line: that which follows its last carriage return, but for one at its end."""
    return line[line.rstrip("\r").rfind("\r") + 1 :]


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
