"""The multibox loss of SSD, as both frameworks compute it, and the choice of hard negatives.

The loss of a batch is (location + confidence) / positives, where both sums and the count run over the whole global
batch. Ranks therefore add up their positives before they divide, and two ranks make the update of one. Negatives are
chosen within each image, so the choice does not depend on how a batch is split.
"""

from typing import Any

import numpy as np

NEGATIVES_PER_POSITIVE = 3


def hard_negatives(losses: Any, positive: Any, xp: Any = np) -> Any:
    """Mask (batch, boxes) of the negatives that count: per image the *losses* on top, 3 for each positive.

    *losses* are confidence losses (batch, boxes), *positive* is the mask of matched boxes; *xp* is numpy or CuPy.
    Equal losses rank in box order. An image without an object contributes nothing, as in the paper's code.
    """
    masked = xp.where(positive, -xp.inf, losses)
    positions = xp.argsort(xp.argsort(-masked, axis=1, kind="stable"), axis=1, kind="stable")
    count = NEGATIVES_PER_POSITIVE * positive.sum(axis=1, keepdims=True)
    return (positions < count) & ~positive
