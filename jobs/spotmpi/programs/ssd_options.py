"""The options of SSD training that both frameworks share, and the paper's course of the learning rate."""

import argparse
from collections.abc import Callable
from pathlib import Path

from spotmpi.programs.options import Parser, data_options, learning_rate_option, positive, positive_number

MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
# As in the paper's published solver: biases learn twice as fast as weights and do not decay.
BIAS_RATE = 2.0
# Pixels minus their mean deviate by about this much. A random start divides by it, or training diverges at once;
# pretrained VGG16 wants them undivided. The model keeps the number among its values, so checkpoints hold it.
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
    parser.add_argument("--width", type=positive_number, default=1.0, help="times the paper's channels; below 1 to try")
    parser.add_argument("--weights", type=Path, help="file of pretrained weights; without one the start is random")


def thinned(channels: int, width: float) -> int:
    """The paper's number of *channels* times *width*, at least 8."""
    return max(8, round(channels * width))


def drops(text: str) -> tuple[int, ...]:
    """Rising iteration numbers, separated by commas; empty for none."""
    numbers = tuple(positive(part) for part in text.split(",")) if text else ()
    if list(numbers) != sorted(set(numbers)):
        raise argparse.ArgumentTypeError(f"{text!r} does not rise")
    return numbers


def learning_rate(options: argparse.Namespace) -> Callable[[int], float]:
    """The learning rate as a function of the iteration (from 0).

    After a drop Chainer's momentum, like that of the paper's solver, still holds some ten steps of the old rate;
    PyTorch applies the new rate to its whole momentum at once.
    """
    start, at = float(options.learning_rate), tuple(options.rate_drops)
    return lambda iteration: start * RATE_DROP ** sum(iteration >= drop for drop in at)
