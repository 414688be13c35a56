"""Parses the output of agents: lines of a pod's log into entries of the run. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, cast

from spotmpi.agent import pod_record, protocol
from spotmpi.agent.plan import read_member
from spotmpi.agent.schema import AttemptRecord, Summary
from spotmpi.core.events import Event, Lines, is_count, is_index, is_time, read_event, read_metric

_START = '{"n":'
_LINE = re.compile(r'\{"n":\d{1,19},"l":\[')  # as agents print lines of output


class PodEntry(NamedTuple):
    """A numbered entry that an agent printed: an event, or a record for the run folder.

    Consecutive lines may share one entry; ``number`` is then that of the first line.
    """

    number: int
    event: Event | None = None
    attempt: tuple[int, int, AttemptRecord] | None = None
    summary: Summary | None = None
    lines: Lines | None = None

    @property
    def last(self) -> int:
        """The number of the last line, or of the entry."""
        return self.number if self.lines is None else self.number + self.lines.last - self.lines.number

    @property
    def time(self) -> float | None:
        """The Unix time of the entry, or of its last line; None where it has none."""
        if self.event is not None:
            return self.event.time
        if self.lines is not None:
            return max(self.lines.times)
        values = self.attempt[2] if self.attempt is not None else self.summary
        return None if values is None else values.get("ended")

    def split(self) -> Iterator[PodEntry]:
        """One entry per line; the entry itself if it holds no lines."""
        if self.lines is None:
            yield self
            return
        for number, event in enumerate(self.lines.events(), self.number):
            yield PodEntry(number, event=event)


def parse_all(text: str) -> list[PodEntry | str]:
    """The entries in *text*, which is whole lines; lines that are not entries are returned as strings."""
    lines = text.split("\n")
    entries: list[PodEntry | str] = []
    for are_lines, group in groupby(lines, lambda line: _LINE.match(line) is not None):
        members = list(group)
        block = _read_block(members) if are_lines else None
        entries += [block] if block else [parse(line) or line for line in members]
    if any(isinstance(entry, str) for entry in entries):  # what is not an entry may have come between lines that are
        return [parse(line) or line for line in lines]
    return entries


def _read_block(lines: list[str]) -> PodEntry | None:
    """Consecutive lines of output as one entry, three times as fast as line by line; None where they are not."""
    try:
        objects = json.loads(f"[{','.join(lines)}]")
    except (ValueError, RecursionError):
        return None
    return _block(objects) if len(objects) == len(lines) and {*map(type, objects)} == {dict} else None


def _block(objects: list[dict[str, Any]]) -> PodEntry | None:
    """Several lines as one entry, if they are consecutive lines of one attempt and member."""
    try:
        columns = zip(*[each[pod_record.LINE] for each in objects], strict=True)
        attempts, members, numbers, times, ranks, streams, texts = columns
        entries = [each[pod_record.NUMBER] for each in objects]
        if len({*attempts}) > 1 or len({*members}) > 1 or not _successive(numbers) or not _successive(entries):
            return None
        lines = Lines(attempts[0], read_member(members[0]), numbers[0], times, ranks, streams, texts)
        return PodEntry(entries[0], lines=lines) if is_count(entries[0]) and _are_lines(lines) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _are_lines(lines: Lines) -> bool:
    """Whether all values have the right types."""
    return (
        is_index(lines.attempt)
        and is_count(lines.number)
        and all(map(is_time, lines.times))
        and all(rank is None or is_count(rank) for rank in lines.ranks)
        and {*lines.streams} <= {"o", "e"}
        and {*map(type, lines.texts)} == {str}
        and not any("\n" in text for text in lines.texts)
    )


def _successive(numbers: Sequence[int]) -> bool:
    return [*numbers] == [*range(numbers[0], numbers[0] + len(numbers))]


def parse(line: str) -> PodEntry | None:
    """The entry in a line; None for other output."""
    if not line.startswith(_START):
        return None
    try:
        return _entry(protocol.read_json(line))
    except ValueError:
        return None


def _entry(values: Any) -> PodEntry | None:
    """The entry that an object of a pod's output stands for; None for what is none, or has no meaning."""
    if not isinstance(values, dict) or not is_count(values.get(pod_record.NUMBER)):
        return None
    number = values[pod_record.NUMBER]
    if pod_record.LINE in values:
        block = _block([values])
        return None if block is None else next(block.split())
    if pod_record.METRIC in values:
        metric = read_metric(values[pod_record.METRIC])
        return None if metric is None else PodEntry(number, event=metric)
    if pod_record.EVENT in values:
        event = read_event(values[pod_record.EVENT])
        return None if event is None else PodEntry(number, event=event)
    if pod_record.ATTEMPT in values:
        return _attempt(number, values[pod_record.ATTEMPT])
    summary = values.get(pod_record.SUMMARY)
    return PodEntry(number, summary=cast(Summary, summary)) if isinstance(summary, dict) and _has_end(summary) else None


def _attempt(number: int, values: Any) -> PodEntry | None:
    if not isinstance(values, list) or len(values) != 3:
        return None
    attempt, node, result = values
    valid = is_index(attempt) and is_index(node) and isinstance(result, dict) and _has_end(result)
    return PodEntry(number, attempt=(attempt, node, result)) if valid else None


def _has_end(values: dict[str, Any]) -> bool:
    return values.get("ended") is None or is_time(values["ended"])
