"""Both frameworks' SSD300 on the same tensors, against each other, against torchvision and against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from spotmpi.programs.boxes import corners, decode, default_boxes, encode, match
from spotmpi.programs.detection import detect
from tests.programs.multibox_reference import multibox_sums

if TYPE_CHECKING:
    from tests.programs.conftest import Image

pytestmark = [pytest.mark.images, pytest.mark.timeout(600)]

PROBES = Path(__file__).parent / "probes"
DEFAULTS = default_boxes()


def probe(image: Image, *arguments: object) -> None:
    script = PROBES / f"ssd_{image.name}.py"
    image.alone("-W", "ignore", str(script), *map(str, arguments), OMP_NUM_THREADS="2").succeed()


def objects(seed: int, count: int) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    low = random.uniform(0, 0.7, size=(count, 2))
    boxes = np.concatenate([low, low + random.uniform(0.05, 0.3, size=(count, 2))], axis=1)
    return boxes.astype(np.float32), random.integers(0, 20, size=count).astype(np.int32)


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Any]:
    """Random output of a network for two images, and the targets of their objects; also in ``given.npz``."""
    random = np.random.default_rng(11)
    tensors: dict[str, Any] = {
        "offsets": random.normal(0, 1, size=(2, 8732, 4)).astype(np.float32),
        "confidences": random.normal(0, 2, size=(2, 8732, 21)).astype(np.float32),
    }
    encoded = []
    for index, count in enumerate((6, 2)):
        boxes, classes = objects(index, count)
        tensors |= {f"objects{index}": boxes, f"classes{index}": classes}
        encoded.append(encode(boxes, classes, DEFAULTS))
    tensors["targets"], tensors["labels"] = (np.stack(part) for part in zip(*encoded, strict=True))
    np.savez(tmp_path / "given.npz", **tensors)
    return tensors


def test_boxes_coding_loss_and_detections_agree_in_both_frameworks_and_with_torchvision(
    chainermn: Image, pytorch: Image, inputs: dict[str, Any], tmp_path: Path
) -> None:
    outputs = {}
    for image in (chainermn, pytorch):
        probe(image, "tensors", tmp_path / "given.npz", tmp_path / f"{image.name}.npz")
        outputs[image.name] = np.load(tmp_path / f"{image.name}.npz")
    theirs = outputs["pytorch"]

    np.testing.assert_allclose(corners(DEFAULTS) * 300, theirs["defaults"], atol=1e-4)
    for i in range(2):
        positive = inputs["labels"][i] > 0
        np.testing.assert_array_equal(match(inputs[f"objects{i}"], DEFAULTS), theirs[f"matched{i}"])
        np.testing.assert_allclose(inputs["targets"][i][positive], theirs[f"encoded{i}"][positive], atol=2e-4)
        np.testing.assert_allclose(decode(inputs["offsets"][i], DEFAULTS) * 300, theirs[f"decoded{i}"], atol=1e-2)
        ours = detect(inputs["offsets"][i], inputs["confidences"][i], DEFAULTS)
        np.testing.assert_array_equal(ours.labels + 1, theirs[f"found_labels{i}"])
        np.testing.assert_allclose(ours.boxes * 300, theirs[f"found_boxes{i}"], atol=1e-2)
        np.testing.assert_allclose(ours.scores, theirs[f"found_scores{i}"], rtol=1e-4)

    sums = multibox_sums(inputs["offsets"], inputs["confidences"], inputs["targets"], inputs["labels"])
    assert sums.positives > 20
    assert theirs["their_location"] == pytest.approx(sums.location / sums.positives, rel=1e-5)
    assert theirs["their_confidence"] == pytest.approx(sums.confidence / sums.positives, rel=1e-5)
    for name in ("chainermn", "pytorch"):
        assert outputs[name]["location"] == pytest.approx(sums.location, rel=1e-5)
        assert outputs[name]["confidence"] == pytest.approx(sums.confidence, rel=1e-5)
    for part in ("offsets_gradient", "confidences_gradient"):
        assert np.abs(theirs[part]).max() > 0.5
        np.testing.assert_allclose(outputs["chainermn"][part], theirs[part], atol=1e-6)


@pytest.mark.nightly("both whole networks, 17 s; their boxes, loss and detections are compared by day")
def test_both_whole_networks_have_26285486_parameters_and_make_the_same_output_and_update(
    chainermn: Image, pytorch: Image, inputs: dict[str, Any], tmp_path: Path
) -> None:
    batch = tmp_path / "batch.npz"
    pixels = np.random.default_rng(5).integers(0, 256, size=(1, 3, 300, 300), dtype=np.uint8)
    np.savez(batch, pixels=pixels, targets=inputs["targets"][:1], labels=inputs["labels"][:1])

    probe(pytorch, "network", batch, tmp_path / "pytorch.npz")
    probe(chainermn, "network", batch, tmp_path / "pytorch.npz", tmp_path / "chainermn.npz")

    theirs, ours = np.load(tmp_path / "pytorch.npz"), np.load(tmp_path / "chainermn.npz")
    assert ours["count"] == theirs["count"] == 26_285_486
    for part in ("offsets", "confidences"):
        np.testing.assert_allclose(ours[part], theirs[part], atol=1e-4 * np.abs(theirs[part]).max())
    assert ours["loss"] == pytest.approx(float(theirs["loss"]), rel=1e-5)
    only_decayed = []
    for name in map(str, theirs["names"]):
        before, gradient = theirs[f"before/{name}"], theirs[f"gradient/{name}"]
        # The rate was 1: biases move twice as fast as weights, and only weights decay.
        expected = -2 * gradient if name.endswith("bias") else -(gradient + 5e-4 * before)
        np.testing.assert_allclose(theirs[f"after/{name}"] - before, expected, rtol=1e-3, atol=3e-6, err_msg=name)
        # Sums over 90,000 positions, maxima and rectifiers near a tie: each framework and processor rounds in its own
        # way, up to 0.3 % of a layer's update where it was measured; a wrong one is off by far more.
        off = np.linalg.norm(ours[f"after/{name}"] - before - expected)
        assert off <= 1e-2 * np.linalg.norm(expected) + 3e-8 * np.sqrt(expected.size), name
        if not gradient.any() and expected.any():
            only_decayed.append(name)
    assert only_decayed, "without a layer that nothing but decay moves, decay would drown in the gradients"


@pytest.mark.parametrize("framework", ["chainermn", "pytorch"])
def test_a_batch_in_parts_with_other_numbers_of_objects_gives_the_update_of_the_whole(
    framework: str, inputs: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    labels = inputs["labels"][:2].copy()
    labels[1][np.flatnonzero(labels[1])[4:]] = 0
    assert (labels[0] > 0).sum() > 2 * (labels[1] > 0).sum() > 0
    pixels = np.random.default_rng(5).integers(0, 256, size=(2, 3, 300, 300), dtype=np.uint8)
    np.savez(tmp_path / "batch.npz", pixels=pixels, targets=inputs["targets"][:2], labels=labels)

    probe(request.getfixturevalue(framework), "parts", tmp_path / "batch.npz")


def test_features_that_are_all_zero_give_finite_gradients(chainermn: Image) -> None:
    probe(chainermn, "dark")


@pytest.mark.nightly("a file of VGG16 in full, 9 s")
def test_torchvisions_vgg16_is_read_into_the_right_layers(pytorch: Image, tmp_path: Path) -> None:
    probe(pytorch, "weights", tmp_path)
