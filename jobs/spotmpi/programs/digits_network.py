"""Where the digits network starts: the same weights in every framework."""

import numpy as np

from spotmpi.programs.digits_data import Floats

SHAPES = {"conv1": (16, 1, 3, 3), "conv2": (32, 16, 3, 3), "full1": (64, 32 * 4 * 4), "full2": (10, 64)}
_STREAM = 1_000_033

Layers = dict[str, tuple[Floats, Floats]]


def initial_layers(seed: int) -> Layers:
    """Weights and biases of each layer: weights normal with the variance of He et al. (2015), biases 0."""
    random = np.random.default_rng([_STREAM, seed])
    return {name: (_weights(random, shape), np.zeros(shape[0], np.float32)) for name, shape in SHAPES.items()}


def _weights(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    deviation = np.sqrt(2 / np.prod(shape[1:]))
    weights: Floats = (random.standard_normal(shape) * deviation).astype(np.float32)
    return weights
