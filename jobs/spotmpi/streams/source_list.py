"""The source list of a run: listed once by rank 0, recorded in the run folder, and given to the other ranks.

Only rank 0 needs the run folder; the others get the list by the scheduler.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from spotmpi.agent.files import write_atomically
from spotmpi.streams.errors import StreamError
from spotmpi.streams.order import Part, differences, digest


class Broadcast(Protocol):
    """How rank 0 gives a text to the other ranks."""

    def publish(self, name: str, text: str) -> None:
        """Send a text to every receiver of this name, now or later."""
        ...

    def receive(self, name: str) -> str:
        """The text of this name; waits for it."""
        ...


def share_list(
    path: Path, source: str, rank: int, broadcast: Broadcast, list_parts: Callable[[Sequence[Part]], list[Part]]
) -> list[Part]:
    """The parts of a source: rank 0 lists them, once for all ranks, and records them in the file *path*.

    *list_parts* gets the parts that are recorded already, none in the first attempt of a run.

    Raises:
        StreamError: the source is not what is recorded: batches would be a mixture.
    """
    if rank:
        return _parts(broadcast.receive(path.name))
    record = _read(path)
    parts = list_parts(record)
    text = json.dumps({"source": source, "digest": digest(parts), "parts": [list(part) for part in parts]})
    if not record:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text + "\n")
    elif digest(record) != digest(parts):
        raise StreamError(
            f"the source {source} is not what it was when the run began: {differences(record, parts)}; "
            "restore it, or start a new run"
        )
    broadcast.publish(path.name, text)
    return parts


def compare_lists(path: Path, source: str, rank: int, broadcast: Broadcast, parts: list[Part]) -> None:
    """Record the *parts* that a program itself knows, and compare them with those of rank 0.

    Raises:
        StreamError: they differ from those of the run's record, or from those of rank 0.
    """
    first = share_list(path, source, rank, broadcast, lambda record: parts)
    if digest(first) != digest(parts):
        raise StreamError(
            f"rank {rank} has other data than rank 0: {differences(first, parts)}; give all nodes the same data"
        )


def _read(path: Path) -> list[Part]:
    """The recorded parts. An empty file counts as missing: that is what a machine that lost its power may have."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return _parts(text) if text else []


def _parts(text: str) -> list[Part]:
    return [Part(*part) for part in json.loads(text)["parts"]]
