"""The multibox loss of SSD in numpy, the reference for both frameworks, and the choice of hard negatives.

The loss of a batch is (location + confidence) / positives, where both sums and the count run over the whole global
batch. Ranks therefore add up their positives before they divide, and two ranks make the update of one. Negatives are
chosen within each image, so the choice does not depend on how a batch is split.
"""

from typing import Any, NamedTuple

import numpy as np

from spotmpi.programs.boxes import Floats, Integers

NEGATIVES_PER_POSITIVE = 3


class MultiboxSums(NamedTuple):
    """Undivided loss sums of a batch, and the number of matched default boxes that divides them."""

    location: float
    confidence: float
    positives: int


def hard_negatives(losses: Any, positive: Any, xp: Any = np) -> Any:
    """Mask (batch, boxes) of the negatives that count: per image the *losses* on top, 3 for each positive.

    *losses* are confidence losses (batch, boxes), *positive* is the mask of matched boxes; *xp* is numpy or CuPy.
    Equal losses rank in box order. An image without an object contributes nothing, as in the paper's code.
    """
    masked = xp.where(positive, -xp.inf, losses)
    positions = xp.argsort(xp.argsort(-masked, axis=1, kind="stable"), axis=1, kind="stable")
    count = NEGATIVES_PER_POSITIVE * positive.sum(axis=1, keepdims=True)
    return (positions < count) & ~positive


def multibox_sums(offsets: Floats, confidences: Floats, targets: Floats, labels: Integers) -> MultiboxSums:
    """Loss sums of *offsets* (batch, boxes, 4) and *confidences* (batch, boxes, classes + 1) against the targets."""
    positive = labels > 0
    difference = np.abs(offsets - targets)[positive].astype(np.float64)
    location = np.where(difference < 1, 0.5 * difference**2, difference - 0.5).sum()
    losses = cross_entropy(confidences.astype(np.float64), labels)
    counted = positive | hard_negatives(losses, positive)
    return MultiboxSums(float(location), float(losses[counted].sum()), int(positive.sum()))


def cross_entropy(confidences: Any, labels: Integers) -> Any:
    """Softmax cross entropy per box, shape (batch, boxes)."""
    top = confidences.max(axis=-1)
    total = np.log(np.exp(confidences - top[..., None]).sum(axis=-1)) + top
    return total - np.take_along_axis(confidences, labels[..., None], axis=-1)[..., 0]
