"""Train a small convolutional network on the real handwritten digits, with PyTorch."""

import argparse
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from spotmpi.programs.digits import TRAINING, Digits, Layers, initial_layers, load_digits
from spotmpi.programs.exits import exit_together
from spotmpi.programs.loader import DataSource
from spotmpi.programs.loop import Job, Objective, train
from spotmpi.programs.options import TrainingOptions, describe_options, learning_rate_option, share
from spotmpi.programs.pytorch.adapter import TorchAdapter
from spotmpi.programs.pytorch.gradients import distribute, torch_parser, versions
from spotmpi.programs.pytorch.processes import device, finish, join
from spotmpi.programs.world import World


class Network(nn.Module):
    """Two convolutions and two fully connected layers; scores (b, 10) of images (b, 1, 8, 8)."""

    def __init__(self, initial: Layers, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.full1 = nn.Linear(32 * 4 * 4, 64)
        self.full2 = nn.Linear(64, 10)
        for name, parameter in self.named_parameters():
            layer, part = name.split(".")
            parameter.data[...] = torch.from_numpy(initial[layer][part == "bias"])

    def forward(self, images: torch.Tensor) -> Any:
        """Scores of *images*."""
        hidden = F.relu(self.conv1(images))
        hidden = F.max_pool2d(F.relu(self.conv2(hidden)), 2)
        hidden = F.relu(self.full1(hidden.flatten(1)))
        return self.full2(F.dropout(hidden, self.dropout, self.training))


def loss(model: nn.Module, batch: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """The softmax cross entropy of a batch, and its accuracy."""
    images, labels = batch
    scores = model(images)
    right = (scores.argmax(1) == labels).float().mean()
    return F.cross_entropy(scores, labels.long()), {"train_accuracy": right}


def evaluate(model: nn.Module, test: Digits) -> dict[str, float]:
    """Loss and accuracy on the test part."""
    place = next(model.parameters()).device
    scores = model(torch.from_numpy(test.images).to(place))
    labels = torch.from_numpy(test.labels).to(place).long()
    right = (scores.argmax(1) == labels).float().mean()
    return {"test_loss": float(F.cross_entropy(scores, labels)), "accuracy": float(right)}


def main() -> None:
    """Run the program with the options of the command line."""
    options = parse()
    world = join(options)
    training, test = load_digits(options.seed)
    adapter = build(options, world, test)
    details = describe_options(options, "pytorch", versions())
    source = DataSource(TRAINING, {"seed": options.seed})
    train(Job("pytorch/digits", TrainingOptions.of(options), world, training, adapter, details, source))
    finish()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of *arguments*, by default the command line's."""
    parser = torch_parser(__doc__)
    learning_rate_option(parser, 0.05)
    parser.add_argument("--dropout", type=share, default=0.0, help="share of hidden values that is dropped")
    return parser.parse_args(arguments)


def build(options: argparse.Namespace, world: World, test: Digits) -> TorchAdapter:
    """The model with its optimizer, initialised by the seed and broadcast from rank 0."""
    network = Network(initial_layers(options.seed), options.dropout)
    model = distribute(network.to(device(world, options)), world, options)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate, momentum=0.9)
    return TorchAdapter(model, optimizer, Objective(loss, lambda trained: evaluate(trained, test)), options.precision)


if __name__ == "__main__":
    exit_together(main)()
