"""Splits the output of a launcher into lines with their rank and stream."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from . import protocol


class Line(NamedTuple):
    """One line of output; ``stream`` is o or e, ``rank`` None where the launcher does not tag it."""

    rank: int | None
    stream: str
    text: str


MAX_LINE = 1 << 20  # bytes; a longer line is split, unless it is a report (`protocol.MAX_REPORT`)
_MAX_STATE = 2048  # bytes of a progress bar

_TAG = re.compile(
    rb"\[\d{1,9},(\d{1,9})\]<std(out|err)>(\+?): ?"
)  # with a plus the line goes on (see `rank_wrapper.Tagger`)
_BREAK = re.compile(rb"\n|\[\d{1,9},(\d{1,9})\]<std(out|err)>:")  # the end of a piece of output
_PARTIAL_TAG = re.compile(rb"\[[\d,\]<>a-z]{0,30}\Z")


class LineSplitter:
    """Splits the bytes that arrive on one pipe into lines; a part without its newline waits for the rest."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._buffer = b""
        self._parts: dict[tuple[bytes, bytes], bytearray] = {}  # of unfinished lines, by rank and stream

    def feed(self, data: bytes) -> list[Line]:
        """The lines that *data* completes."""
        parts = (self._buffer + data).split(b"\n")
        self._buffer = parts.pop()
        while len(self._buffer) > MAX_LINE and len(self._buffer) > (limit := _limit(self._buffer)):
            parts.append(self._buffer[:limit])
            self._buffer = self._buffer[limit:]
        return [line for part in parts for line in self._line(part)]

    def states(self) -> list[Line]:
        """What unfinished lines with carriage returns show now: progress bars, which may end after hours."""
        bars = [(*source, data) for source, data in self._parts.items() if b"\r" in data]
        shown = [_tagged(rank, stream, _end(data)) for rank, stream, data in bars]
        return shown + ([Line(None, self._stream, _visible_text(_end(self._buffer)))] if b"\r" in self._buffer else [])

    def end(self) -> list[Line]:
        """The unfinished lines, when the pipe has closed."""
        data, self._buffer = self._buffer, b""
        lines = list(self._line(data)) if data else []
        unfinished, self._parts = self._parts, {}
        return lines + [_tagged(rank, stream, data) for (rank, stream), data in unfinished.items()]

    def _line(self, data: bytes) -> Iterator[Line]:
        tag = _TAG.match(data)
        if not tag:
            yield Line(None, self._stream, _visible_text(data))
            return
        source = tag.group(1), tag.group(2)
        whole = self._parts.pop(source, bytearray())
        whole += data[tag.end() :]
        if tag.group(3) and len(whole) < _limit(whole):
            self._parts[source] = whole
        else:
            yield _tagged(*source, whole)


class PieceSplitter:
    """Assembles lines from a pipe where every piece of a rank's output is tagged, as Open MPI 4's mpirun does.

    A piece is one write of a rank, or a part of it: it may end in the middle of a line, and pieces of other ranks come
    in between. What follows the tag's colon is the output itself, without a space.
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._buffer = b""
        self._source: tuple[bytes, bytes] | None = None  # rank and stream of the current piece
        self._parts: dict[tuple[bytes, bytes] | None, bytearray] = {}  # of unfinished lines

    def feed(self, data: bytes) -> list[Line]:
        """The lines that *data* completes."""
        data = self._buffer + data
        partial = _PARTIAL_TAG.search(data)
        data, self._buffer = (data[: partial.start()], data[partial.start() :]) if partial else (data, b"")
        lines, begin = [], 0
        for end in _BREAK.finditer(data):
            lines += self._piece(data[begin : end.start()])
            begin = end.end()
            if end.group() == b"\n":
                lines.append(self._line(self._source))
                self._source = None
            else:
                self._source = end.group(1), end.group(2)
        return lines + self._piece(data[begin:])

    def states(self) -> list[Line]:
        """As `LineSplitter.states`."""
        bars = [(source, data) for source, data in self._parts.items() if source and b"\r" in data]
        return [_tagged(*source, _end(data)) for source, data in bars]

    def end(self) -> list[Line]:
        """The unfinished lines, when the pipe has closed."""
        data, self._buffer = self._buffer, b""
        lines = self._piece(data)
        return lines + [self._line(source) for source in list(self._parts)]

    def _piece(self, data: bytes) -> list[Line]:
        """Add *data* to the current line; the lines that this makes too long."""
        whole = self._parts.get(self._source, bytearray())
        if data:
            whole += data
            self._parts[self._source] = whole
        return [self._line(self._source)] if len(whole) > _limit(whole) else []

    def _line(self, source: tuple[bytes, bytes] | None) -> Line:
        data = self._parts.pop(source, bytearray())
        return _tagged(*source, data) if source else Line(None, self._stream, _visible_text(data))


def _limit(line: bytes | bytearray) -> int:
    """The bytes that a line may have which begins like *line*, with or without a tag."""
    start = bytes(line[:100])
    tag = _TAG.match(start)
    return protocol.MAX_REPORT if protocol.is_report(start[tag.end() :] if tag else start) else MAX_LINE


def _end(data: bytes | bytearray) -> bytes | bytearray:
    """The end of a line, with all that a progress bar shows."""
    return data[-_MAX_STATE:]


def _tagged(rank: bytes, stream: bytes, data: bytes | bytearray) -> Line:
    return Line(int(rank), "o" if stream == b"out" else "e", _visible_text(data))


def _visible_text(data: bytes | bytearray) -> str:
    """What a terminal would show of a line with carriage returns: the last state of a progress bar."""
    parts = [part for part in data.decode("utf-8", "replace").replace("\0", "").split("\r") if part]
    return parts[-1] if parts else ""
