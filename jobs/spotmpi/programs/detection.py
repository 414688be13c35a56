"""From the network's raw output of one image to scored, labelled boxes, as the paper does at test time."""

from typing import NamedTuple

import numpy as np

from spotmpi.programs.boxes import Floats, Integers, decode, suppress

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
    found = [_of_class(label, boxes, probabilities[:, label + 1]) for label in range(probabilities.shape[1] - 1)]
    merged = Detections(*(np.concatenate(part) for part in zip(*found, strict=True)))
    order = np.argsort(-merged.scores, kind="stable")[:DETECTIONS_PER_IMAGE]
    return Detections(merged.boxes[order], merged.labels[order], merged.scores[order])


def _of_class(label: int, boxes: Floats, scores: Floats) -> Detections:
    above = np.flatnonzero(scores > SCORE_THRESHOLD)
    best = above[np.argsort(-scores[above], kind="stable")[:CANDIDATES_PER_CLASS]]
    kept = best[suppress(boxes[best], scores[best], OVERLAP_THRESHOLD)]
    return Detections(boxes[kept], np.full(len(kept), label, dtype=np.int32), scores[kept])


def softmax(confidences: Floats) -> Floats:
    """Probabilities over the last axis."""
    raised = np.exp(confidences - confidences.max(axis=-1, keepdims=True))
    result: Floats = raised / raised.sum(axis=-1, keepdims=True)
    return result
