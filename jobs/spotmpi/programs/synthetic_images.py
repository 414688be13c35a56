"""Images drawn at random once, for measuring speed without the cost of reading data."""

from functools import lru_cache
from typing import Any

import numpy as np

from spotmpi.programs.digits import Floats, Integers

_STREAM = 1_000_037


class SyntheticImages:
    """*count* labels in 0..classes-1 over one batch of images, which each process draws once and returns every time.

    A model cannot learn from it: only the times mean anything.
    """

    def __init__(self, size: int, classes: int, count: int, seed: int) -> None:
        self._size = size
        self._classes = classes
        self._count = count
        self._seed = seed

    def __len__(self) -> int:
        return self._count

    def sample(self, index: int, random: np.random.Generator) -> int:
        """The label of sample *index*."""
        return index % self._classes

    def batch(self, samples: list[int]) -> tuple[Floats, Integers]:
        """Images (b, 3, size, size) and labels (b,)."""
        return _random_images(self._seed, (len(samples), 3, self._size, self._size)), np.array(samples, np.int32)

    def fingerprint(self) -> str:
        """The parameters of the images."""
        return f"synthetic-{self._count}x{self._size}-{self._classes}-{self._seed}"


@lru_cache(maxsize=1)
def _random_images(seed: int, shape: tuple[int, ...]) -> "np.ndarray[Any, np.dtype[np.float32]]":
    return np.random.default_rng([_STREAM, seed]).standard_normal(shape, dtype=np.float32)
