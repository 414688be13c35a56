"""A training program without a framework: what all programs share, over a model of one number."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spotmpi.agent import protocol
from spotmpi.programs.checkpoint import State
from spotmpi.programs.exits import exit_together
from spotmpi.programs.loop import Job, train
from spotmpi.programs.options import TrainingOptions, training_parser
from spotmpi.programs.reporting import IterationClock, WallClock
from spotmpi.programs.world import alone


class Numbers:
    """The numbers from 0 to 63."""

    def __len__(self) -> int:
        return 64

    def sample(self, index: int, random: np.random.Generator) -> float:
        """A number."""
        return float(index)

    def batch(self, samples: list[Any]) -> Any:
        """Some numbers."""
        return np.array(samples)

    def fingerprint(self) -> str:
        """All are the same."""
        return "numbers"


class Mean:
    """Estimates the mean of the numbers."""

    def __init__(self) -> None:
        self.clock: IterationClock = WallClock()
        self._mean = np.zeros(1)

    def step(self, parts: Sequence[Any], iteration: int, seeds: Sequence[int]) -> Mapping[str, Any]:
        """Move towards the mean of a batch."""
        (batch,) = parts
        time.sleep(0.01)
        self._mean += 0.1 * (batch.mean() - self._mean)
        return {"loss": abs(float(self._mean[0]) - 31.5)}

    def state(self) -> State:
        """The mean."""
        return {"parameters/mean": self._mean.copy()}

    def load_state(self, state: State) -> None:
        """Continue from a mean."""
        self._mean = np.array(state["parameters/mean"])

    def evaluate(self) -> Mapping[str, float]:
        """There is no test data."""
        return {}


def main() -> None:
    """Train with the options of the command line."""
    os.environ.pop(protocol.ENV_TENSORBOARD, None)  # its package is part of images alone
    parser = training_parser("mean")
    options = TrainingOptions.of(parser.parse_args())
    train(Job("mean", options, alone(), Numbers(), Mean()))


if __name__ == "__main__":
    exit_together(main)()
