"""Which sample comes at which position, and the randomness that goes with it.

Everything is a pure function of the seed and of counters, so the number of ranks, of loader processes and of restarts
cannot change what is trained on.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

_ORDER, _SAMPLE, _ITERATION = range(3)  # keeps the streams of the three uses apart


@dataclass(frozen=True)
class Order:
    """The endless order of the *samples* of a data set: epoch after epoch, each shuffled anew."""

    seed: int
    samples: int

    def at(self, position: int) -> tuple[int, int]:
        """The (epoch, index of the sample) at *position*, which counts samples from the start of training."""
        epoch, offset = divmod(position, self.samples)
        return epoch, int(_permutation(self.seed, epoch, self.samples)[offset])

    def slice(self, start: int, count: int) -> list[tuple[int, int]]:
        """The (epoch, index) of *count* samples from position *start*."""
        return [self.at(position) for position in range(start, start + count)]


# Two epochs are in use where a batch lies across their border; loaders read a little ahead.
@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, samples: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    return np.random.default_rng([_ORDER, seed, epoch]).permutation(samples)


def sample_generator(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The random generator for augmenting sample *index* in *epoch*."""
    return np.random.default_rng([_SAMPLE, seed, epoch, index])


def iteration_seed(seed: int, rank: int, iteration: int) -> int:
    """The 32-bit seed of what a model draws (dropout, say) on *rank* in *iteration*."""
    return int(np.random.SeedSequence([_ITERATION, seed, rank, iteration]).generate_state(1)[0])
