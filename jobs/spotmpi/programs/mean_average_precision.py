"""VOC2007's mean average precision: 11 recall points, difficult objects neither help nor hurt."""

from collections.abc import Sequence

import numpy as np

from spotmpi.programs.boxes import overlaps
from spotmpi.programs.detection import Detections
from spotmpi.programs.voc import CLASSES, Objects

MINIMUM_OVERLAP = 0.5


def mean_average_precision(found: Sequence[Detections], truth: Sequence[Objects]) -> float:
    """The mean of `average_precisions`, from 0 to 1; NaN where no class has an object that counts."""
    values = list(average_precisions(found, truth).values())
    return float(np.mean(values)) if values else float("nan")


def average_precisions(found: Sequence[Detections], truth: Sequence[Objects]) -> dict[str, float]:
    """Average precision of each class that has at least one object that is not difficult.

    *found* and *truth* speak of the same images in the same order; boxes only need one unit in both.
    """
    if len(found) != len(truth):
        raise ValueError(f"{len(found)} images with detections but {len(truth)} with objects; they must be the same")
    results = {}
    for label, name in enumerate(CLASSES):
        counted = sum(int((~image.difficult[image.labels == label]).sum()) for image in truth)
        if counted:
            results[name] = _eleven_points(_judge(label, found, truth), counted)
    return results


def _judge(label: int, found: Sequence[Detections], truth: Sequence[Objects]) -> list[bool]:
    """Right or wrong of every detection of the class, best score first; those on difficult objects are left out."""
    scored: list[tuple[float, bool]] = []
    for detections, objects in zip(found, truth, strict=True):
        scored += _judge_image(label, detections, objects)
    # A stable sort: equal scores stay in image order, so a repeat gives the same value.
    return [right for _, right in sorted(scored, key=lambda pair: -pair[0])]


def _judge_image(label: int, detections: Detections, objects: Objects) -> list[tuple[float, bool]]:
    mine = detections.labels == label
    boxes, scores = detections.boxes[mine], detections.scores[mine]
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
