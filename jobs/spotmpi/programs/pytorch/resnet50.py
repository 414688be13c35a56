"""Measure how fast ResNet-50 trains on synthetic images with PyTorch; only the times mean anything."""

import argparse
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import resnet50

from spotmpi.programs.exits import exit_together
from spotmpi.programs.loop import Job, Objective, train
from spotmpi.programs.options import TrainingOptions, describe_options, image_options, learning_rate_option
from spotmpi.programs.pytorch.adapter import TorchAdapter
from spotmpi.programs.pytorch.gradients import distribute, torch_parser, versions
from spotmpi.programs.pytorch.processes import device, finish, join
from spotmpi.programs.synthetic_images import SyntheticImages
from spotmpi.programs.world import World


def loss(model: nn.Module, batch: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """The softmax cross entropy of a batch."""
    images, labels = batch
    return F.cross_entropy(model(images), labels.long()), {}


def main() -> None:
    """Run the program with the options of the command line."""
    options = parse()
    world = join(options)
    images = SyntheticImages(options.image_size, options.classes, options.samples, options.seed)
    details = describe_options(options, "pytorch", versions())
    train(Job("pytorch/resnet50", TrainingOptions.of(options), world, images, build(options, world), details))
    finish()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of *arguments*, by default the command line's."""
    parser = torch_parser(__doc__)
    learning_rate_option(parser, 0.01)
    image_options(parser)
    return parser.parse_args(arguments)


def build(options: argparse.Namespace, world: World) -> TorchAdapter:
    """The model with its optimizer, initialised by the seed and broadcast from rank 0."""
    torch.manual_seed(options.seed)
    network = resnet50(weights=None, num_classes=options.classes).to(device(world, options))
    model = distribute(network, world, options)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate, momentum=0.9)
    return TorchAdapter(model, optimizer, Objective(loss), options.precision)


if __name__ == "__main__":
    exit_together(main)()
