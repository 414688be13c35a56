"""SSD training, as far as both frameworks share it: options, learning rate and data, from VOC or synthetic."""

import argparse
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np

from spotmpi.programs.boxes import default_boxes, encode
from spotmpi.programs.detection_data import Batch, DetectionData, Encoded, load_data
from spotmpi.programs.loader import DataSource
from spotmpi.programs.options import Parser, data_options, learning_rate_option, positive, positive_number
from spotmpi.programs.reading import prepare_cache
from spotmpi.programs.sampling import Dataset
from spotmpi.programs.voc import CLASSES
from spotmpi.programs.world import World

MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
# As in the paper's published solver: biases learn twice as fast as weights and do not decay.
BIAS_RATE = 2.0
# Pixels minus their mean have about this deviation. From random weights they are divided by it, or training diverges
# at once; pretrained VGG16 takes them undivided. The model stores the number, so checkpoints contain it.
PIXEL_DEVIATION = 64.0
RATE_DROP = 0.1


def ssd_options(parser: Parser) -> None:
    """Add data, sets, augmentation, learning rate, width and weights."""
    data_options(parser)
    parser.add_argument("--train-sets", default="trainval", help="image sets: name or FOLDER/name, separated by commas")
    parser.add_argument("--test-sets", default="test", help="image sets for evaluation, likewise")
    parser.add_argument("--no-augmentation", action="store_true", help="only resize")
    learning_rate_option(parser, 1e-3)
    parser.add_argument(
        "--rate-drops",
        type=drops,
        default="80000,100000",
        help="iterations at which the learning rate falls to a tenth",
    )
    parser.add_argument(
        "--width", type=positive_number, default=1.0, help="factor for the paper's channels; below 1 for tests"
    )
    parser.add_argument("--weights", type=Path, help="file of pretrained weights; without it, weights are random")


def scale_channels(channels: int, width: float) -> int:
    """The paper's number of *channels* times *width*, at least 8."""
    return max(8, round(channels * width))


def drops(text: str) -> tuple[int, ...]:
    """Rising iteration numbers, separated by commas; empty for none."""
    numbers = tuple(positive(part) for part in text.split(",")) if text else ()
    if list(numbers) != sorted(set(numbers)):
        raise argparse.ArgumentTypeError(f"{text!r} is not in rising order")
    return numbers


def learning_rate(options: argparse.Namespace) -> Callable[[int], float]:
    """The learning rate as a function of the iteration (from 0).

    After a drop Chainer's momentum, like that of the paper's solver, still contains some ten steps of the old rate;
    PyTorch applies the new rate to its whole momentum at once.
    """
    start, at = float(options.learning_rate), tuple(options.rate_drops)
    return lambda iteration: start * RATE_DROP ** sum(iteration >= drop for drop in at)


def ssd_data(options: argparse.Namespace, world: World) -> tuple[Dataset, DetectionData]:
    """Training and test data of these options; synthetic images have no test data."""
    if options.synthetic:
        data = SyntheticDetection(options.seed)
        return data, DetectionData([], data.fingerprint(), augmented=False)
    if options.data_cache:
        prepare_cache(options.data, options.data_cache, world)
    return load_data(options.data, (options.train_sets, options.test_sets), not options.no_augmentation, world)


def ssd_source(options: argparse.Namespace) -> DataSource:
    """How the workers of a stream load the training data of these options."""
    if options.synthetic:
        return DataSource("spotmpi.programs.ssd:SyntheticDetection", {"seed": options.seed})
    arguments = {"root": str(options.data), "sets": options.train_sets, "augmented": not options.no_augmentation}
    return DataSource("spotmpi.programs.detection_data:load_set", arguments)


_STREAM = 1_000_039
_OBJECTS = 3  # about as many as in VOC's images
_COUNT = 16_551  # images of VOC 2007+2012 trainval


class SyntheticDetection:
    """As many images as VOC has to train on, all of them one that each process draws at random once.

    A model cannot learn from it: only the times mean anything.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __len__(self) -> int:
        return _COUNT

    def sample(self, index: int, random: np.random.Generator) -> int:
        """The number of the image; nothing is read."""
        return index

    def batch(self, samples: list[int]) -> Batch:
        """Pixels (b, 3, 300, 300), offsets (b, 8732, 4) and labels (b, 8732)."""
        one = _random_image(self._seed)
        pixels, offsets, labels = zip(*[one] * len(samples), strict=True)
        return np.stack(pixels), np.stack(offsets), np.stack(labels)

    def fingerprint(self) -> str:
        """The seed of the image."""
        return f"synthetic-detection-{self._seed}"


@lru_cache(maxsize=1)
def _random_image(seed: int) -> Encoded:
    random = np.random.default_rng([_STREAM, seed])
    corners = random.uniform(0, 0.5, (_OBJECTS, 2))
    boxes = np.concatenate([corners, corners + random.uniform(0.1, 0.5, (_OBJECTS, 2))], axis=1).astype(np.float32)
    labels = random.integers(0, len(CLASSES), _OBJECTS).astype(np.int32)
    pixels = random.integers(0, 256, (3, 300, 300), dtype=np.uint8)
    return Encoded(pixels, *encode(boxes, labels, default_boxes()))
