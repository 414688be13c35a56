"""The records of a training as they come, and waiting for some of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from scripts.faults.records import Reader, Record

_LOOK = 0.05  # seconds between two looks at the records


class NotInTime(Exception):
    """What did not come in time, or cannot come any more, and what the run looks like."""


class Watch:
    """The records in a folder; *diagnosis* tells, for failures, what the training looks like."""

    def __init__(self, folder: Path, diagnosis: Callable[[], str]) -> None:
        self._reader = Reader(folder)
        self._diagnosis = diagnosis

    @property
    def records(self) -> list[Record]:
        """All records so far."""
        return self._reader.records

    @property
    def furthest(self) -> int:
        """The highest iteration that was done."""
        return self._reader.furthest

    def update(self) -> None:
        """Read what has come since."""
        self._reader.update()

    def until(self, condition: Callable[[], bool], limit: float, what: str) -> None:
        """Wait for a condition; NotInTime says that it did not come, and what the training looks like."""
        deadline = time.monotonic() + limit
        self.update()
        while not condition():
            if time.monotonic() > deadline:
                raise NotInTime(f"{what} within {limit:.0f} s: {self._diagnosis()}")
            time.sleep(_LOOK)
            self.update()
