"""Runs in the PyTorch image: what torchvision and this project's PyTorch code make of given tensors.

ssd_pytorch.py tensors IN.npz OUT.npz | network OUT.npz | parts BATCH.npz
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torchvision.models.detection import ssd300_vgg16
from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
from torchvision.models.vgg import cfgs, make_layers
from torchvision.ops.boxes import box_iou

from spotmpi.programs.boxes import ASPECT_RATIOS, BOX_SIZES, STEPS
from spotmpi.programs.exits import Fatal
from spotmpi.programs.pytorch import ssd
from spotmpi.programs.pytorch.ssd_model import Ssd300, multibox_sums, read_state, trunk_names
from spotmpi.programs.world import alone


def tensors(source: Path, target: Path) -> None:
    """torchvision's boxes, matching, coding, loss and detections; this project's loss and its gradients."""
    inputs = np.load(source)
    offsets, confidences, targets = (torch.from_numpy(inputs[name]) for name in ("offsets", "confidences", "targets"))
    labels = torch.from_numpy(inputs["labels"])
    model = _torchvision_with_voc_boxes()
    cells = [torch.zeros(len(offsets), 1, size, size) for size in (38, 19, 10, 5, 3, 1)]
    images = SimpleNamespace(tensors=torch.zeros(len(offsets), 3, 300, 300), image_sizes=[(300, 300)] * len(offsets))
    anchors = model.anchor_generator(images, cells)
    objects = [
        {"boxes": torch.from_numpy(inputs[f"objects{i}"]) * 300, "labels": torch.from_numpy(inputs[f"classes{i}"]) + 1}
        for i in range(len(offsets))
    ]
    matched = [model.proposal_matcher(box_iou(one["boxes"], anchors[0])) for one in objects]
    heads = {"bbox_regression": offsets, "cls_logits": confidences}
    theirs = model.compute_loss([{**one, "labels": one["labels"].long()} for one in objects], heads, anchors, matched)
    detections = model.postprocess_detections(heads, anchors, images.image_sizes)
    out: dict[str, Any] = {
        "defaults": anchors[0],
        "their_location": theirs["bbox_regression"],
        "their_confidence": theirs["classification"],
    }
    for i, one in enumerate(objects):
        out[f"matched{i}"] = matched[i]
        out[f"encoded{i}"] = model.box_coder.encode_single(one["boxes"][matched[i].clamp(min=0)], anchors[0])
        out[f"decoded{i}"] = model.box_coder.decode_single(offsets[i], anchors[0])
        out |= {f"found_{part}{i}": value for part, value in detections[i].items()}
    out |= _our_loss(offsets, confidences, targets, labels)
    np.savez(target, **{name: value.detach().numpy() for name, value in out.items()})


def _torchvision_with_voc_boxes() -> Any:
    model = ssd300_vgg16(weights=None, weights_backbone=None, num_classes=21)
    ratios, scales = [list(each) for each in ASPECT_RATIOS], [size / 300 for size in BOX_SIZES]
    model.anchor_generator = DefaultBoxGenerator(ratios, scales=scales, steps=list(STEPS), clip=False)
    return model


def _our_loss(offsets: Any, confidences: Any, targets: Any, labels: Any) -> dict[str, Any]:
    offsets, confidences = offsets.clone().requires_grad_(), confidences.clone().requires_grad_()
    location, confidence = multibox_sums(offsets, confidences, targets, labels)
    (location + confidence).backward()
    return {
        "location": location,
        "confidence": confidence,
        "offsets_gradient": offsets.grad,
        "confidences_gradient": confidences.grad,
    }


def network(batch: Path, target: Path) -> None:
    """The whole network: parameters, output of the batch, and parameters after one update."""
    torch.manual_seed(0)
    model = Ssd300(20)
    out: dict[str, Any] = {f"before/{name}": value.detach().clone() for name, value in model.named_parameters()}
    out["names"] = np.array([name for name, _ in model.named_parameters()])
    out["count"] = np.array(sum(parameter.numel() for parameter in model.parameters()))
    inputs = np.load(batch)
    options = ssd.parse(["--data", "unused", "--global-batch", "1", "--iterations", "1", "--learning-rate", "1"])
    adapter = ssd.build(model, options, alone(), None)  # type: ignore[arg-type]  # nothing is evaluated
    with torch.no_grad():
        out["offsets"], out["confidences"] = model(torch.from_numpy(inputs["pixels"]))
    output = adapter.step([(inputs["pixels"], inputs["targets"], inputs["labels"])], 0, [0])
    out["loss"] = output["loss"]
    out |= {f"after/{name}": value.detach() for name, value in model.named_parameters()}
    out |= {f"gradient/{name}": value.grad for name, value in model.named_parameters()}
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in out.items()}
    np.savez(target, **arrays)


def parts(batch: Path) -> None:
    """Fails unless the update of a batch of two images is that of the same in two parts."""
    inputs = np.load(batch)
    both = tuple(inputs[name] for name in ("pixels", "targets", "labels"))
    each = [tuple(values[at : at + 1] for values in both) for at in range(2)]
    options = ssd.parse(["--data", "unused", "--global-batch", "2", "--iterations", "1", "--learning-rate", "1"])
    after = []
    for given in ([both], each):
        torch.manual_seed(0)
        model = Ssd300(20, 0.125)
        adapter = ssd.build(model, options, alone(), None)  # type: ignore[arg-type]  # nothing is evaluated
        output = adapter.step(given, 0, range(len(given)))
        gradients = {name: np.asarray(value.grad) for name, value in model.named_parameters()}
        after.append({"loss": np.asarray(output["loss"]), **gradients})
    for name, whole in after[0].items():
        off = np.linalg.norm(after[1][name] - whole)
        assert off <= 1e-4 * np.linalg.norm(whole) + 1e-6, (name, off, np.linalg.norm(whole))


def weights(folder: Path) -> None:
    """Writes torchvision's VGG16 as a file of weights, and fails unless it is read into the right places."""
    # Only the convolutions: the classifier's 120 million random numbers would take longer than all the rest.
    theirs = make_layers(cfgs["D"]).state_dict()
    torch.save({f"features.{name}": value for name, value in theirs.items()}, folder / "vgg16.pth")
    read = read_state(folder / "vgg16.pth")
    model = Ssd300(20)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    assert sorted(read) == sorted(trunk_names())
    assert all(value.shape == shapes[name] for name, value in read.items())
    options = SimpleNamespace(weights=folder / "vgg16.pth")
    context = ssd.load_weights(model, options, alone())  # type: ignore[arg-type]
    assert context["weights"]["arrays"].startswith("26 of "), context
    trunk = [layer for layer in model.backbone.modules() if isinstance(layer, torch.nn.Conv2d)][:13]
    originals = [value for name, value in theirs.items() if name.endswith("weight")]
    assert all(torch.equal(layer.weight, value) for layer, value in zip(trunk, originals, strict=True))
    assert float(model.pixel_deviation) == 1
    (folder / "text.pth").write_text("hello")
    torch.save({"epoch": 3}, folder / "other.pth")
    for name in ("text.pth", "other.pth"):
        try:
            ssd.load_weights(model, SimpleNamespace(weights=folder / name), alone())  # type: ignore[arg-type]
        except Fatal as problem:
            assert f"{name}: not readable as weights" in str(problem) and "\n" not in str(problem)
        else:
            raise AssertionError(f"{name} was taken for weights")


if __name__ == "__main__":
    probes: dict[str, Any] = {"tensors": tensors, "network": network, "parts": parts, "weights": weights}
    probes[sys.argv[1]](*map(Path, sys.argv[2:]))
