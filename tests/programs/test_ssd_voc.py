import hashlib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from spotmpi.programs import shapes
from spotmpi.programs.exits import Fatal
from spotmpi.programs.voc import CLASSES, digest, read_sets

EMPTY = "<annotation><size><width>9</width><height>9</height></size></annotation>"


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    shapes.write_shapes(tmp_path / "VOC2007", images=4, test_images=2)
    return tmp_path / "VOC2007"


def annotation(voc: Path, number: int = 1) -> Path:
    return voc / "Annotations" / f"{number:06d}.xml"


def read(path: Path, tag: str) -> str:
    text = ElementTree.parse(path).getroot().findtext(tag)
    assert text is not None
    return text


def change(path: Path, tag: str, text: str | None) -> None:
    tree = ElementTree.parse(path)
    element = tree.find(tag)
    assert element is not None
    element.text = text
    tree.write(path)


def test_every_listed_image_comes_with_its_objects_in_fractions_of_it(voc: Path) -> None:
    images = read_sets(voc, "trainval")
    assert [image.path.name for image in images] == ["000001.jpg", "000002.jpg", "000003.jpg", "000004.jpg"]
    first = annotation(voc)
    width, height = (int(read(first, f"size/{side}")) for side in ("width", "height"))
    xmin, ymin, xmax, ymax = (int(read(first, f"object/bndbox/{tag}")) for tag in ("xmin", "ymin", "xmax", "ymax"))
    expected = [(xmin - 1) / width, (ymin - 1) / height, xmax / width, ymax / height]
    np.testing.assert_allclose(images[0].objects.boxes[0], expected, rtol=1e-6)
    assert CLASSES[images[0].objects.labels[0]] == read(first, "object/name")


def test_years_are_combined_and_a_set_without_year_means_every_folder_that_has_it(tmp_path: Path) -> None:
    shapes.write_shapes(tmp_path / "VOC2007", images=2, test_images=1)
    shapes.write_shapes(tmp_path / "VOC2012", images=3, seed=5)
    (tmp_path / "notes").mkdir()
    assert len(read_sets(tmp_path, "trainval")) == 5
    assert len(read_sets(tmp_path, "VOC2007/trainval, VOC2012/trainval")) == 5
    assert len(read_sets(tmp_path, "VOC2012/trainval")) == 3
    assert len(read_sets(tmp_path, "test")) == 1


def test_difficult_objects_are_kept_and_marked(voc: Path) -> None:
    change(annotation(voc), "object/difficult", "1")
    objects = read_sets(voc, "trainval")[0].objects
    assert objects.difficult[0] and len(objects.boxes) == len(objects.difficult)


def test_floating_point_coordinates_as_in_voc2012_are_read(voc: Path) -> None:
    change(annotation(voc), "object/bndbox/xmin", "1.5")
    expected = 0.5 / int(read(annotation(voc), "size/width"))
    assert read_sets(voc, "trainval")[0].objects.boxes[0, 0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("tag", "text", "message"),
    [
        ("object/name", "unicorn", "unknown class 'unicorn'"),
        ("object/bndbox/xmax", "wide", "<bndbox/xmax> is 'wide', not a number"),
        ("object/bndbox/ymax", "nan", "<bndbox/ymax> is 'nan', not a number"),
        ("object/bndbox/xmax", "0", "has no area"),
        ("object/bndbox/xmin", "100000", "has no area"),
        ("size/width", "0", "both must be above 0"),
        ("size/height", None, "<size/height> is '', not a number"),
    ],
)
def test_a_broken_annotation_is_one_line_with_its_file(voc: Path, tag: str, text: str | None, message: str) -> None:
    change(annotation(voc, 3), tag, text)
    with pytest.raises(Fatal) as caught:
        read_sets(voc, "trainval")
    assert str(caught.value).startswith(f"{annotation(voc, 3)}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("Annotations/000002.xml", "<annotation><filename>", r"000002\.xml: not well-formed XML"),
        ("Annotations/000002.xml", EMPTY, r"000002\.xml: no <object>"),
        ("ImageSets/Main/trainval.txt", "\n", r"trainval\.txt: lists no image"),
        ("ImageSets/Main/more.txt", "000002\n", r"000002\.jpg: listed twice"),
    ],
)
def test_a_file_without_its_content_or_with_that_of_another_is_refused(
    voc: Path, file: str, content: str, message: str
) -> None:
    (voc / file).write_text(content)
    with pytest.raises(Fatal, match=message):
        read_sets(voc, "trainval,more" if "more" in file else "trainval")


def test_missing_files_are_named(voc: Path) -> None:
    annotation(voc, 4).unlink()
    with pytest.raises(Fatal, match=r"000004\.xml: file not found"):
        read_sets(voc, "trainval")
    for number in (1, 2):
        (voc / "JPEGImages" / f"{number:06d}.jpg").unlink()
    with pytest.raises(Fatal, match=r"trainval.txt: 2 of 4 images are not in JPEGImages \(000001.jpg, 000002\.jpg\)"):
        read_sets(voc, "trainval")


@pytest.mark.parametrize("sets", ["VOC2012/trainval", "val", "", "trainval,,test", "../trainval"])
def test_an_unknown_set_says_which_ones_exist(voc: Path, sets: str) -> None:
    with pytest.raises(Fatal, match=r"no image set .*; available sets: VOC2007/test, VOC2007/trainval"):
        read_sets(voc.parent, sets)


def test_a_folder_that_is_none_or_holds_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="not a folder"):
        read_sets(tmp_path / "absent", "trainval")
    with pytest.raises(Fatal, match="contains JPEGImages, Annotations, ImageSets"):
        read_sets(tmp_path, "trainval")


def test_the_generator_draws_the_same_pictures_for_the_same_seed_only(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        shapes.main([str(tmp_path / name), "--images", "3", "--test-images", "1", "--seed", str(seed)])

    def content(name: str) -> list[str]:
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((tmp_path / name).rglob("*.*"))]

    assert content("a") == content("b") != content("c")


def test_drawn_boxes_lie_around_what_was_drawn(tmp_path: Path) -> None:
    shapes.write_shapes(tmp_path, images=30)
    images = read_sets(tmp_path, "trainval")
    assert len({int(label) for image in images for label in image.objects.labels}) == len(shapes.KINDS)
    assert any(image.objects.difficult.any() for image in images)
    for image in images:
        pixels = np.asarray(Image.open(image.path).convert("HSV"))[..., 1] > 100
        height, width = pixels.shape
        mask = np.zeros_like(pixels)
        for box in image.objects.boxes:
            left, top, right, bottom = np.rint(box * [width, height, width, height]).astype(int)
            mask[top:bottom, left:right] = True
        assert pixels[mask].mean() > 0.25
        assert pixels[~mask].mean() < 0.06


def test_the_digest_follows_names_sizes_and_objects_but_not_the_place(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shapes.write_shapes(tmp_path / name, images=2)

    def of(name: str) -> str:
        return digest(tmp_path / name, read_sets(tmp_path / name, "trainval"))

    original = of("a")
    assert of("b") == original
    change(annotation(tmp_path / "b"), "object/difficult", "1")
    assert of("b") != original
    with (tmp_path / "a" / "JPEGImages" / "000001.jpg").open("ab") as image:
        image.write(b"x")
    assert of("a") != original
