"""Streams whose batches are prepared in this process."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest

from spotmpi.agent.plan import WORKER
from spotmpi.streams import chunk
from spotmpi.streams.chunk import seal
from spotmpi.streams.engine import TaskLocation, load
from spotmpi.streams.order import Order, Part, Settings
from spotmpi.streams.stream import Stream


class InProcess:
    """Executes a task when its result is taken; *most* is the greatest number of tasks in flight."""

    def __init__(self) -> None:
        self.in_flight = self.most = 0
        self.sizes: list[int] = []
        self.cancelled = self.fetched = 0
        self.places: list[TaskLocation] = []  # that the next result is waited for
        self.calls: list[str] = []  # their titles
        self.roles: list[str] = []  # of the workers that get them
        self.avoided: list[int] = []  # the numbers of workers that were to be avoided

    def submit(
        self, title: str, function: Any, *args: Any, priority: int = 0, avoid: int | None = None, role: str = WORKER
    ) -> _Task:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        if function is not chunk.postprocess:
            self.sizes.append(len(args[1]))
        self.calls.append(title)
        self.roles.append(role)
        self.avoided += [] if avoid is None else [avoid]
        return _Task(self, lambda: function(*args))


class _Task:
    def __init__(self, workers: InProcess, call: Any) -> None:
        self._workers, self._call = workers, call

    def fetch(self) -> None:
        """Count it: the result is there at once."""
        self._workers.fetched += 1

    def result(self, on_wait: Any = None) -> Any:
        self._workers.in_flight -= 1
        while on_wait and self._workers.places:
            time.sleep(0.002)
            on_wait(self._workers.places.pop(0))
        # Between processes, only what is pickled arrives.
        return load("", pickle.loads(pickle.dumps(seal(self._call()), protocol=5)))

    def done(self) -> bool:
        return False  # so that as many as possible are in flight

    def cancel(self) -> None:
        self._workers.cancelled += 1


@pytest.fixture
def workers() -> InProcess:
    """Workers that count their tasks."""
    return InProcess()


@pytest.fixture
def make_stream(workers: InProcess) -> Any:
    """Makes a stream of a rank over the functions of this folder's `flow`."""

    def make(
        start: int = 0, rank: int = 0, size: int = 1, reports: list[dict[str, Any]] | None = None, **values: Any
    ) -> Stream:
        settings = Settings(**{"source": "tests.unit.streams.flow:numbers", "length": 40, **values})
        order = Order([Part(settings.source, settings.length, 0, "")], settings)
        report = None if reports is None else reports.append
        return Stream(order, workers.submit, start, rank, size, report)

    return make
