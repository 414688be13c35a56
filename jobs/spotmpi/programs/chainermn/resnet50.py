"""Measure how fast ResNet-50 trains on synthetic images with ChainerMN; only the times mean anything."""

import argparse
from typing import Any

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from spotmpi.programs.chainermn.adapter import ChainerAdapter
from spotmpi.programs.chainermn.gradients import (
    communicator,
    create_optimizer,
    create_world,
    gradient_options,
    versions,
)
from spotmpi.programs.exits import exit_together
from spotmpi.programs.loop import Job, Objective, train
from spotmpi.programs.options import (
    TrainingOptions,
    describe_options,
    image_options,
    learning_rate_option,
    training_parser,
)
from spotmpi.programs.synthetic_images import SyntheticImages


def network(classes: int, seed: int) -> Any:
    """ResNet-50 (He et al. 2015) with scores for *classes*, at random weights."""
    np.random.seed(seed)
    model = L.ResNet50Layers(pretrained_model=None)
    if classes != model.fc6.b.size:
        with model.init_scope():
            del model.fc6
            model.fc6 = L.Linear(2048, classes)
    return model


def loss(model: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
    """The softmax cross entropy of a batch."""
    images, labels = batch
    return F.softmax_cross_entropy(model(images, layers=["fc6"])["fc6"], labels), {}


def main() -> None:
    """Run the program with the options of the command line."""
    options = parse()
    comm = communicator(options)
    images = SyntheticImages(options.image_size, options.classes, options.samples, options.seed)
    details = describe_options(options, "chainermn", versions())
    world = create_world(comm)
    train(Job("chainermn/resnet50", TrainingOptions.of(options), world, images, build(options, comm), details))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of *arguments*, by default the command line's."""
    parser = training_parser(__doc__)
    gradient_options(parser)
    learning_rate_option(parser, 0.01)
    image_options(parser)
    return parser.parse_args(arguments)


def build(options: argparse.Namespace, comm: Any) -> ChainerAdapter:
    """The model with its optimizer, initialised by the seed and broadcast from rank 0."""
    model = network(options.classes, options.seed)
    optimizer = create_optimizer(chainer.optimizers.MomentumSGD(lr=options.learning_rate), model, comm, options)
    return ChainerAdapter(model, optimizer, Objective(loss))


if __name__ == "__main__":
    exit_together(main)()
