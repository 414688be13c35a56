import numpy as np
import pytest
from PIL import Image

from spotmpi.programs.augment import MEAN_COLOUR, Pixels, augment, crop, distort, expand, plain
from spotmpi.programs.boxes import Floats, Integers

Scene = tuple[Image.Image, Floats, Integers]
RED = np.array([200, 20, 20])


@pytest.fixture
def scene() -> Scene:
    """A red object on grey, its box in fractions, and its class."""
    pixels = np.full((200, 300, 3), 120, np.uint8)
    pixels[60:140, 90:180] = RED
    box = np.array([[90 / 300, 60 / 200, 180 / 300, 140 / 200]], np.float32)
    return Image.fromarray(pixels), box, np.array([6], np.int32)


def red_share(pixels: Pixels, box: Floats) -> tuple[float, float]:
    """Share of red pixels inside the box and outside of it, in an image (3, height, width)."""
    red = (pixels[0].astype(int) - pixels[1]) > 60
    height, width = red.shape
    left, top, right, bottom = np.rint(box * [width, height, width, height]).astype(int)
    mask = np.zeros_like(red)
    mask[top:bottom, left:right] = True
    return float(red[mask].mean()), float(red[~mask].mean()) if (~mask).any() else 0.0


def test_a_plain_sample_is_only_resized(scene: Scene) -> None:
    sample = plain(*scene)
    assert sample.pixels.shape == (3, 300, 300) and sample.pixels.dtype == np.uint8
    assert sample.boxes is scene[1]
    inside, outside = red_share(sample.pixels, sample.boxes[0])
    assert inside > 0.98 and outside < 0.01


def test_boxes_follow_the_object_through_expansion_cropping_resizing_and_mirroring(scene: Scene) -> None:
    for seed in range(60):
        random = np.random.default_rng(seed)
        image, boxes = expand(scene[0], scene[1], random)
        image, boxes, labels = crop(image, boxes, scene[2], random)
        inside, outside = red_share(plain(image, boxes, labels).pixels, boxes[0])
        assert inside > 0.9 and outside < 0.05, seed
        assert labels.tolist() == [6]


def test_a_whole_augmented_sample_still_shows_its_object_where_the_box_says(scene: Scene) -> None:
    mirrored = 0
    for seed in range(60):
        sample = augment(*scene, np.random.default_rng(seed))
        assert sample.pixels.shape == (3, 300, 300)
        assert (sample.boxes >= 0).all() and (sample.boxes <= 1).all()
        assert (sample.boxes[:, 2:] > sample.boxes[:, :2]).all()
        # Colours may have changed, yet object and surroundings still differ.
        left, top, right, bottom = np.rint(sample.boxes[0] * 300).astype(int)
        middle = sample.pixels[:, (top + bottom) // 2, (left + right) // 2].astype(int)
        assert middle[0] - middle[1:].min() > 15, seed
        mirrored += left + right > 300
    assert 15 < mirrored < 45


def test_the_same_generator_gives_the_same_sample_and_another_one_does_not(scene: Scene) -> None:
    first, again, other = (augment(*scene, np.random.default_rng(seed)) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.pixels, again.pixels)
    np.testing.assert_array_equal(first.boxes, again.boxes)
    assert (first.pixels != other.pixels).any()


def test_expansion_happens_half_the_time_and_fills_with_the_mean_colour(scene: Scene) -> None:
    expanded = 0
    for seed in range(100):
        image, boxes = expand(scene[0], scene[1], np.random.default_rng(seed))
        if image.size != scene[0].size:
            expanded += 1
            assert image.width <= 1200 and image.height <= 800
            corners = {image.getpixel((0, 0)), image.getpixel((image.width - 1, image.height - 1))}
            assert MEAN_COLOUR in corners and corners <= {MEAN_COLOUR, (120, 120, 120)}
            size = (boxes[0, 2:] - boxes[0, :2]) * image.size
            np.testing.assert_allclose(size, [90, 80], atol=1e-3)
    assert 35 < expanded < 65


def test_windows_vary_and_every_one_of_them_holds_an_objects_centre() -> None:
    image = Image.new("RGB", (500, 375))
    boxes = np.array([[0.05, 0.05, 0.1, 0.1], [0.7, 0.6, 0.95, 0.95]], np.float32)
    kept_labels, whole = [], 0
    for seed in range(200):
        window, cropped, labels = crop(image, boxes, np.array([1, 2], np.int32), np.random.default_rng(seed))
        assert len(labels) >= 1 and (cropped[:, 2:] > cropped[:, :2]).all()
        assert 0.5 * 0.95 < (window.width / 500) / (window.height / 375) < 2 * 1.05
        whole += window.size == image.size
        kept_labels.append(tuple(labels))
    assert 20 < whole < 140
    assert set(kept_labels) == {(1,), (2,), (1, 2)}


def test_distortion_changes_colours_but_neither_size_nor_mode(scene: Scene) -> None:
    changed = [
        np.abs(np.asarray(distort(scene[0], np.random.default_rng(seed))).astype(int) - np.asarray(scene[0]))
        for seed in range(40)
    ]
    assert all(difference.shape == (200, 300, 3) for difference in changed)
    assert 25 <= sum(difference.any() for difference in changed) <= 40
    assert max(int(difference.max()) for difference in changed) > 60


def test_a_grey_image_becomes_three_channels() -> None:
    sample = plain(Image.new("L", (40, 30), 77), np.zeros((0, 4), np.float32), np.zeros(0, np.int32))
    assert (sample.pixels == 77).all() and sample.pixels.shape == (3, 300, 300)
