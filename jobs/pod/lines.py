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

_TAG = re.compile(rb"\[\d+,(\d+)\]<std(out|err)>(\+?): ?")  # with a plus the line goes on (see `starter.Tagger`)


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


def _tagged(rank: bytes, stream: bytes, data: bytes) -> Line:
    return Line(int(rank), "o" if stream == b"out" else "e", _shown(data))


def _shown(data: bytes) -> str:
    """What a terminal would show of a line that goes back to its start: a progress bar's last state."""
    parts = [part for part in data.decode("utf-8", "replace").replace("\0", "").split("\r") if part]
    return parts[-1] if parts else ""
