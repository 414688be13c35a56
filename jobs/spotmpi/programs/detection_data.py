"""Labelled images as the training loop wants them: pixels and the targets of all default boxes."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from spotmpi.agent.files import error_text
from spotmpi.programs.augment import Pixels, augment, plain
from spotmpi.programs.boxes import Floats, Integers, default_boxes, encode
from spotmpi.programs.exits import Failed, Fatal
from spotmpi.programs.voc import LabelledImage, digest, read_sets
from spotmpi.programs.world import World

Batch = tuple[Pixels, Floats, Integers]


class Encoded(NamedTuple):
    """One sample: pixels (3, 300, 300), offsets (8732, 4) and labels (8732,) with 0 as background."""

    pixels: Pixels
    offsets: Floats
    labels: Integers


class DetectionData:
    """*images* by index, with the paper's augmentations or only resized; difficult objects are trained on as well."""

    def __init__(self, images: list[LabelledImage], fingerprint: str, augmented: bool) -> None:
        self.images = images
        self._fingerprint = fingerprint
        self._augmented = augmented
        self._defaults = default_boxes()

    def __len__(self) -> int:
        return len(self.images)

    def sample(self, index: int, random: np.random.Generator) -> Encoded:
        """Image *index*, encoded; raises Fatal where the file is not an image."""
        image, objects = open_image(self.images[index].path), self.images[index].objects
        if self._augmented:
            sample = augment(image, objects.boxes, objects.labels, random)
        else:
            sample = plain(image, objects.boxes, objects.labels)
        return Encoded(sample.pixels, *encode(sample.boxes, sample.labels, self._defaults))

    def batch(self, samples: list[Encoded]) -> Batch:
        """Pixels (b, 3, 300, 300), offsets (b, 8732, 4) and labels (b, 8732)."""
        pixels, offsets, labels = zip(*samples, strict=True)
        return np.stack(pixels), np.stack(offsets), np.stack(labels)

    def fingerprint(self) -> str:
        """Twelve hex digits over names, sizes and objects of all images."""
        return self._fingerprint


def open_image(path: Path) -> Image.Image:
    """The decoded RGB image; Fatal where the content is none, Failed where the file system does not give it."""
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError) as problem:
        if isinstance(problem, OSError) and problem.errno:
            raise Failed(f"{path}: cannot be read: {problem.strerror}") from problem
        raise Fatal(f"{path}: not a readable image ({error_text(problem)}); replace the file") from problem


def load_data(root: Path, sets: tuple[str, str], augmented: bool, world: World) -> tuple[DetectionData, DetectionData]:
    """Training and test data, *sets* naming the image sets of each; rank 0 reads and all ranks get the same."""
    parts = []
    for names, chance in zip(sets, (augmented, False), strict=True):
        source = None
        if world.rank == 0:
            images = read_sets(root, names)
            source = (images, digest(root, images))
        images, name = world.broadcast(source)
        parts.append(DetectionData(images, name, chance))
    return parts[0], parts[1]


def load_set(root: str, sets: str, augmented: bool) -> DetectionData:
    """The images of *sets* alone, read by the process itself, such as a worker."""
    images = read_sets(Path(root), sets)
    return DetectionData(images, digest(Path(root), images), augmented)
