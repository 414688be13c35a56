"""Output of a launcher, cut into lines that know their rank and stream."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Line(NamedTuple):
    """One line of output; ``stream`` is o or e, ``rank`` None where the launcher does not tell."""

    rank: int | None
    stream: str
    text: str


LONGEST = 1 << 20  # bytes; a longer line is cut into several

_TAG = re.compile(
    rb"\[\d{1,9},(\d{1,9})\]<std(out|err)>(\+?): ?"
)  # with a plus the line goes on (see `starter.Tagger`)
_BREAK = re.compile(rb"\n|\[\d{1,9},(\d{1,9})\]<std(out|err)>:")  # what ends a piece of output
_HALF_TAG = re.compile(rb"\[[\d,\]<>a-z]{0,30}\Z")


class LineSplitter:
    """Cuts bytes as they arrive on one pipe into lines; a part without its newline waits for the rest."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._rest = b""
        self._parts: dict[tuple[bytes, bytes], bytes] = {}  # of unfinished lines, by rank and stream

    def feed(self, data: bytes) -> list[Line]:
        """The lines that *data* completes."""
        parts = (self._rest + data).split(b"\n")
        self._rest = parts.pop()
        while len(self._rest) > LONGEST:
            parts.append(self._rest[:LONGEST])
            self._rest = self._rest[LONGEST:]
        return [line for part in parts for line in self._line(part)]

    def end(self) -> list[Line]:
        """What is left when the pipe has closed."""
        rest, self._rest = self._rest, b""
        found = list(self._line(rest)) if rest else []
        unfinished, self._parts = self._parts, {}
        return found + [_tagged(rank, stream, data) for (rank, stream), data in unfinished.items()]

    def _line(self, data: bytes) -> Iterator[Line]:
        tag = _TAG.match(data)
        if not tag:
            yield Line(None, self._stream, _shown(data))
            return
        said = tag.group(1), tag.group(2)
        whole = self._parts.pop(said, b"") + data[tag.end() :]
        if tag.group(3) and len(whole) < LONGEST:
            self._parts[said] = whole
        else:
            yield _tagged(*said, whole)


class PieceSplitter:
    """Puts lines together from a pipe where every piece of a rank's output is tagged, as Open MPI 4's mpirun does.

    A piece is what a rank wrote at once, or a part of it: it may end in the middle of a line, and those of other ranks
    come in between. Nothing follows the tag's colon but what the rank wrote.
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._rest = b""
        self._said: tuple[bytes, bytes] | None = None  # rank and stream of the piece that is being read
        self._parts: dict[tuple[bytes, bytes] | None, bytes] = {}  # of unfinished lines

    def feed(self, data: bytes) -> list[Line]:
        """The lines that *data* completes."""
        data = self._rest + data
        half = _HALF_TAG.search(data)
        data, self._rest = (data[: half.start()], data[half.start() :]) if half else (data, b"")
        found, begin = [], 0
        for end in _BREAK.finditer(data):
            found += self._piece(data[begin : end.start()])
            begin = end.end()
            if end.group() == b"\n":
                found.append(self._line(self._said))
                self._said = None
            else:
                self._said = end.group(1), end.group(2)
        return found + self._piece(data[begin:])

    def end(self) -> list[Line]:
        """What is left when the pipe has closed."""
        rest, self._rest = self._rest, b""
        found = self._piece(rest)
        return found + [self._line(said) for said in list(self._parts)]

    def _piece(self, data: bytes) -> list[Line]:
        """Take *data* for the line that is being read; the lines that are too long already."""
        if data:
            self._parts[self._said] = self._parts.get(self._said, b"") + data
        return [self._line(self._said)] if len(self._parts.get(self._said, b"")) > LONGEST else []

    def _line(self, said: tuple[bytes, bytes] | None) -> Line:
        data = self._parts.pop(said, b"")
        return _tagged(*said, data) if said else Line(None, self._stream, _shown(data))


def _tagged(rank: bytes, stream: bytes, data: bytes) -> Line:
    return Line(int(rank), "o" if stream == b"out" else "e", _shown(data))


def _shown(data: bytes) -> str:
    """What a terminal would show of a line that goes back to its start: a progress bar's last state."""
    parts = [part for part in data.decode("utf-8", "replace").replace("\0", "").split("\r") if part]
    return parts[-1] if parts else ""
