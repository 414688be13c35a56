"""Evaluates a detection network: from its raw output to boxes, and from these to VOC2007's mean average precision."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from spotmpi.programs.augment import Pixels, plain
from spotmpi.programs.boxes import Floats, Integers, decode, default_boxes, overlaps, suppress
from spotmpi.programs.detection_data import DetectionData, open_image
from spotmpi.programs.voc import CLASSES, Objects
from spotmpi.programs.world import World

SCORE_THRESHOLD = 0.01
OVERLAP_THRESHOLD = 0.45
CANDIDATES_PER_CLASS = 400
DETECTIONS_PER_IMAGE = 200


class Detections(NamedTuple):
    """Boxes (n, 4), their class indices (n,) without background, and scores (n,), best first."""

    boxes: Floats
    labels: Integers
    scores: Floats


def detect(offsets: Floats, confidences: Floats, defaults: Floats) -> Detections:
    """What one image shows, from *offsets* (8732, 4) and *confidences* (8732, classes + 1, before softmax).

    Boxes are in fractions of the image, clipped to it.
    """
    boxes = np.clip(decode(offsets, defaults), 0, 1)
    probabilities = softmax(confidences)
    detected = [_detect_class(label, boxes, probabilities[:, label + 1]) for label in range(probabilities.shape[1] - 1)]
    merged = Detections(*(np.concatenate(part) for part in zip(*detected, strict=True)))
    order = np.argsort(-merged.scores, kind="stable")[:DETECTIONS_PER_IMAGE]
    return Detections(merged.boxes[order], merged.labels[order], merged.scores[order])


def _detect_class(label: int, boxes: Floats, scores: Floats) -> Detections:
    above = np.flatnonzero(scores > SCORE_THRESHOLD)
    best = above[np.argsort(-scores[above], kind="stable")[:CANDIDATES_PER_CLASS]]
    selected = best[suppress(boxes[best], scores[best], OVERLAP_THRESHOLD)]
    return Detections(boxes[selected], np.full(len(selected), label, dtype=np.int32), scores[selected])


def softmax(confidences: Floats) -> Floats:
    """Probabilities over the last axis."""
    raised: Floats = np.exp(confidences - confidences.max(axis=-1, keepdims=True))
    result: Floats = raised / raised.sum(axis=-1, keepdims=True)
    return result


MINIMUM_OVERLAP = 0.5


def average_precisions(detected: Sequence[Detections], truth: Sequence[Objects]) -> dict[str, float]:
    """Average precision of each class that has at least one object that is not difficult.

    *detected* and *truth* are of the same images in the same order; boxes have the same unit in both.
    """
    if len(detected) != len(truth):
        raise ValueError(
            f"{len(detected)} images with detections but {len(truth)} with objects; the numbers must be equal"
        )
    results = {}
    for label, name in enumerate(CLASSES):
        counted = sum(int((~image.difficult[image.labels == label]).sum()) for image in truth)
        if counted:
            scored: list[tuple[float, bool]] = []
            for detections, objects in zip(detected, truth, strict=True):
                scored += _judge_image(label, detections, objects)
            # A stable sort: equal scores stay in image order, so a repeat gives the same value.
            results[name] = _eleven_points([right for _, right in sorted(scored, key=lambda pair: -pair[0])], counted)
    return results


def _judge_image(label: int, detections: Detections, objects: Objects) -> list[tuple[float, bool]]:
    """Score and correctness of each detection of the class *label*; those of difficult objects do not count.

    The best detection of an object is correct, any other of the same one is not, as in PASCAL VOC's development kit.
    """
    of_class = detections.labels == label
    boxes, scores = detections.boxes[of_class], detections.scores[of_class]
    targets, difficult = objects.boxes[objects.labels == label], objects.difficult[objects.labels == label]
    if not len(targets):
        return [(float(score), False) for score in scores]
    shared = overlaps(boxes, targets)
    taken = np.zeros(len(targets), dtype=bool)
    verdicts = []
    for index in np.argsort(-scores, kind="stable"):
        target = int(shared[index].argmax())
        hit = shared[index, target] >= MINIMUM_OVERLAP
        if hit and difficult[target]:
            continue
        verdicts.append((float(scores[index]), bool(hit and not taken[target])))
        taken[target] |= bool(hit)
    return verdicts


def _eleven_points(verdicts: list[bool], counted: int) -> float:
    """Mean over the recalls 0, 0.1, ... 1 of the best precision at that recall or beyond."""
    right = np.cumsum(verdicts, dtype=np.int64)
    precision = right / np.arange(1, len(right) + 1)
    # Whole numbers: 0.1 * 3 is not 0.3, and a recall of exactly 0.3 must count.
    reached = [precision[10 * right >= point * counted] for point in range(11)]
    return float(np.mean([part.max() if part.size else 0.0 for part in reached]))


# Raw output (offsets and confidences) of pixels (b, 3, 300, 300).
Predict = Callable[[Pixels], tuple[Floats, Floats]]
_BATCH = 8


def evaluate(predict: Predict, data: DetectionData, world: World) -> dict[str, float]:
    """`mean_average_precision` and `ap_<class>` of each class that has objects which count, equal on all ranks.

    Empty without images.
    """
    if not len(data):
        return {}
    share = range(world.rank, len(data), world.size)
    own = [detections for start in range(0, len(share), _BATCH) for detections in _detect(predict, data, share, start)]
    results = world.gather(own)
    detected = [results[index % world.size][index // world.size] for index in range(len(data))]
    precisions = average_precisions(detected, [image.objects for image in data.images])
    mean = float(np.mean(list(precisions.values()))) if precisions else float("nan")
    return {"mean_average_precision": mean, **{f"ap_{name}": value for name, value in precisions.items()}}


def _detect(predict: Predict, data: DetectionData, share: range, start: int) -> list[Detections]:
    chosen = [data.images[index] for index in share[start : start + _BATCH]]
    pixels = [plain(open_image(path), objects.boxes, objects.labels).pixels for path, _, objects in chosen]
    offsets, confidences = predict(np.stack(pixels))
    defaults = default_boxes()
    return [detect(*raw, defaults) for raw in zip(offsets, confidences, strict=True)]
