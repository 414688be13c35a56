"""Images with objects, drawn at random once, for measuring the speed of detection without the cost of reading data."""

from functools import lru_cache

import numpy as np

from spotmpi.programs.boxes import default_boxes, encode
from spotmpi.programs.detection_data import Batch, Encoded
from spotmpi.programs.voc import CLASSES

_STREAM = 1_000_039
_OBJECTS = 3  # about as many as VOC's images hold
_COUNT = 16_551  # images of VOC 2007+2012 trainval


class SyntheticDetection:
    """As many images as VOC has to train on, all of them one that is drawn once in each process.

    A model learns nothing of use from it: only the times mean anything.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __len__(self) -> int:
        return _COUNT

    def sample(self, index: int, random: np.random.Generator) -> int:
        """The number of the image; there is nothing to read."""
        return index

    def batch(self, samples: list[int]) -> Batch:
        """Pixels (b, 3, 300, 300), offsets (b, 8732, 4) and labels (b, 8732)."""
        one = _drawn(self._seed)
        pixels, offsets, labels = zip(*[one] * len(samples), strict=True)
        return np.stack(pixels), np.stack(offsets), np.stack(labels)

    def fingerprint(self) -> str:
        """What the image is drawn from."""
        return f"synthetic-detection-{self._seed}"


@lru_cache(maxsize=1)
def _drawn(seed: int) -> Encoded:
    random = np.random.default_rng([_STREAM, seed])
    corners = random.uniform(0, 0.5, (_OBJECTS, 2))
    boxes = np.concatenate([corners, corners + random.uniform(0.1, 0.5, (_OBJECTS, 2))], axis=1).astype(np.float32)
    labels = random.integers(0, len(CLASSES), _OBJECTS).astype(np.int32)
    pixels = random.integers(0, 256, (3, 300, 300), dtype=np.uint8)
    return Encoded(pixels, *encode(boxes, labels, default_boxes()))
