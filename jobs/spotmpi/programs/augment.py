"""SSD's augmentations (Liu et al. 2016, section 2.2 and 3.6): colour, expansion, cropping, size, mirror.

Everything random comes from the Generator that is passed in, so a sample depends only on what that one was made from.
Boxes are (xmin, ymin, xmax, ymax) in fractions of the image; images are RGB.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from spotmpi.programs.boxes import IMAGE_SIZE, Floats, Integers, overlaps

MEAN_COLOUR = (123, 117, 104)  # of ImageNet, as the VGG16 weights expect it
BRIGHTNESS = 32.0  # of 255
CONTRAST = (0.5, 1.5)
SATURATION = (0.5, 1.5)
HUE = 18.0  # degrees
LARGEST_EXPANSION = 4.0
WINDOW_SCALES = (0.3, 1.0)
WINDOW_RATIOS = (0.5, 2.0)
LEAST_OVERLAPS = (0.1, 0.3, 0.5, 0.7, 0.9, 0.0)
TRIALS = 50
# The paper's code changes between these for each sample.
RESAMPLING = (
    Image.Resampling.NEAREST,
    Image.Resampling.BOX,
    Image.Resampling.BILINEAR,
    Image.Resampling.BICUBIC,
    Image.Resampling.LANCZOS,
)

Pixels = npt.NDArray[np.uint8]


class Sample(NamedTuple):
    """What the network gets: pixels (3, 300, 300), boxes (n, 4) and class indices (n,)."""

    pixels: Pixels
    boxes: Floats
    labels: Integers


def plain(image: Image.Image, boxes: Floats, labels: Integers) -> Sample:
    """The sample without any chance in it: only resized."""
    return Sample(_pixels(image, Image.Resampling.BILINEAR), boxes, labels)


def augment(image: Image.Image, boxes: Floats, labels: Integers, random: np.random.Generator) -> Sample:
    """The sample after the paper's augmentations; at least one object stays in it."""
    image = distort(image, random)
    image, boxes = expand(image, boxes, random)
    image, boxes, labels = crop(image, boxes, labels, random)
    pixels = _pixels(image, RESAMPLING[random.integers(len(RESAMPLING))])
    if random.random() < 0.5:
        pixels = np.ascontiguousarray(pixels[:, :, ::-1])
        boxes = boxes[:, [2, 1, 0, 3]] * np.array([-1, 1, -1, 1], np.float32) + np.array([1, 0, 1, 0], np.float32)
    return Sample(pixels, boxes, labels)


def _pixels(image: Image.Image, resampling: Image.Resampling) -> Pixels:
    resized = image.convert("RGB").resize((IMAGE_SIZE, IMAGE_SIZE), resampling)
    return np.ascontiguousarray(np.asarray(resized, dtype=np.uint8).transpose(2, 0, 1))


def distort(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Brightness, then contrast before or after saturation and hue; each with probability one half."""
    chosen = random.random(5) < 0.5
    if chosen[0]:
        image = _mapped(image, np.arange(256) + random.uniform(-BRIGHTNESS, BRIGHTNESS))
    contrast = np.arange(256) * random.uniform(*CONTRAST)
    if chosen[1] and chosen[2]:
        image = _mapped(image, contrast)
    image = _tint(image, chosen[3:], random)
    if chosen[1] and not chosen[2]:
        image = _mapped(image, contrast)
    return image


def _mapped(image: Image.Image, values: npt.NDArray[Any]) -> Image.Image:
    table = np.clip(np.rint(values), 0, 255).astype(np.uint8).tolist()
    return image.point(table * len(image.getbands()))


def _tint(image: Image.Image, chosen: npt.NDArray[np.bool_], random: np.random.Generator) -> Image.Image:
    if not chosen.any():
        return image
    hue, saturation, value = image.convert("HSV").split()
    if chosen[0]:
        saturation = _mapped(saturation, np.arange(256) * random.uniform(*SATURATION))
    if chosen[1]:
        turned = np.arange(256) + random.uniform(-HUE, HUE) * 256 / 360
        hue = _mapped(hue, np.rint(turned) % 256)
    return Image.merge("HSV", (hue, saturation, value)).convert("RGB")


def expand(image: Image.Image, boxes: Floats, random: np.random.Generator) -> tuple[Image.Image, Floats]:
    """Half the time the image somewhere on a canvas of the mean colour, up to four times as wide and as high."""
    if random.random() < 0.5:
        return image, boxes
    factor = random.uniform(1, LARGEST_EXPANSION)
    size = (int(image.width * factor), int(image.height * factor))
    place = (int(random.integers(size[0] - image.width + 1)), int(random.integers(size[1] - image.height + 1)))
    canvas = Image.new("RGB", size, MEAN_COLOUR)
    canvas.paste(image, place)
    own, whole, moved = (np.array(pair * 2, np.float32) for pair in (image.size, size, place))
    return canvas, (boxes * own + moved) / whole


def crop(
    image: Image.Image, boxes: Floats, labels: Integers, random: np.random.Generator
) -> tuple[Image.Image, Floats, Integers]:
    """One of: the whole image, or for each least overlap the first of 50 random windows that meets it.

    A window qualifies when some object overlaps it at least that much and some object's centre is in it. Objects
    whose centre is in it stay, cut to the window; `LEAST_OVERLAPS` ends with the window that requires no overlap.
    """
    windows = [np.array([0, 0, 1, 1], np.float32)]
    for least in LEAST_OVERLAPS:
        candidates = _windows(random, image.size)
        meets = overlaps(candidates, boxes).max(axis=1) >= least
        meets &= _holds_centres(candidates, boxes).any(axis=1)
        if meets.any():
            windows.append(candidates[meets.argmax()])
    return _crop_to(image, boxes, labels, windows[random.integers(len(windows))])


def _windows(random: np.random.Generator, size: tuple[int, int]) -> Floats:
    """50 windows (50, 4) that end on whole pixels; a ratio is only drawn if it keeps the window inside the image."""
    scales = random.uniform(*WINDOW_SCALES, size=TRIALS)
    lowest = np.maximum(WINDOW_RATIOS[0], scales**2)
    highest = np.minimum(WINDOW_RATIOS[1], 1 / scales**2)
    roots = np.sqrt(random.uniform(lowest, highest))
    sizes = np.minimum(np.stack([scales * roots, scales / roots], axis=1), 1)
    starts = random.random((TRIALS, 2)) * (1 - sizes)
    windows = np.concatenate([starts, starts + sizes], axis=1)
    return (np.rint(windows * (size * 2)) / (size * 2)).astype(np.float32)


def _holds_centres(windows: Floats, boxes: Floats) -> npt.NDArray[np.bool_]:
    centres = (boxes[np.newaxis, :, :2] + boxes[np.newaxis, :, 2:]) / 2
    inside = (centres > windows[:, np.newaxis, :2]) & (centres < windows[:, np.newaxis, 2:])
    result: npt.NDArray[np.bool_] = np.all(inside, axis=2)
    return result


def _crop_to(
    image: Image.Image, boxes: Floats, labels: Integers, window: Floats
) -> tuple[Image.Image, Floats, Integers]:
    size = np.array(image.size * 2, np.float32)
    edges = np.rint(window * size)
    selected = _holds_centres(window[np.newaxis], boxes)[0]
    inside = np.clip(boxes[selected] * size, edges[[0, 1, 0, 1]], edges[[2, 3, 2, 3]])
    extent = (edges[2:] - edges[:2])[[0, 1, 0, 1]]
    left, top, right, bottom = (int(edge) for edge in edges)
    return image.crop((left, top, right, bottom)), (inside - edges[[0, 1, 0, 1]]) / extent, labels[selected]
