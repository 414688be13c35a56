"""Train a small convolutional network on the real handwritten digits, with ChainerMN."""

import argparse
from typing import Any

import chainer
import chainer.functions as F
import chainer.links as L

from spotmpi.programs.chainermn.adapter import ChainerAdapter
from spotmpi.programs.chainermn.gradients import (
    communicator,
    create_optimizer,
    create_world,
    gradient_options,
    versions,
)
from spotmpi.programs.digits import TRAINING, Digits, Layers, initial_layers, load_digits
from spotmpi.programs.exits import exit_together
from spotmpi.programs.loader import DataSource
from spotmpi.programs.loop import Job, Objective, train
from spotmpi.programs.options import TrainingOptions, describe_options, learning_rate_option, share, training_parser


class Network(chainer.Chain):
    """Two convolutions and two fully connected layers; scores (b, 10) of images (b, 1, 8, 8)."""

    def __init__(self, initial: Layers, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        with self.init_scope():
            self.conv1 = L.Convolution2D(1, 16, 3, pad=1)
            self.conv2 = L.Convolution2D(16, 32, 3, pad=1)
            self.full1 = L.Linear(32 * 4 * 4, 64)
            self.full2 = L.Linear(64, 10)
        for name, parameter in self.namedparams():
            layer, part = name.strip("/").split("/")
            parameter.array[...] = initial[layer][part == "b"]

    def forward(self, images: Any) -> Any:
        """Scores of *images*."""
        hidden = F.relu(self.conv1(images))
        hidden = F.max_pooling_2d(F.relu(self.conv2(hidden)), 2)
        hidden = F.relu(self.full1(hidden))
        return self.full2(F.dropout(hidden, self.dropout) if self.dropout else hidden)


def loss(model: Network, batch: Any) -> tuple[Any, dict[str, Any]]:
    """The softmax cross entropy of a batch, and its accuracy."""
    images, labels = batch
    scores = model(images)
    return F.softmax_cross_entropy(scores, labels), {"train_accuracy": F.accuracy(scores, labels).array}


def evaluate(model: Network, test: Digits) -> dict[str, float]:
    """Loss and accuracy on the test part."""
    images, labels = model.device.send((test.images, test.labels))
    scores = model(images)
    return {
        "test_loss": float(F.softmax_cross_entropy(scores, labels).array),
        "accuracy": float(F.accuracy(scores, labels).array),
    }


def main() -> None:
    """Run the program with the options of the command line."""
    options = parse()
    comm = communicator(options)
    training, test = load_digits(options.seed)
    adapter = build(options, comm, test)
    source = DataSource(TRAINING, {"seed": options.seed})
    world = create_world(comm)
    details = describe_options(options, "chainermn", versions())
    train(Job("chainermn/digits", TrainingOptions.of(options), world, training, adapter, details, source))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of *arguments*, by default the command line's."""
    parser = training_parser(__doc__)
    gradient_options(parser)
    learning_rate_option(parser, 0.05)
    parser.add_argument("--dropout", type=share, default=0.0, help="share of hidden values that is dropped")
    return parser.parse_args(arguments)


def build(options: argparse.Namespace, comm: Any, test: Digits) -> ChainerAdapter:
    """The model with its optimizer, initialised by the seed and broadcast from rank 0."""
    model = Network(initial_layers(options.seed), options.dropout)
    optimizer = create_optimizer(chainer.optimizers.MomentumSGD(lr=options.learning_rate), model, comm, options)
    return ChainerAdapter(model, optimizer, Objective(loss, lambda trained: evaluate(trained, test)))


if __name__ == "__main__":
    exit_together(main)()
