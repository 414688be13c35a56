"""Which samples are in which batch: the data set, the order of its samples, and their division between ranks.

Everything is a pure function of the seed and of counters, so the number of ranks, of loader processes and of restarts
cannot change what is trained on.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from spotmpi.agent.protocol import STRONG, WEAK, counted
from spotmpi.programs.exits import Fatal


class Dataset(Protocol):
    """Samples by index. It is pickled for loader processes, so its module must not import a training framework."""

    def __len__(self) -> int: ...

    def sample(self, index: int, random: np.random.Generator) -> Any:
        """Sample *index*, augmented with nothing but *random*."""

    def batch(self, samples: list[Any]) -> Any:
        """The input of one training step, from the samples of a rank's batch."""

    def fingerprint(self) -> str:
        """A short text that is equal only for equal data."""


_ORDER, _SAMPLE, _ITERATION = range(3)  # separate random streams


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


# A batch may span two epochs, and loaders prefetch.
@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, samples: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    return np.random.default_rng([_ORDER, seed, epoch]).permutation(samples)


def sample_generator(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The random generator for augmenting sample *index* in *epoch*."""
    return np.random.default_rng([_SAMPLE, seed, epoch, index])


def iteration_seed(seed: int, rank: int, iteration: int) -> int:
    """The 32-bit seed of the model's random numbers (such as dropout) on *rank* in *iteration*.

    Part p of a rank's n parts counts as rank * n + p: it is a rank of its own where the run has as many.
    """
    return int(np.random.SeedSequence([_ITERATION, seed, rank, iteration]).generate_state(1)[0])


@dataclass(frozen=True)
class Batching:
    """The batch of one iteration: *per_rank* samples on each rank, *global_batch* over the world.

    A rank computes its gradient in *parts*, one after the other, and adds them up.
    """

    per_rank: int
    global_batch: int
    scaling: str
    parts: int = 1

    @property
    def per_part(self) -> int:
        """Samples that a rank has in memory at once."""
        return self.per_rank // self.parts


def divide(
    global_batch: int | None, batch_per_worker: int | None, world_size: int, most_ranks: int | None = None
) -> Batching:
    """The batch, by whichever of the two options is set.

    Where the run may have *most_ranks*, a part is at most as large as a rank's share then: a batch that fits into
    memory on the most nodes does so on fewer.

    Raises Fatal for a global batch that the ranks cannot share evenly: the mean of the ranks' gradients would then not
    be the gradient of the global batch.
    """
    if batch_per_worker is not None:
        return Batching(batch_per_worker, batch_per_worker * world_size, WEAK)
    assert global_batch is not None
    if global_batch % world_size:
        lower = global_batch // world_size * world_size
        near = f"{lower} or {lower + world_size}" if lower else str(world_size)
        raise Fatal(f"--global-batch {global_batch} is not divisible by {counted(world_size, 'rank')}: use {near}")
    per_rank = global_batch // world_size
    least = per_rank if most_ranks is None else max(1, global_batch // most_ranks)
    parts = next(parts for parts in range(1, per_rank + 1) if per_rank % parts == 0 and per_rank // parts <= least)
    return Batching(per_rank, global_batch, STRONG, parts)


def iterations_left(epochs: float, samples: int, position: int, global_batch: int) -> int:
    """Iterations of *global_batch* samples from *position* until at least *epochs* passes over *samples* are done."""
    return max(0, math.ceil((epochs * samples - position) / global_batch))
