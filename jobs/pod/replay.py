"""What a run folder holds of some span of time, in the words of `PodRecord`: for followers who missed it.

    python -m jobs.pod.replay FOLDER NODE SINCE UNTIL

It prints lines of output of one node, and on node 0 metrics, events and records, with SINCE < time < UNTIL.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Dict, Tuple

from . import pod_record

_ROUNDING = 1e-6  # seconds; logs keep microseconds
Timed = Tuple[float, Dict[str, Any]]


def entries(folder: str, node: int, since: float, until: float) -> list[dict[str, Any]]:
    """The entries of a node within a span of Unix seconds, by time; lines at its very ends may be repeated."""
    found = list(_lines(folder, node, since - _ROUNDING, until + _ROUNDING))
    if node == 0:
        others = [
            *_objects(folder, "metrics.jsonl", pod_record.METRIC),
            *_objects(folder, "events.jsonl", pod_record.EVENT),
        ]
        found += [item for item in [*others, *_records(folder)] if since < item[0] < until]
    return [entry for _, entry in sorted(found, key=lambda item: item[0])]


def _lines(folder: str, node: int, since: float, until: float) -> Iterator[Timed]:
    logs = os.path.join(folder, "logs")
    for attempt in sorted(int(name) for name in os.listdir(logs)) if os.path.isdir(logs) else []:
        path = os.path.join(logs, str(attempt), "node-%d.log" % node)
        if not os.path.exists(path) or os.path.getmtime(path) < since:
            continue
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            for number, line in enumerate(file, 1):
                stamp, rank, stream, text = line.rstrip("\n").split(" ", 3)
                time = datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
                if since < time < until:
                    values = [attempt, node, number, time, None if rank == "-" else int(rank), stream, text]
                    yield time, {pod_record.LINE: values}


def _objects(folder: str, name: str, kind: str) -> Iterator[Timed]:
    path = os.path.join(folder, name)
    with open(path) if os.path.exists(path) else open(os.devnull) as file:
        for line in file:
            try:
                values = json.loads(line)
                yield float(values["t"]), {kind: values}
            except (ValueError, KeyError):
                continue  # torn by a full disk or a dead writer


def _records(folder: str) -> Iterator[Timed]:
    attempts = os.path.join(folder, "attempts")
    for number in sorted(int(name) for name in os.listdir(attempts)) if os.path.isdir(attempts) else []:
        for ended, values in _file(os.path.join(attempts, str(number), "node-0.json")):
            yield ended, {pod_record.ATTEMPT: [number, 0, values]}
    for ended, values in _file(os.path.join(folder, "summary.json")):
        yield ended, {pod_record.SUMMARY: values}


def _file(path: str) -> Iterator[Timed]:
    try:
        with open(path) as file:
            values = json.load(file)
        yield float(values["ended"]), values
    except (OSError, ValueError, KeyError):
        return


def main(arguments: list[str]) -> int:
    """Print the entries, each numbered 0, as a pod's own output has them."""
    folder, node, since, until = arguments
    for entry in entries(folder, int(node), float(since), float(until)):
        print(json.dumps({pod_record.NUMBER: 0, **entry}, separators=(",", ":")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
