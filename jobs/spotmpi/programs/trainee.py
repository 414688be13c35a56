"""What the training loop needs of a framework: a model that learns from batches, and a clock for its device."""

import time
from collections.abc import Mapping
from typing import Any, Protocol

from spotmpi.programs.checkpoint import State


class Clock(Protocol):
    """Marks in time, taken cheaply and read later."""

    def mark(self) -> Any:
        """Now, in the order of the work handed to the device."""

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two marks; waits until both have passed."""


class WallClock:
    """The clock of a device that works while the program waits for it."""

    def mark(self) -> float:
        """Seconds from an arbitrary start."""
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        """Seconds between two marks."""
        return end - start


class Trainee(Protocol):
    """What a framework brings: a model that learns from batches. Every rank has one and calls the same methods."""

    clock: Clock

    def seed(self, seed: int) -> None:
        """Seed every generator that the model draws from in the next step."""

    def step(self, batch: Any, iteration: int) -> Mapping[str, Any]:
        """One update, the *iteration*-th from 0; scalars of this rank's share, read by float() only when reported."""

    def state(self) -> State:
        """Copies of all that training goes on from; names below ``parameters/`` are the model."""

    def load_state(self, state: State) -> None:
        """Take over what `state` gave, on this or another rank or attempt."""

    def evaluate(self) -> Mapping[str, float]:
        """Scalars about the model on test data, equal on all ranks; none where only speed matters."""
