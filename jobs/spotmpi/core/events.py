"""The events of a run, in the same form from every backend, and how they are read from records. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, Self, TypeGuard

from spotmpi.agent import protocol
from spotmpi.agent.plan import Forecast, Member, read_member
from spotmpi.agent.record import LINE, LOST, METRIC, TERMINAL

_LATEST = 1e11  # Unix seconds that a time may have; dates end before 1e12
_MAX_INDEX = 1_000_000  # attempts and nodes; each has a file or a folder of its own


@dataclass(frozen=True)
class Event:
    """An event of a run.

    ``kind`` is one of submitted, waiting, started, line, metric, interrupted, restarted, succeeded, failed, stopped,
    lost, gap; avoided, with a ``machine`` at fault; recognized, once the form is known in which a program prints its
    progress, or ``metrics.pattern`` has found an iteration in its output, with ``form`` and ``line``;
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


def read_entry(line: str) -> dict[str, Any] | None:
    """The JSON object with a time in a line of events or metrics; None for anything else, such as a partial line."""
    try:
        values = protocol.read_json(line)
    except ValueError:
        return None
    if not isinstance(values, dict) or not is_time(values.get("t")):
        return None
    if values.get("attempt", 0) is None:
        del values["attempt"]
    return protocol.without_unfit(values, _OF_EVENT if "event" in values else _OF_METRIC)


def read_metric(values: Any) -> Event | None:
    """The metric event in the JSON *values*; None where they are not valid."""
    if not isinstance(values, dict) or not protocol.valid(values.get("kind", ""), values):
        return None
    time, attempt = values.get("t"), values.get("attempt")
    if not is_time(time) or not is_index(attempt):
        return None
    try:
        member = read_member(str(values.get("member")))
    except ValueError:
        return None
    rest = {key: value for key, value in values.items() if key not in ("t", "attempt", "member")}
    return Event(float(time), METRIC, attempt, member, values=rest)


def read_event(values: Any) -> Event | None:
    """The event in the JSON *values*; None where they are not valid."""
    if not isinstance(values, dict):
        return None
    time, kind, attempt = values.get("t"), values.get("event"), values.get("attempt", 0)
    if not is_time(time) or not isinstance(kind, str) or kind in (LINE, METRIC) or not is_index(attempt):
        return None
    fit = protocol.without_unfit(values, _OF_EVENT)
    rest = {key: value for key, value in fit.items() if key not in ("t", "event", "attempt")}
    return Event(float(time), kind, attempt, values=rest)


def is_time(value: Any) -> TypeGuard[float]:
    """Whether *value* is a time in Unix seconds."""
    return type(value) in (int, float) and 0 <= value < _LATEST


def _is_machine(value: Any) -> bool:
    """Whether *value* describes the machine of a member, see `agent.hardware.identify`."""
    return isinstance(value, dict) and value == protocol.without_unfit(value, _OF_MACHINE)


def _is_amount(value: Any) -> bool:
    return isinstance(value, float) or is_count(value)


def _is_forecast(value: Any) -> bool:
    """Whether *value* says what a run was expected to cost, see `agent.plan.Forecast`."""
    return isinstance(value, dict) and all(_is_amount(value.get(key)) for key in Forecast.__annotations__)


def _are_machines(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_machine, value))


def _is_member(value: Any) -> bool:
    try:
        return protocol.is_text(value) and read_member(value) is not None
    except ValueError:
        return False


_OF_MACHINE = {
    **dict.fromkeys(("name", "instance", "type", "market", "zone"), protocol.is_text),
    "since": is_time,
    "member": _is_member,
}


def is_index(value: Any) -> TypeGuard[int]:
    """Whether *value* can be the number of an attempt or a node."""
    return is_count(value) and value < _MAX_INDEX


def is_count(value: Any) -> TypeGuard[int]:
    """Whether *value* is a number of anything."""
    return type(value) is int and 0 <= value < 1 << 63


# What readers of metrics and events compute with, of which a pod may have printed anything.
_OF_METRIC: dict[str, Callable[[Any], bool]] = {"attempt": is_index}
_OF_EVENT: dict[str, Callable[[Any], bool]] = {
    **_OF_METRIC,
    **dict.fromkeys(("event", "owner", "standby"), protocol.is_text),
    "member": _is_member,
    "machine": lambda value: protocol.is_text(value) or _is_machine(value),  # of one that is avoided the name alone
    "machines": _are_machines,
    **dict.fromkeys(("idle", "idle_dollars", "rate", "seconds"), _is_amount),
    "forecast": _is_forecast,
}
