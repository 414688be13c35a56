"""The events of a run, in the same form from every backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, Self

from spotmpi.agent.plan import Member
from spotmpi.agent.record import LINE, LOST, TERMINAL


@dataclass(frozen=True)
class Event:
    """An event of a run.

    ``kind`` is one of submitted, waiting, started, line, metric, interrupted, restarted, succeeded, failed, stopped,
    lost, gap; recognized, once the form is known in which a program prints its progress, with ``form`` and ``line``;
    for a pool's workers, and for pods that stand by (``standby``), also joined and left; promoted, where such a pod
    took over a lost ``node`` from the pod that it ``replaces``, ``seconds`` after that was last heard; placed, where
    capacity has an order, with ``group``, ``type``, ``market`` and ``rate``, the US dollars per hour of all nodes.
    ``time`` is in Unix seconds. Lines carry ``member`` and ``number`` (from 1, in that attempt and member) and in
    ``values`` rank, stream and text; metrics carry what the program reported; the others a reason, if there is one.
    """

    time: float
    kind: str
    attempt: int = 0
    member: Member | None = None  # of lines and metrics
    number: int = 0
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def terminal(self) -> bool:
        """Whether the run has ended with this event."""
        return self.kind in (*TERMINAL, LOST)

    @property
    def reason(self) -> str | None:
        """The reason, None if unknown."""
        reason = self.values.get("reason")
        return None if reason is None else str(reason)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values for scripts."""
        member = self.member.text if self.member else None
        where = {"attempt": self.attempt, "member": member, "number": self.number}
        return {"time": self.time, "event": self.kind, **{key: v for key, v in where.items() if v}, **self.values}


class Lines(NamedTuple):
    """Consecutive output lines of one attempt and member: stands for as many events, at a tenth of their cost.

    ``number`` is that of the first; ``times`` (Unix seconds), ``ranks``, ``streams`` and ``texts`` have one item each.
    """

    attempt: int
    member: Member
    number: int
    times: Sequence[float]
    ranks: Sequence[int | None]
    streams: Sequence[str]
    texts: Sequence[str]

    @property
    def last(self) -> int:
        """The number of the last line."""
        return self.number + len(self.times) - 1

    def events(self) -> Iterator[Event]:
        """One event for each line."""
        rows = zip(self.times, self.ranks, self.streams, self.texts, strict=True)
        for number, (time, rank, stream, text) in enumerate(rows, self.number):
            values = {"rank": rank, "stream": stream, "text": text}
            yield Event(time, LINE, self.attempt, self.member, number, values)


class Stream:
    """An iterator over events; ``pieces`` has the same events, with consecutive lines as `Lines`."""

    def __init__(self, pieces: Iterator[Event | Lines]) -> None:
        self.pieces = pieces
        self._events = chain.from_iterable(map(_events, pieces))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        return next(self._events)


def _events(piece: Event | Lines) -> Iterator[Event]:
    return piece.events() if isinstance(piece, Lines) else iter((piece,))
