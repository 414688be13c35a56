"""What agents print, read back: from a line of a pod's log to an entry of the run. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from jobs.events import Event, Lines
from jobs.pod import pod_record, record

_START = '{"n":'


class Entry(NamedTuple):
    """One numbered thing that an agent printed: an event, or a record for the run folder.

    Lines that follow each other may be one entry; ``number`` is that of the first, and the others have the next ones.
    """

    number: int
    event: Event | None = None
    attempt: tuple[int, int, dict[str, Any]] | None = None
    summary: dict[str, Any] | None = None
    lines: Lines | None = None

    @property
    def last(self) -> int:
        """The number of the last line, or just the number."""
        return self.number if self.lines is None else self.number + self.lines.last - self.lines.number

    @property
    def time(self) -> float | None:
        """When it was printed, the last of it, Unix seconds, where it tells."""
        if self.event is not None:
            return self.event.time
        if self.lines is not None:
            return max(self.lines.times)
        values = self.attempt[2] if self.attempt is not None else self.summary
        return None if values is None else values.get("ended")

    def apart(self) -> Iterator[Entry]:
        """The entry itself; of lines one for each."""
        if self.lines is None:
            yield self
            return
        for number, event in enumerate(self.lines.events(), self.number):
            yield Entry(number, event=event)


def parse_all(text: str) -> list[Entry | str]:
    """The entries in *text*, which is whole lines; what an agent did not print comes as it is."""
    count = text.count("\n") + 1
    if text.startswith(_START) and text.count("\n" + _START) == count - 1:
        try:
            found = json.loads("[" + text.replace("\n", ",") + "]")  # three times as fast as one by one
        except ValueError:
            found = []
        entries = _entries(found) if len(found) == count else []
        if entries:
            return entries
    return [parse(line) or line for line in text.split("\n")]


def _entries(found: list[dict[str, Any]]) -> list[Entry | str]:
    """The entries of all that was *found*, lines that follow each other as one; none where something is no entry."""
    whole = _block(found)
    if whole:
        return [whole]
    entries: list[Entry | str] = []
    for are_lines, group in groupby(found, lambda each: pod_record.LINE in each):
        some = list(group)
        block = _block(some) if are_lines else None
        for entry in [block] if block else map(_entry, some):
            if entry is None:
                return []
            entries.append(entry)
    return entries


def _block(found: list[dict[str, Any]]) -> Entry | None:
    """Several lines as one entry, where they are of one place and follow each other."""
    try:
        columns = zip(*[each[pod_record.LINE] for each in found], strict=True)
        attempts, nodes, numbers, times, ranks, streams, texts = columns
        entries = [each[pod_record.NUMBER] for each in found]
        if len({*attempts}) > 1 or len({*nodes}) > 1 or not _successive(numbers) or not _successive(entries):
            return None
    except (ValueError, KeyError, TypeError):
        return None
    return Entry(entries[0], lines=Lines(attempts[0], nodes[0], numbers[0], times, ranks, streams, texts))


def _successive(numbers: Sequence[int]) -> bool:
    return [*numbers] == [*range(numbers[0], numbers[0] + len(numbers))]


def parse(line: str) -> Entry | None:
    """The entry in a line, or None where an agent did not print it."""
    if not line.startswith(_START):
        return None
    try:
        return _entry(json.loads(line))
    except ValueError:
        return None


def _entry(values: Any) -> Entry | None:
    try:
        number = int(values[pod_record.NUMBER])
        if pod_record.LINE in values:
            return Entry(number, event=_line(values[pod_record.LINE]))
        if pod_record.METRIC in values:
            return Entry(number, event=_metric(values[pod_record.METRIC]))
        if pod_record.EVENT in values:
            return Entry(number, event=_event(values[pod_record.EVENT]))
        if pod_record.ATTEMPT in values:
            attempt, node, said = values[pod_record.ATTEMPT]
            return Entry(number, attempt=(attempt, node, said))
        return Entry(number, summary=values[pod_record.SUMMARY])
    except (ValueError, KeyError, TypeError):
        return None


def _line(values: list[Any]) -> Event:
    attempt, node, number, time, rank, stream, text = values
    return Event(time, record.LINE, attempt, node, number, {"rank": rank, "stream": stream, "text": text})


def _metric(values: dict[str, Any]) -> Event:
    time, attempt, node = values.pop("t"), values.pop("attempt"), values.pop("node")
    return Event(time, record.METRIC, attempt, node, values=values)


def _event(values: dict[str, Any]) -> Event:
    time, kind = values.pop("t"), values.pop("event")
    return Event(time, kind, values.pop("attempt", 0), values=values)
