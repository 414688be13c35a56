"""Prints what a run folder holds of a span of time, in the format of `PodRecord`, for followers that missed it.

    python -m spotmpi.agent.replay FOLDER MEMBER SINCE UNTIL SUBMITTED

It prints lines of output of one member, and of node 0 metrics, events and records, with SINCE < time < UNTIL. Those of
submissions other than that of SUBMITTED are left out: by the numbers of attempts, as the clocks of nodes may be set.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, Dict, List, Tuple

from . import pod_record, protocol, record
from .files import read_text
from .plan import COORDINATOR, Member, read_member

_SERVER_CLOCK = 86400.0  # seconds by which that of a file server, which stamps files, may be behind those of agents
_ROUNDING = 1e-6  # seconds; logs keep microseconds
Timed = Tuple[float, Dict[str, Any]]


def entries(folder: str, member: Member, since: float, until: float, submitted: float) -> list[dict[str, Any]]:
    """The entries of a member within a span of Unix seconds, by time; lines at its very ends may be repeated."""
    first = record.recorded_first_attempt(folder, repr(submitted)) or 0
    timed = list(_lines(folder, member, first, since - _ROUNDING, until + _ROUNDING))
    if member == COORDINATOR:
        metrics = _objects(folder, record.METRICS, pod_record.METRIC)
        others = [
            *(each for each in metrics if _attempt(each, first) >= first),
            *_own_events(_objects(folder, record.EVENTS, pod_record.EVENT), submitted),
            *_records(folder, first, submitted),
        ]
        timed += [item for item in others if since < item[0] < until]
    return [entry for _, entry in sorted(timed, key=lambda item: item[0])]


def _attempt(metric: Timed, first: int) -> int:
    number = metric[1][pod_record.METRIC].get("attempt")
    return number if isinstance(number, int) else first  # programs of the run can write into its folder too


def _own_events(events: Iterator[Timed], submitted: float) -> list[Timed]:
    """Those since the end of another submission."""
    own: List[Timed] = []
    for time, entry in events:
        values = entry[pod_record.EVENT]
        if values.get("event") in record.TERMINAL and values.get(record.SUBMISSION, submitted) != submitted:
            own.clear()
        else:
            own.append((time, entry))
    return own


def _lines(folder: str, member: Member, first: int, since: float, until: float) -> Iterator[Timed]:
    for attempt in (each for each in record.numbers(os.path.join(folder, "logs")) if each >= first):
        path = os.path.join(folder, "logs", str(attempt), member.file + ".log")
        try:
            file = open(path, encoding="utf-8", errors="replace", newline="\n")
        except FileNotFoundError:
            continue
        time = 0.0
        with file:
            if os.fstat(file.fileno()).st_mtime < since - _SERVER_CLOCK:
                continue
            for number, line in enumerate(file, 1):
                if not line.endswith("\n"):
                    break  # still being written, or partial: its writer will print it whole
                time, rank, stream, text = record.read_log_line(line[:-1], time)
                if since < time < until:
                    yield time, {pod_record.LINE: [attempt, member.text, number, time, rank, stream, text]}


def _objects(folder: str, name: str, kind: str) -> Iterator[Timed]:
    path = os.path.join(folder, name)
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            for time, values in _timed(line, "t"):
                yield time, {kind: values}


def _records(folder: str, first: int, submitted: float) -> Iterator[Timed]:
    attempts = os.path.join(folder, "attempts")
    for number in (each for each in record.numbers(attempts) if each >= first):
        for ended, values in _timed(read_text(os.path.join(attempts, str(number), "node-0.json")), "ended"):
            yield ended, {pod_record.ATTEMPT: [number, 0, values]}
    for ended, values in _timed(read_text(os.path.join(folder, record.SUMMARY)), "ended"):
        if values.get("started", submitted) == submitted:
            yield ended, {pod_record.SUMMARY: values}


def _timed(text: str, key: str) -> Iterator[Timed]:
    """The JSON object in *text* and its time, which is under *key*; nothing where a full disk has cut it off."""
    try:
        values = protocol.read_json(text)
    except ValueError:
        return
    if isinstance(values, dict) and isinstance(values.get(key), (int, float)):
        yield float(values[key]), values


def main(arguments: list[str]) -> int:
    """Print the entries, each numbered 0, as a pod's own output has them."""
    folder, member, *times = arguments
    since, until, submitted = map(float, times)
    for entry in entries(folder, read_member(member), since, until, submitted):
        print(json.dumps({pod_record.NUMBER: 0, **entry}, separators=(",", ":")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
