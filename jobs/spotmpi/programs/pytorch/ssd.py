"""Train torchvision's SSD300 on a PASCAL VOC folder, with PyTorch."""

import argparse
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from spotmpi.programs.detection import evaluate
from spotmpi.programs.detection_data import DetectionData
from spotmpi.programs.exits import exit_together
from spotmpi.programs.loop import Job, Objective, train
from spotmpi.programs.options import TrainingOptions, describe_options
from spotmpi.programs.pytorch.adapter import TorchAdapter
from spotmpi.programs.pytorch.gradients import distribute, torch_parser, versions
from spotmpi.programs.pytorch.processes import device, finish, join
from spotmpi.programs.pytorch.ssd_model import Ssd300, multibox_sums, read_state, trunk_names
from spotmpi.programs.ssd import BIAS_RATE, MOMENTUM, WEIGHT_DECAY, learning_rate, ssd_data, ssd_options, ssd_source
from spotmpi.programs.voc import CLASSES
from spotmpi.programs.weights import Weights, read_weights
from spotmpi.programs.world import World

PIXELS = "pixel_deviation"


def main() -> None:
    """Run the program with the options of the command line."""
    options = parse()
    world = join(options)
    training, test = ssd_data(options, world)
    torch.manual_seed(options.seed)
    model = Ssd300(len(CLASSES), options.width)
    weights = load_weights(model, options, world)
    adapter = build(model, options, world, test)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    details = describe_options(options, "pytorch", versions()) | {"model_parameters": parameters} | weights
    source = ssd_source(options)
    train(Job("pytorch/ssd", TrainingOptions.of(options), world, training, adapter, details, source))
    finish()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of *arguments*, by default the command line's."""
    parser = torch_parser(__doc__ or "")
    ssd_options(parser)
    return parser.parse_args(arguments)


def load_weights(model: Ssd300, options: argparse.Namespace, world: World) -> dict[str, Any]:
    """Load pretrained weights into rank 0's model, which broadcasts them; their description for the context line."""
    if not options.weights or world.rank:
        return {}
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    weights: Weights = read_weights(options.weights, read_state, shapes, trunk_names())
    model.load_state_dict({PIXELS: torch.tensor(1.0), **weights.arrays}, strict=False)
    return {"weights": weights.describe(len(shapes))}


def build(model: Ssd300, options: argparse.Namespace, world: World, test: DetectionData) -> TorchAdapter:
    """*model* on its device, inside DDP, with its optimizer."""
    rate = learning_rate(options)
    place = device(world, options)
    distributed = distribute(model.to(place), world, options)
    biases = [parameter for name, parameter in model.named_parameters() if name.endswith(".bias")]
    weights = [parameter for name, parameter in model.named_parameters() if not name.endswith(".bias")]
    groups = [{"params": weights, "weight_decay": WEIGHT_DECAY}, {"params": biases, "rate_factor": BIAS_RATE}]
    optimizer = torch.optim.SGD(groups, lr=rate(0), momentum=MOMENTUM)
    loss = MultiboxLoss(world, place)
    objective = Objective(
        loss,
        lambda trained: evaluate(lambda pixels: predict(trained, pixels), test, world),
        rate,
        loss.count_positives,
    )
    return TorchAdapter(distributed, optimizer, objective, options.precision)


class MultiboxLoss:
    """The multibox loss of a part; the mean over the parts of all ranks is that of the global batch."""

    def __init__(self, world: World, place: torch.device) -> None:
        self._world = world
        self._place = place
        self._scale: torch.Tensor

    def count_positives(self, parts: Sequence[Any]) -> None:
        """Take the number of positive boxes in the global batch, of which *parts* are this rank's."""
        count = sum(int((labels > 0).sum()) for _, _, labels in parts)
        positives = torch.tensor(float(count), device=self._place)
        if self._world.size > 1:
            dist.all_reduce(positives)
        self._scale = self._world.size * len(parts) / positives.clamp(min=1)

    def __call__(self, model: nn.Module, part: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        """The loss of one part, and both of its terms."""
        pixels, targets, labels = part
        offsets, confidences = model(pixels)
        sums = multibox_sums(offsets, confidences, targets, labels)
        location, confidence = (term * self._scale for term in sums)
        return location + confidence, {"location_loss": location.detach(), "confidence_loss": confidence.detach()}


def predict(model: nn.Module, pixels: Any) -> tuple[Any, Any]:
    """Raw output of host *pixels*, on the host."""
    place = next(model.parameters()).device
    offsets, confidences = model(torch.from_numpy(pixels).to(place))
    return offsets.cpu().numpy(), confidences.cpu().numpy()


if __name__ == "__main__":
    exit_together(main)()
