"""The handwritten digits of scikit-learn, and the initial weights of the network that all frameworks train on them."""

import gzip
import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

_TEST_SHARE = 5  # every fifth sample is for testing
_SPLIT_STREAM = 1_000_003
TRAINING = "spotmpi.programs.digits:training_digits"  # loads what `load_digits` gives for training, by its seed

Floats = np.ndarray[Any, np.dtype[np.float32]]
Integers = np.ndarray[Any, np.dtype[np.int32]]


class Digits:
    """Images (n, 1, 8, 8) with values in 0..1, and their labels (n,) in 0..9."""

    def __init__(self, images: Floats, labels: Integers) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def sample(self, index: int, random: np.random.Generator) -> tuple[Floats, Any]:
        """One image, moved by at most one pixel, and its label."""
        down, right = random.integers(-1, 2, size=2)
        padded = np.pad(self.images[index, 0], 1)
        moved = padded[1 + down : 9 + down, 1 + right : 9 + right]
        return moved[np.newaxis], self.labels[index]

    def batch(self, samples: list[tuple[Floats, Any]]) -> tuple[Floats, Integers]:
        """Images (b, 1, 8, 8) and labels (b,)."""
        images, labels = zip(*samples, strict=True)
        return np.stack(images), np.array(labels, dtype=np.int32)

    def fingerprint(self) -> str:
        """Twelve hex digits of the SHA-256 over images and labels."""
        return hashlib.sha256(self.images.tobytes() + self.labels.tobytes()).hexdigest()[:12]


def load_digits(seed: int) -> tuple[Digits, Digits]:
    """The training and the test part; the same *seed* always gives the same split."""
    table = _table()
    images = (table[:, :-1].reshape(-1, 8, 8) / 16).astype(np.float32)[:, np.newaxis]
    labels = table[:, -1].astype(np.int32)
    order = np.random.default_rng([_SPLIT_STREAM, seed]).permutation(len(labels))
    count = len(labels) // _TEST_SHARE
    return _part(images, labels, order[count:]), _part(images, labels, order[:count])


def _table() -> Any:
    """The file of scikit-learn (1797, 65): pixels and label. To import scikit-learn takes longer than an epoch."""
    package = find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'sklearn', which has the digits")
    with gzip.open(Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz"), "rt") as file:
        return np.loadtxt(file, delimiter=",")


def training_digits(seed: int) -> Digits:
    """The training part alone, in a worker."""
    return load_digits(seed)[0]


def _part(images: Floats, labels: Integers, chosen: Any) -> Digits:
    return Digits(images[chosen], labels[chosen])


SHAPES = {"conv1": (16, 1, 3, 3), "conv2": (32, 16, 3, 3), "full1": (64, 32 * 4 * 4), "full2": (10, 64)}
_WEIGHTS_STREAM = 1_000_033

Layers = dict[str, tuple[Floats, Floats]]


def initial_layers(seed: int) -> Layers:
    """Weights and biases of each layer: weights normal with the variance of He et al. (2015), biases 0."""
    random = np.random.default_rng([_WEIGHTS_STREAM, seed])
    return {name: (_weights(random, shape), np.zeros(shape[0], np.float32)) for name, shape in SHAPES.items()}


def _weights(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    deviation = np.sqrt(2 / np.prod(shape[1:]))
    weights: Floats = (random.standard_normal(shape) * deviation).astype(np.float32)
    return weights
