"""Runs in the ChainerMN image: what this project's Chainer code makes of given tensors.

ssd_chainermn.py tensors IN.npz OUT.npz | network BATCH.npz OTHER.npz OUT.npz | parts BATCH.npz | dark
"""

import sys
from pathlib import Path
from typing import Any

import chainer
import numpy as np

from spotmpi.programs.chainermn import ssd
from spotmpi.programs.chainermn.gradients import communicator, create_world
from spotmpi.programs.chainermn.ssd_model import Ssd300, multibox_sums


def tensors(source: Path, target: Path) -> None:
    """The loss and its gradients."""
    inputs = np.load(source)
    offsets, confidences = (chainer.Variable(inputs[name]) for name in ("offsets", "confidences"))
    location, confidence = multibox_sums(offsets, confidences, inputs["targets"], inputs["labels"])
    (location + confidence).backward()
    np.savez(
        target,
        location=location.array,
        confidence=confidence.array,
        offsets_gradient=offsets.grad,
        confidences_gradient=confidences.grad,
    )


def network(batch: Path, other: Path, target: Path) -> None:
    """The whole network with the other framework's parameters: its output, and its parameters after one update."""
    inputs, theirs = np.load(batch), np.load(other)
    model = Ssd300(20)
    names = dict(zip((str(name) for name in theirs["names"]), _in_torchvision_order(model), strict=True))
    for name, parameter in names.items():
        parameter.array[...] = theirs[f"before/{name}"]
    options = ssd.parse(["--data", "unused", "--global-batch", "1", "--iterations", "1", "--learning-rate", "1"])
    comm = communicator(options)
    adapter = ssd.build(model, options, comm, create_world(comm), None)  # type: ignore[arg-type]  # nothing is evaluated
    with chainer.no_backprop_mode():
        offsets, confidences = model(inputs["pixels"])
    output = adapter.step([(inputs["pixels"], inputs["targets"], inputs["labels"])], 0, [0])
    out: dict[str, Any] = {"offsets": offsets.array, "confidences": confidences.array, "loss": output["loss"]}
    out["count"] = np.array(sum(parameter.size for parameter in model.params()))
    out |= {f"after/{name}": parameter.array for name, parameter in names.items()}
    np.savez(target, **out)


def _in_torchvision_order(model: Any) -> list[Any]:
    sizes = {1: 2, 2: 2, 3: 3, 4: 3, 5: 3, 8: 2, 9: 2, 10: 2, 11: 2}
    layers = [f"conv{block}_{layer}" for block, size in sizes.items() for layer in range(1, size + 1)]
    layers[13:13] = ["conv6", "conv7"]
    links = [model.extractor[name] for name in layers] + [*model.confidences, *model.offsets]
    return [model.extractor.norm4.scale, *(part for link in links for part in (link.W, link.b))]


def parts(batch: Path) -> None:
    """Fails unless the update of a batch of two images is that of the same in two parts."""
    inputs = np.load(batch)
    both = tuple(inputs[name] for name in ("pixels", "targets", "labels"))
    each = [tuple(values[at : at + 1] for values in both) for at in range(2)]
    options = ssd.parse(["--data", "unused", "--global-batch", "2", "--iterations", "1", "--learning-rate", "1"])
    comm = communicator(options)
    after = []
    for given in ([both], each):
        np.random.seed(0)
        model = Ssd300(20, width=0.125)
        adapter = ssd.build(model, options, comm, create_world(comm), None)  # type: ignore[arg-type]  # no evaluation
        output = adapter.step(given, 0, range(len(given)))
        gradients = {name: parameter.array for name, parameter in model.namedparams()}
        after.append({"loss": output["loss"], **gradients})
    for name, whole in after[0].items():
        off = np.linalg.norm(after[1][name] - whole)
        assert off <= 1e-4 * np.linalg.norm(whole) + 1e-6, (name, off, np.linalg.norm(whole))


def dark() -> None:
    """Fails unless a picture whose features are all zero gives finite gradients."""
    model = Ssd300(20, width=0.125)
    for parameter in model.params():
        parameter.array[...] = 0
    offsets, confidences = model(np.zeros((1, 3, 300, 300), np.uint8))
    labels = np.zeros((1, 8732), np.int32)
    labels[0, 100] = 3
    model.cleargrads()
    sum(multibox_sums(offsets, confidences, np.ones((1, 8732, 4), np.float32), labels)).backward()
    assert all(np.isfinite(parameter.grad).all() for parameter in model.params())


if __name__ == "__main__":
    probes: dict[str, Any] = {"tensors": tensors, "network": network, "parts": parts, "dark": dark}
    probes[sys.argv[1]](*map(Path, sys.argv[2:]))
