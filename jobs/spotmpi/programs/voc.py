"""PASCAL VOC folders: every image and object of the requested sets, or an error that names the problem in one line.

A VOC folder holds JPEGImages, Annotations and ImageSets/Main; a root is such a folder or holds several (VOC2007,
VOC2012). Nothing is skipped: what cannot be read is an error that names the file, the fault and the remedy.
"""

import hashlib
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from spotmpi.agent.files import error_text, is_file, is_folder
from spotmpi.agent.protocol import counted
from spotmpi.programs.boxes import Floats, Integers
from spotmpi.programs.exits import Fatal

CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
SUBFOLDERS = ("JPEGImages", "Annotations", "ImageSets")
_SHOWN = 5
_READERS = 16


class Objects(NamedTuple):
    """Objects of one image: boxes (n, 4) in fractions of it, class indices (n,), and which are difficult (n,)."""

    boxes: Floats
    labels: Integers
    difficult: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


class LabelledImage(NamedTuple):
    """One image file, its size in bytes, and what is in it."""

    path: Path
    bytes: int
    objects: Objects


def read_sets(root: Path, sets: str) -> list[LabelledImage]:
    """Every image that *sets* names below *root*, in the order of its lists.

    *sets* is a comma-separated list of `trainval` (that list in every folder that has one) or `VOC2007/trainval`
    (in that folder only). Raises Fatal for anything missing, empty, broken or unknown.
    """
    images = [image for folder, name in _resolve(root, sets) for image in _read_set(folder, name)]
    _check_duplicates(images)
    return images


def digest(root: Path, images: Iterable[LabelledImage]) -> str:
    """Twelve hex digits over the name below *root*, the size and the objects of every image, in order.

    Pixels are not read: after a reclaim every start would wait for gigabytes.
    """
    whole = hashlib.sha256()
    for image in images:
        whole.update(f"{image.path.relative_to(root)} {image.bytes}\n".encode())
        for part in image.objects:
            whole.update(part.tobytes())
    return whole.hexdigest()[:12]


def _resolve(root: Path, sets: str) -> list[tuple[Path, str]]:
    """The folder and the name of each image set of the comma-separated *sets*, such as ``VOC2007/trainval``.

    Raises:
        Fatal: there is none of that name.
    """
    folders = _folders(root)
    chosen: list[tuple[Path, str]] = []
    for item in (part.strip() for part in sets.split(",")):
        year, _, name = item.rpartition("/")
        named = [folder for folder in folders if not year or folder.name == year]
        matches = [(folder, name) for folder in named if name and is_file(_list_file(folder, name))]
        if not matches:
            available = ", ".join(
                sorted(f"{f.name}/{p.stem}" for f in folders for p in _list_file(f, "x").parent.glob("*.txt"))
            )
            raise Fatal(f"{root}: no image set {item!r}; available sets: {available or 'none'}")
        chosen += [match for match in matches if match not in chosen]
    return chosen


def _folders(root: Path) -> list[Path]:
    if not is_folder(root):
        raise Fatal(f"{root}: not a folder; use a VOC folder, or one that contains VOC folders")
    candidates = [root, *sorted(path for path in root.iterdir() if is_folder(path))]
    folders = [path for path in candidates if all(is_folder(path / part) for part in SUBFOLDERS)]
    if not folders:
        names = ", ".join(SUBFOLDERS)
        raise Fatal(f"{root}: neither it nor a folder in it contains {names}; use a VOC folder")
    return folders


def _list_file(folder: Path, name: str) -> Path:
    return folder / "ImageSets" / "Main" / f"{name}.txt"


def _read_set(folder: Path, name: str) -> list[LabelledImage]:
    """The images of a set, in the order of its list.

    Raises:
        Fatal: it lists none, or one that is missing.
    """
    listing = _list_file(folder, name)
    # Lists of one class carry a second column; the image's name is always the first.
    names = [line.split()[0] for line in _text(listing).splitlines() if line.strip()]
    if not names:
        raise Fatal(f"{listing}: lists no image; fill it or choose another set")
    present = {path.name for path in (folder / "JPEGImages").iterdir()}
    missing = [n for n in names if f"{n}.jpg" not in present]
    if missing:
        which = f"{len(missing)} of {counted(len(names), 'image')} {'is' if len(missing) == 1 else 'are'}"
        raise Fatal(
            f"{listing}: {which} not in JPEGImages "
            f"({_some(f'{n}.jpg' for n in missing)}); add them, or remove them from the list"
        )
    # On a network file system each small file takes milliseconds of waiting.
    with ThreadPoolExecutor(_READERS) as readers:
        return list(readers.map(_read_image, (folder / "JPEGImages" / f"{n}.jpg" for n in names)))


def _read_image(path: Path) -> LabelledImage:
    return LabelledImage(
        path, path.stat().st_size, _read_objects(path.parent.parent / "Annotations" / f"{path.stem}.xml")
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise Fatal(f"{path}: cannot be read ({error_text(problem)}); replace the file") from problem


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:_SHOWN]) + (", ..." if len(listed) > _SHOWN else "")


def _read_objects(path: Path) -> Objects:
    """The objects of an annotation: boxes (n, 4) in pixels, labels (n,), and which are difficult (n,).

    Raises:
        Fatal: it is missing, or not as PASCAL VOC has it.
    """
    if not is_file(path):
        raise Fatal(f"{path}: file not found; every listed image needs an annotation")
    try:
        root = ElementTree.fromstring(_text(path))
    except ElementTree.ParseError as problem:
        raise Fatal(f"{path}: not well-formed XML ({problem}); replace the file") from problem
    width, height = _number(root, "size/width", path), _number(root, "size/height", path)
    if min(width, height) <= 0:
        raise Fatal(f"{path}: size {width:g} x {height:g}; both must be above 0, correct the annotation")
    entries = root.findall("object")
    if not entries:
        raise Fatal(f"{path}: no <object>; annotate one or remove the image from the list")
    boxes = [_box(entry, width, height, path) for entry in entries]
    labels = [_label(entry, path) for entry in entries]
    difficult = [entry.findtext("difficult", "0").strip() == "1" for entry in entries]
    return Objects(np.array(boxes, np.float32), np.array(labels, np.int32), np.array(difficult, np.bool_))


def _number(entry: ElementTree.Element, tag: str, path: Path) -> float:
    text = (entry.findtext(tag) or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Fatal(f"{path}: <{tag}> is {text!r}, not a number; correct the annotation")
    return value


def _box(entry: ElementTree.Element, width: float, height: float, path: Path) -> tuple[float, float, float, float]:
    """The box in fractions of the image; VOC counts pixels from 1 and includes the last, hence the -1 on one side."""
    xmin, ymin, xmax, ymax = (_number(entry, f"bndbox/{tag}", path) for tag in ("xmin", "ymin", "xmax", "ymax"))
    box = (
        max(xmin - 1, 0) / width, max(ymin - 1, 0) / height, min(xmax, width) / width, min(ymax, height) / height,
    )  # fmt: skip
    if xmax <= xmin or ymax <= ymin or box[0] >= box[2] or box[1] >= box[3]:
        raise Fatal(
            f"{path}: box ({xmin:g}, {ymin:g}, {xmax:g}, {ymax:g}) has no area inside the image of "
            f"{width:g} x {height:g}; correct the annotation"
        )
    return box


def _label(entry: ElementTree.Element, path: Path) -> int:
    name = (entry.findtext("name") or "").strip()
    if name not in CLASSES:
        raise Fatal(f"{path}: unknown class {name!r}; VOC's are {', '.join(CLASSES)}")
    return CLASSES.index(name)


def _check_duplicates(images: list[LabelledImage]) -> None:
    seen: set[Path] = set()
    for image in images:
        if image.path in seen:
            raise Fatal(f"{image.path}: listed twice; keep it in one of the sets")
        seen.add(image.path)
