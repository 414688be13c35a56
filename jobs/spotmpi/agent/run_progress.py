"""How far a run is, read from its run folder while it runs: iterations, their time, how long starts took, and cost."""

from __future__ import annotations

import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import outcomes, protocol, record
from .attempt_history import has_record, pods_at_work, read_attempts
from .schema import AttemptRecord, read_object

Point = Tuple[int, float]  # an iteration, and seconds by the clock of the attempt's agent that nobody sets


class Measured(NamedTuple):
    """What a run has reported so far.

    ``done`` are the iterations of which the work is not lost while the newest attempt goes on, ``stored`` those of the
    newest checkpoint, ``iteration_seconds`` those of one iteration, ``start`` the longest time in seconds from the
    nodes to an attempt's first new iteration, and ``spent`` in US dollars. ``iterates`` tells whether the newest
    attempt has come to an iteration and has not ended. ``seconds_by_nodes`` are those of an iteration by number
    of nodes, the newest last, as far as that is known.
    """

    done: int
    stored: int
    total: Optional[int]
    iteration_seconds: Optional[float]
    start: float
    spent: float
    iterates: bool
    seconds_by_nodes: Tuple[Tuple[int, float], ...] = ()


NOTHING = Measured(0, 0, None, None, 0.0, 0.0, False)


def pods_in_use(folder: str, since: float) -> Optional[List[int]]:
    """The numbers of the pods that are nodes of the attempt that runs; None where none does.

    *folder* is that of the run, whose submission began at *since*.
    """
    first = record.recorded_first_attempt(folder, repr(since))
    newest = max(record.numbers(os.path.join(folder, "attempts")), default=0)
    if first is None or newest < first or has_record(folder, newest):
        return None
    pods = pods_at_work(folder, newest)
    return None if pods is None else [pod.number for pod in pods]


class RunProgress:
    """Reads the run folder of the submission that began at *since* again and again, each time what is new."""

    def __init__(self, folder: str, since: float) -> None:
        self._folder = folder
        self._since = since
        self._offset = 0
        self._attempt = 0  # the newest with iterations
        self._points: List[Point] = []  # its first and its newest
        self._stored = 0
        self._total: Optional[int] = None
        self._iteration_seconds: Optional[float] = None
        self._timed = 0  # the attempt that had it
        self._seconds_by_nodes: Dict[int, float] = {}  # by nodes

    def read(self, now: float) -> Measured:
        """What is known at the Unix time *now*; nothing where the folder does not exist yet."""
        self._read_metrics()
        first = record.recorded_first_attempt(self._folder, repr(self._since))
        attempts: List[AttemptRecord] = [] if first is None else read_attempts(self._folder, False)
        own = [each for each in attempts if each["attempt"] >= (first or 0)]
        nodes = {each["attempt"]: len(each["world"]["members"]) for each in own if "world" in each}
        if self._iteration_seconds is not None and self._timed in nodes:
            self._seconds_by_nodes.pop(nodes[self._timed], None)
            self._seconds_by_nodes[nodes[self._timed]] = self._iteration_seconds
        running = bool(own) and "ended" not in own[-1]
        iterates = running and own[-1]["attempt"] == self._attempt
        done = self._points[-1][0] if iterates else self._stored
        start = max((each.get("start") or 0.0 for each in own), default=0.0)
        spent = outcomes.dollars(own, now)
        by_nodes, each = tuple(self._seconds_by_nodes.items()), self._iteration_seconds
        return Measured(max(done, self._stored), self._stored, self._total, each, start, spent, iterates, by_nodes)

    def _read_metrics(self) -> None:
        try:
            with open(os.path.join(self._folder, record.METRICS), "rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # the agent is still writing it
                    self._offset += len(line)
                    self._count_line(read_object(line.decode("utf-8", "replace")))
        except FileNotFoundError:
            pass

    def _count_line(self, values: Dict[str, Any]) -> None:
        """Count a line of metrics, in the order in which they were written."""
        kind, iteration = values.get("kind"), values.get("iteration")
        if kind == protocol.CONTEXT:
            self._total = values.get("total_iterations") or self._total
        elif kind == protocol.CHECKPOINT and isinstance(iteration, int):
            self._stored = iteration
        elif kind == protocol.METRIC and isinstance(iteration, int):
            attempt, uptime = values.get("attempt"), values.get("uptime")
            if not isinstance(attempt, int) or not isinstance(uptime, (int, float)):
                return  # programs of the run can write into its folder too
            point = (iteration, float(uptime))
            if attempt != self._attempt:
                self._attempt, self._points = attempt, [point]
                return
            self._points = [self._points[0], point]
            iterations = iteration - self._points[0][0]
            if iterations > 0:
                self._iteration_seconds, self._timed = (point[1] - self._points[0][1]) / iterations, self._attempt
