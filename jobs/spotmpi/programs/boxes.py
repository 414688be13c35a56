"""SSD300's default boxes: where they are, which object each one answers for, and how offsets are written and read.

Boxes are (xmin, ymin, xmax, ymax) in fractions of the image unless a name says otherwise. Sizes, steps and ratios
are those of Liu et al. 2016 for PASCAL VOC; the order (map, row, column, shape) is the one torchvision's heads use.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]

IMAGE_SIZE = 300
MAP_SIZES = (38, 19, 10, 5, 3, 1)
STEPS = (8, 16, 32, 64, 100, 300)
BOX_SIZES = (30, 60, 111, 162, 213, 264, 315)
ASPECT_RATIOS = ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,))
BOXES_PER_CELL = tuple(2 + 2 * len(ratios) for ratios in ASPECT_RATIOS)
CENTRE_VARIANCE = 0.1
SIZE_VARIANCE = 0.2


def default_boxes() -> Floats:
    """The default boxes (8732, 4) as centre x, centre y, width and height; unclipped as in the paper's code."""
    maps = []
    for level, (cells, step) in enumerate(zip(MAP_SIZES, STEPS, strict=True)):
        shapes = np.array(_shapes(level), dtype=np.float64) / IMAGE_SIZE
        centres = (np.arange(cells) + 0.5) * step / IMAGE_SIZE
        grid = np.empty((cells, cells, len(shapes), 4))
        grid[..., 0] = centres[np.newaxis, :, np.newaxis]
        grid[..., 1] = centres[:, np.newaxis, np.newaxis]
        grid[..., 2:] = shapes
        maps.append(grid.reshape(-1, 4))
    return np.concatenate(maps).astype(np.float32)


def _shapes(level: int) -> list[tuple[float, float]]:
    size, next_size = BOX_SIZES[level], BOX_SIZES[level + 1]
    between = (size * next_size) ** 0.5
    shapes = [(float(size), float(size)), (between, between)]
    for ratio in ASPECT_RATIOS[level]:
        root = ratio**0.5
        shapes += [(size * root, size / root), (size / root, size * root)]
    return shapes


def corners(centred: Floats) -> Floats:
    """Boxes (..., 4) given by centre and size as (xmin, ymin, xmax, ymax)."""
    half = centred[..., 2:] / 2
    return np.concatenate([centred[..., :2] - half, centred[..., :2] + half], axis=-1)


def overlaps(first: Floats, second: Floats) -> Floats:
    """Intersection over union of every box of *first* (n, 4) with every box of *second* (m, 4), shape (n, m)."""
    low = np.maximum(first[:, np.newaxis, :2], second[np.newaxis, :, :2])
    high = np.minimum(first[:, np.newaxis, 2:], second[np.newaxis, :, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=2)
    union = _areas(first)[:, np.newaxis] + _areas(second)[np.newaxis] - shared
    result: Floats = (shared / np.maximum(union, np.finfo(np.float32).tiny)).astype(np.float32)
    return result


def _areas(boxes: Floats) -> Floats:
    sides: Floats = boxes[:, 2:] - boxes[:, :2]
    return sides[:, 0] * sides[:, 1]


def match(objects: Floats, defaults: Floats) -> Integers:
    """For each default box (centre form) the index of its object in *objects* (n, 4), or -1, shape (len(defaults),).

    Every object first gets the default box that overlaps it most (best pair first, so no two objects share one);
    every other default box goes to its best object if they overlap by more than half.
    """
    if len(objects) == 0:
        return np.full(len(defaults), -1, dtype=np.int32)
    shared = overlaps(corners(defaults), objects)
    matched = np.where(shared.max(axis=1) > 0.5, shared.argmax(axis=1), -1).astype(np.int32)
    for _ in range(len(objects)):
        box, item = np.unravel_index(shared.argmax(), shared.shape)
        matched[box] = item
        shared[box, :] = -1
        shared[:, item] = -1
    return matched


def encode(objects: Floats, labels: Integers, defaults: Floats) -> tuple[Floats, Integers]:
    """Targets of one image: offsets (8732, 4), zero where unmatched, and labels (8732,) with 0 as background.

    *objects* (n, 4) are corner boxes, *labels* (n,) count classes from 0; *defaults* are in centre form.
    """
    matched = match(objects, defaults)
    positive = matched >= 0
    offsets = np.zeros_like(defaults)
    classes = np.zeros(len(defaults), dtype=np.int32)
    chosen, own = objects[matched[positive]], defaults[positive]
    centre, size = (chosen[:, :2] + chosen[:, 2:]) / 2, chosen[:, 2:] - chosen[:, :2]
    offsets[positive, :2] = (centre - own[:, :2]) / (own[:, 2:] * CENTRE_VARIANCE)
    offsets[positive, 2:] = np.log(size / own[:, 2:]) / SIZE_VARIANCE
    classes[positive] = labels[matched[positive]] + 1
    return offsets, classes


def decode(offsets: Floats, defaults: Floats) -> Floats:
    """Corner boxes (8732, 4) that the *offsets* of one image mean; the inverse of `encode`."""
    centre = defaults[:, :2] + offsets[:, :2] * CENTRE_VARIANCE * defaults[:, 2:]
    # Caps a size at some thousand times its default box: an untrained network must not overflow.
    size = defaults[:, 2:] * np.exp(np.minimum(offsets[:, 2:] * SIZE_VARIANCE, 8.0))
    return corners(np.concatenate([centre, size], axis=1).astype(np.float32))


def suppress(boxes: Floats, scores: Floats, threshold: float) -> Integers:
    """Indices of the boxes that stay after non-maximum suppression, best score first.

    A box goes when it overlaps a better one that stayed by more than *threshold*; equal scores keep their order.
    """
    order = np.argsort(-scores, kind="stable")
    shared = overlaps(boxes[order], boxes[order])
    alive = np.ones(len(order), dtype=bool)
    for place in range(len(order)):
        if alive[place]:
            alive[place + 1 :] &= shared[place, place + 1 :] <= threshold
    selected: Integers = order[alive].astype(np.int32)
    return selected
