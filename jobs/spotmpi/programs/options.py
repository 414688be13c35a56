"""Command line options that all training programs share."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from spotmpi.agent import protocol
from spotmpi.programs.exits import Fatal


@dataclass(frozen=True)
class TrainingOptions:
    """The options of the training loop: one of *global_batch* and *batch_per_worker*, one of *epochs* and *iterations*.

    *report_every* and *evaluate_every* count iterations (0: evaluate at the end only), *checkpoint_every* seconds.
    """

    global_batch: int | None
    batch_per_worker: int | None
    epochs: float | None
    iterations: int | None
    seed: int
    batches: str
    loader_processes: int
    report_every: int
    evaluate_every: int
    checkpoint_path: Path | None
    checkpoint_every: float
    checkpoint_keep: int
    no_allreduce: bool

    @classmethod
    def of(cls, parsed: argparse.Namespace) -> "TrainingOptions":
        """The options of the training loop among the parsed ones."""
        return cls(**{name: getattr(parsed, name) for name in cls.__dataclass_fields__})


LOADER, STREAM = "loader", "stream"
_DATA = "folder of the data set"


class Parser(argparse.ArgumentParser):
    """An argument parser that raises Fatal: another attempt has the same options."""

    def __init__(self, description: str) -> None:
        super().__init__(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)

    def error(self, message: str) -> NoReturn:
        """Raise Fatal with *message*."""
        raise Fatal(f"options: {message}; see --help")


def requested_gpus() -> int:
    """The GPUs that the run asks for, of each rank."""
    return int(os.environ.get(protocol.ENV_GPUS, "0"))


def training_parser(description: str, environ: Mapping[str, str] = os.environ) -> Parser:
    """A parser with the options of TrainingOptions; programs add their own."""
    parser = Parser(description)
    batch = parser.add_mutually_exclusive_group(required=True)
    batch.add_argument("--global-batch", type=positive, help="samples per iteration, divided between the ranks")
    batch.add_argument("--batch-per-worker", type=positive, help="samples per iteration of each rank")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--epochs", type=positive_number, help="at least this many passes over the data")
    length.add_argument("--iterations", type=positive, help="exactly this many updates")
    parser.add_argument("--seed", type=not_negative, default=0, help="for initialisation, split, order, augmentation")
    about = "who prepares them: a loader in each rank, or the CPU workers of the run's stream; they are the same"
    parser.add_argument("--batches", choices=(LOADER, STREAM), default=LOADER, help=about)
    parser.add_argument("--loader-processes", type=not_negative, default=0, help="per rank; 0 loads in the rank itself")
    parser.add_argument("--report-every", type=positive, default=10, help="iterations between reports")
    parser.add_argument("--evaluate-every", type=not_negative, default=0, help="iterations; 0: at the end only")
    without = "no allreduce of gradients: this measures speed and does not train, so there are no checkpoints"
    parser.add_argument("--no-allreduce", action="store_true", help=without)
    # Values from the environment are text, so that argparse checks them, too.
    folder = environ.get(protocol.ENV_CHECKPOINT_PATH) or None
    every = environ.get(protocol.ENV_CHECKPOINT_EVERY) or protocol.CHECKPOINT_EVERY
    keep = environ.get(protocol.ENV_CHECKPOINT_KEEP) or protocol.CHECKPOINT_KEEP
    parser.add_argument("--checkpoint-path", type=Path, default=folder, help="folder; without it, none are written")
    parser.add_argument("--checkpoint-every", type=positive_number, default=every, help="seconds between checkpoints")
    parser.add_argument("--checkpoint-keep", type=positive, default=keep, help="how many checkpoints to keep")
    return parser


def data_option(parser: Parser, environ: Mapping[str, str] = os.environ) -> None:
    """Add --data for programs that read a folder; without a default from the agent it must be given."""
    default = environ.get(protocol.ENV_DATA)
    parser.add_argument("--data", type=Path, default=default, required=not default, help=_DATA)


def data_options(parser: Parser) -> None:
    """Add --data, or --synthetic in its place, and --data-cache."""
    default = os.environ.get(protocol.ENV_DATA)
    source = parser.add_mutually_exclusive_group(required=not default)
    source.add_argument("--data", type=Path, default=default, help=_DATA)
    source.add_argument("--synthetic", action="store_true", help="use random images: only the times mean anything")
    about = "drop the data from each node's page cache first, or read all of it"
    parser.add_argument("--data-cache", choices=("cold", "warm"), help=about)


def learning_rate_option(parser: Parser, default: float) -> None:
    """Add --learning-rate."""
    parser.add_argument("--learning-rate", type=positive_number, default=default)


def positive(text: str) -> int:
    """A whole number of at least 1."""
    return at_least(1, text)


def not_negative(text: str) -> int:
    """A whole number of at least 0."""
    return at_least(0, text)


def positive_number(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def at_least(least: int, text: str) -> int:
    """A whole number of at least *least*; ArgumentTypeError for anything else."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return value


def share(text: str) -> float:
    """A number from 0 to below 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to below 1")
    return value


def describe_options(options: argparse.Namespace, framework: str, versions: Mapping[str, str]) -> dict[str, object]:
    """The options and versions for a context line, without paths, which are not part of the work."""
    values = {name: value for name, value in sorted(vars(options).items()) if not isinstance(value, Path)}
    return {"framework": framework, "versions": dict(versions), "options": values}


def image_options(parser: Parser) -> None:
    """Add --image-size, --classes and --samples for synthetic images."""
    parser.add_argument("--image-size", type=positive, default=224, help="height and width in pixels")
    parser.add_argument("--classes", type=positive, default=1000)
    parser.add_argument("--samples", type=positive, default=1_281_167, help="in an epoch, as ImageNet has")
