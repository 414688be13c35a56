"""The multibox loss of SSD in numpy, the reference for both frameworks."""

from typing import Any, NamedTuple

import numpy as np

from spotmpi.programs.boxes import Floats, Integers
from spotmpi.programs.multibox import hard_negatives


class MultiboxSums(NamedTuple):
    """Undivided loss sums of a batch, and the number of matched default boxes that divides them."""

    location: float
    confidence: float
    positives: int


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
