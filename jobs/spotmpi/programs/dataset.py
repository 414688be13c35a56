"""What the loader needs of a data set."""

from typing import Any, Protocol

import numpy as np


class Dataset(Protocol):
    """Samples by index. Loader processes get it pickled, so its module must import no training framework."""

    def __len__(self) -> int: ...

    def sample(self, index: int, random: np.random.Generator) -> Any:
        """Sample *index*, augmented with nothing but *random*."""

    def batch(self, samples: list[Any]) -> Any:
        """What one training step takes, from as many samples as a rank's batch has."""

    def fingerprint(self) -> str:
        """A short text that is the same only for the same data."""
