"""Train SSD300 on a PASCAL VOC folder, with ChainerMN."""

import argparse
from collections.abc import Sequence
from typing import Any

import chainer
import numpy as np
from chainer.optimizer_hooks import WeightDecay

from spotmpi.programs.chainermn.adapter import ChainerAdapter
from spotmpi.programs.chainermn.gradients import (
    communicator,
    create_optimizer,
    create_world,
    gradient_options,
    versions,
)
from spotmpi.programs.chainermn.ssd_model import Ssd300, multibox_sums, trunk_names
from spotmpi.programs.detection import evaluate
from spotmpi.programs.detection_data import DetectionData
from spotmpi.programs.exits import exit_together
from spotmpi.programs.loop import Job, Objective, train
from spotmpi.programs.options import TrainingOptions, describe_options, training_parser
from spotmpi.programs.ssd import BIAS_RATE, MOMENTUM, WEIGHT_DECAY, learning_rate, ssd_data, ssd_options, ssd_source
from spotmpi.programs.voc import CLASSES
from spotmpi.programs.weights import Weights, read_arrays, read_weights
from spotmpi.programs.world import World

PIXELS = "pixel_deviation"


def main() -> None:
    """Run the program with the options of the command line."""
    options = parse()
    comm = communicator(options)
    world = create_world(comm)
    training, test = ssd_data(options, world)
    np.random.seed(options.seed)
    model = Ssd300(len(CLASSES), options.width)
    weights = load_weights(model, options, world)
    adapter = build(model, options, comm, world, test)
    details = (
        describe_options(options, "chainermn", versions())
        | {"model_parameters": sum(p.size for p in model.params())}
        | weights
    )
    source = ssd_source(options)
    train(Job("chainermn/ssd", TrainingOptions.of(options), world, training, adapter, details, source))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of *arguments*, by default the command line's."""
    parser = training_parser(__doc__ or "")
    gradient_options(parser)
    ssd_options(parser)
    return parser.parse_args(arguments)


def load_weights(model: Ssd300, options: argparse.Namespace, world: World) -> dict[str, Any]:
    """Load pretrained weights into rank 0's model, which broadcasts them; their description for the context line."""
    if not options.weights or world.rank:
        return {}
    parameters = {name.lstrip("/"): parameter for name, parameter in model.namedparams()}
    shapes = {PIXELS: (), **{name: parameter.shape for name, parameter in parameters.items()}}
    weights: Weights = read_weights(options.weights, read_arrays, shapes, trunk_names())
    model.pixel_deviation = float(weights.arrays.get(PIXELS, 1.0))
    for name in weights.arrays.keys() & parameters.keys():
        parameters[name].array[...] = weights.arrays[name]
    return {"weights": weights.describe(len(shapes))}


class ScaledRate:
    """An optimizer hook by which a parameter learns *rate* times as fast."""

    name = "Faster"
    call_for_each_param = True
    timing = "pre"

    def __init__(self, rate: float) -> None:
        self._rate = rate

    def __call__(self, rule: Any, parameter: Any) -> None:
        """Scale the gradient before the update."""
        parameter.grad *= self._rate


def build(model: Ssd300, options: argparse.Namespace, comm: Any, world: World, test: DetectionData) -> ChainerAdapter:
    """*model* on its device with its optimizer."""
    rate = learning_rate(options)
    optimizer = create_optimizer(chainer.optimizers.MomentumSGD(lr=rate(0), momentum=MOMENTUM), model, comm, options)
    for name, parameter in model.namedparams():
        hook = ScaledRate(BIAS_RATE) if name.endswith("/b") else WeightDecay(WEIGHT_DECAY)
        parameter.update_rule.add_hook(hook)
    loss = MultiboxLoss(comm)
    objective = Objective(
        loss,
        lambda trained: evaluate(lambda pixels: predict(trained, pixels), test, world),
        rate,
        loss.count_positives,
    )
    return ChainerAdapter(model, optimizer, objective)


class MultiboxLoss:
    """The multibox loss of a part; the mean over the parts of all ranks is that of the global batch."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._scale = 1.0

    def count_positives(self, parts: Sequence[Any]) -> None:
        """Take the number of positive boxes in the global batch, of which *parts* are this rank's."""
        positives = self._comm.mpi_comm.allreduce(sum(int((labels > 0).sum()) for _, _, labels in parts))
        self._scale = self._comm.size * len(parts) / max(positives, 1)

    def __call__(self, model: Any, part: Any) -> tuple[Any, dict[str, Any]]:
        """The loss of one part, and both of its terms."""
        pixels, targets, labels = part
        offsets, confidences = model(pixels)
        sums = multibox_sums(offsets, confidences, targets, labels)
        location, confidence = (term * self._scale for term in sums)
        return location + confidence, {"location_loss": location.array, "confidence_loss": confidence.array}


def predict(model: Any, pixels: Any) -> tuple[Any, Any]:
    """Raw output of host *pixels*, on the host."""
    offsets, confidences = (chainer.cuda.to_cpu(part.array) for part in model(model.device.send(pixels)))
    return offsets, confidences


if __name__ == "__main__":
    exit_together(main)()
