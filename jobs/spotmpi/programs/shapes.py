"""Writes a VOC folder of drawn shapes: real files for tests and first runs, without a download.

Seven VOC classes, each with a shape and a hue of its own, lie on a noisy background, some cut by the border, some
hidden in part and marked difficult. The same seed gives the same pictures.

    python -m spotmpi.programs.shapes FOLDER --images 64 --seed 0
"""

import argparse
import colorsys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
from PIL import Image, ImageDraw

from spotmpi.agent.protocol import counted
from spotmpi.programs.voc import SUBFOLDERS

SIZES = ((500, 375), (375, 500), (500, 333), (320, 320))
MOST_OBJECTS = 4
DIFFICULT_BELOW = 0.6  # share of an object that later ones leave uncovered
SMALLEST = 0.15  # of the image's shorter side
LARGEST = 0.55

Box = tuple[int, int, int, int]
Draw = Callable[[ImageDraw.ImageDraw, Box, tuple[int, int, int]], None]


class Shape(NamedTuple):
    """One drawn object: its class, its box (first and last pixel of both axes) and whether it is difficult."""

    name: str
    box: Box
    difficult: bool


def _ellipse(draw: ImageDraw.ImageDraw, box: Box, colour: tuple[int, int, int]) -> None:
    draw.ellipse(box, fill=colour)


def _rectangle(draw: ImageDraw.ImageDraw, box: Box, colour: tuple[int, int, int]) -> None:
    draw.rectangle(box, fill=colour)


def _triangle(draw: ImageDraw.ImageDraw, box: Box, colour: tuple[int, int, int]) -> None:
    draw.polygon([(box[0], box[3]), ((box[0] + box[2]) // 2, box[1]), (box[2], box[3])], fill=colour)


def _diamond(draw: ImageDraw.ImageDraw, box: Box, colour: tuple[int, int, int]) -> None:
    x, y = (box[0] + box[2]) // 2, (box[1] + box[3]) // 2
    draw.polygon([(x, box[1]), (box[2], y), (x, box[3]), (box[0], y)], fill=colour)


def _frame(draw: ImageDraw.ImageDraw, box: Box, colour: tuple[int, int, int]) -> None:
    draw.rectangle(box, outline=colour, width=max(3, (box[2] - box[0]) // 6))


def _cross(draw: ImageDraw.ImageDraw, box: Box, colour: tuple[int, int, int]) -> None:
    third_x, third_y = (box[2] - box[0]) // 3, (box[3] - box[1]) // 3
    draw.rectangle((box[0] + third_x, box[1], box[2] - third_x, box[3]), fill=colour)
    draw.rectangle((box[0], box[1] + third_y, box[2], box[3] - third_y), fill=colour)


# Class, how it is drawn, its width over its height, its hue.
KINDS: tuple[tuple[str, Draw, float, float], ...] = (
    ("car", _ellipse, 1.0, 0.0),
    ("bus", _rectangle, 1.8, 0.15),
    ("boat", _triangle, 1.2, 0.33),
    ("bottle", _rectangle, 0.45, 0.5),
    ("tvmonitor", _frame, 1.3, 0.66),
    ("aeroplane", _cross, 1.0, 0.83),
    ("bird", _diamond, 1.0, 0.92),
)


def write_shapes(folder: Path, images: int, seed: int = 0, test_images: int = 0) -> None:
    """Writes *images* pictures as set `trainval` and *test_images* more as set `test` into the VOC folder *folder*."""
    for part in (*SUBFOLDERS, "ImageSets/Main"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    names = [f"{number:06d}" for number in range(1, images + test_images + 1)]
    for index, name in enumerate(names):
        picture, shapes = draw_picture(np.random.default_rng([seed, index]))
        picture.save(folder / "JPEGImages" / f"{name}.jpg", quality=92)
        _annotation(f"{name}.jpg", picture.size, shapes).write(folder / "Annotations" / f"{name}.xml")
    for listing, listed in (("trainval", names[:images]), ("test", names[images:])):
        if listed:
            (folder / "ImageSets" / "Main" / f"{listing}.txt").write_text(
                "".join(f"{name}\n" for name in listed), encoding="utf-8"
            )


def draw_picture(random: np.random.Generator) -> tuple[Image.Image, list[Shape]]:
    """One picture with one to four shapes, later ones in front of earlier ones."""
    size = SIZES[random.integers(len(SIZES))]
    noise = random.normal(random.uniform(90, 170), 12, size=(size[1], size[0], 3))
    picture = Image.fromarray(np.clip(noise, 0, 255).astype(np.uint8))
    owner = np.full((size[1], size[0]), -1)
    drawn: list[tuple[str, Box, int]] = []
    for index in range(int(random.integers(1, MOST_OBJECTS + 1))):
        name, draw, ratio, hue = KINDS[random.integers(len(KINDS))]
        box = _place(size, ratio, random)
        draw(ImageDraw.Draw(picture), box, _colour(hue, random))
        inside = (slice(max(box[1], 0), box[3] + 1), slice(max(box[0], 0), box[2] + 1))
        owner[inside] = index
        drawn.append((name, _clip(box, size), (box[2] - box[0] + 1) * (box[3] - box[1] + 1)))
    visible = [int((owner == index).sum()) / area for index, (_, _, area) in enumerate(drawn)]
    return picture, [
        Shape(name, box, part < DIFFICULT_BELOW) for (name, box, _), part in zip(drawn, visible, strict=True) if part
    ]


def _place(size: tuple[int, int], ratio: float, random: np.random.Generator) -> Box:
    side = min(size) * random.uniform(SMALLEST, LARGEST)
    width, height = int(side * ratio**0.5), int(side / ratio**0.5)
    # An object may leave the picture by a quarter of itself.
    left = int(random.integers(-width // 4, size[0] - 3 * width // 4))
    top = int(random.integers(-height // 4, size[1] - 3 * height // 4))
    return left, top, left + width - 1, top + height - 1


def _clip(box: Box, size: tuple[int, int]) -> Box:
    return max(box[0], 0), max(box[1], 0), min(box[2], size[0] - 1), min(box[3], size[1] - 1)


def _colour(hue: float, random: np.random.Generator) -> tuple[int, int, int]:
    shade = colorsys.hsv_to_rgb(
        (hue + random.uniform(-0.03, 0.03)) % 1, random.uniform(0.75, 1), random.uniform(0.7, 1)
    )
    red, green, blue = (int(255 * part) for part in shade)
    return red, green, blue


def _annotation(
    filename: str, size: tuple[int, int], shapes: list[Shape]
) -> "ElementTree.ElementTree[ElementTree.Element]":
    """The annotation of an image in the format of PASCAL VOC, whose pixels count from 1."""
    root = ElementTree.Element("annotation")
    ElementTree.SubElement(root, "filename").text = filename
    extent = ElementTree.SubElement(root, "size")
    for tag, value in (("width", size[0]), ("height", size[1]), ("depth", 3)):
        ElementTree.SubElement(extent, tag).text = str(value)
    for shape in shapes:
        entry = ElementTree.SubElement(root, "object")
        ElementTree.SubElement(entry, "name").text = shape.name
        ElementTree.SubElement(entry, "difficult").text = str(int(shape.difficult))
        box = ElementTree.SubElement(entry, "bndbox")
        for tag, value in zip(("xmin", "ymin", "xmax", "ymax"), shape.box, strict=True):
            ElementTree.SubElement(box, tag).text = str(value + 1)
    ElementTree.indent(root)
    return ElementTree.ElementTree(root)


def main(arguments: list[str] | None = None) -> None:
    """The command line: writes the folder and says what is in it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="VOC folder to write")
    parser.add_argument("--images", type=_positive, default=64, help="pictures in the set trainval")
    parser.add_argument("--test-images", type=_positive, default=16, help="pictures in the set test")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    write_shapes(options.folder, options.images, options.seed, options.test_images)
    print(f"{options.folder}: {counted(options.images, 'image')} in trainval, {options.test_images} in test")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value


if __name__ == "__main__":
    main()
