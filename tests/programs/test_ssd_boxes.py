import numpy as np
import pytest

from spotmpi.programs.boxes import (
    BOXES_PER_CELL,
    MAP_SIZES,
    Floats,
    corners,
    decode,
    default_boxes,
    encode,
    match,
    overlaps,
    suppress,
)
from spotmpi.programs.detection import DETECTIONS_PER_IMAGE, detect

DEFAULTS = default_boxes()


def array(*rows: list[float]) -> Floats:
    return np.array(rows, np.float32).reshape(-1, 4)


def test_there_are_8732_default_boxes_over_six_maps() -> None:
    assert DEFAULTS.shape == (8732, 4)
    assert [cells**2 * each for cells, each in zip(MAP_SIZES, BOXES_PER_CELL, strict=True)] == [
        5776, 2166, 600, 150, 36, 4,
    ]  # fmt: skip


def test_the_first_cell_holds_the_four_shapes_of_the_finest_map() -> None:
    side, between, root = 30 / 300, (30 * 60) ** 0.5 / 300, 2**0.5
    centre = 0.5 * 8 / 300
    expected = array(
        [centre, centre, side, side],
        [centre, centre, between, between],
        [centre, centre, side * root, side / root],
        [centre, centre, side / root, side * root],
    )
    np.testing.assert_allclose(DEFAULTS[:4], expected, rtol=1e-6)


def test_boxes_run_along_a_row_first() -> None:
    np.testing.assert_allclose(DEFAULTS[4, :2], [1.5 * 8 / 300, 0.5 * 8 / 300], rtol=1e-6)
    np.testing.assert_allclose(DEFAULTS[4 * 38, :2], [0.5 * 8 / 300, 1.5 * 8 / 300], rtol=1e-6)


def test_the_last_map_holds_boxes_of_264_pixels_that_may_leave_the_image() -> None:
    np.testing.assert_allclose(DEFAULTS[-4], [0.5, 0.5, 0.88, 0.88], rtol=1e-6)
    assert DEFAULTS[-2, 2] == pytest.approx(0.88 * 2**0.5)


def test_overlap_is_intersection_over_union() -> None:
    first = array([0, 0, 2, 2])
    second = array([1, 1, 3, 3], [0, 0, 2, 2], [5, 5, 6, 6], [0, 0, 1, 2])
    np.testing.assert_allclose(overlaps(first, second), [[1 / 7, 1, 0, 0.5]], rtol=1e-6)


def test_an_object_too_small_for_the_threshold_still_gets_its_best_box() -> None:
    tiny = array([0.5, 0.5, 0.51, 0.51])
    matched = match(tiny, DEFAULTS)
    assert (matched >= 0).sum() == 1
    best = overlaps(corners(DEFAULTS), tiny)[:, 0].argmax()
    assert matched[best] == 0


def test_two_objects_that_want_the_same_box_get_one_each() -> None:
    objects = array([0.5, 0.5, 0.51, 0.51], [0.5, 0.5, 0.511, 0.511])
    matched = match(objects, DEFAULTS)
    assert sorted(matched[matched >= 0]) == [0, 1]
    shared = overlaps(corners(DEFAULTS), objects)
    # The larger one overlaps the contested box more, so it is served first.
    assert matched[shared[:, 1].argmax()] == 1


def test_a_box_goes_to_the_object_it_overlaps_most_when_above_the_threshold() -> None:
    objects = array([0.1, 0.1, 0.6, 0.6], [0.3, 0.15, 0.8, 0.65])
    matched = match(objects, DEFAULTS)
    shared = overlaps(corners(DEFAULTS), objects)
    forced = shared.argmax(axis=0)
    free = np.setdiff1d(np.flatnonzero(shared.max(axis=1) > 0.5), forced)
    assert len(free) > 10
    np.testing.assert_array_equal(matched[free], shared[free].argmax(axis=1))
    assert (matched[np.setdiff1d(np.flatnonzero(shared.max(axis=1) <= 0.5), forced)] == -1).all()


def test_an_image_without_objects_is_all_background() -> None:
    offsets, labels = encode(array(), np.zeros(0, np.int32), DEFAULTS)
    assert not offsets.any() and not labels.any()


def test_offsets_follow_the_papers_formula() -> None:
    default = array([0.5, 0.5, 0.2, 0.4])
    offsets, labels = encode(array([0.41, 0.25, 0.65, 0.67]), np.array([14], np.int32), default)
    expected = [0.03 / 0.2 / 0.1, -0.04 / 0.4 / 0.1, np.log(0.24 / 0.2) / 0.2, np.log(0.42 / 0.4) / 0.2]
    np.testing.assert_allclose(offsets[0], expected, rtol=1e-5)
    assert labels.tolist() == [15]


def test_decoding_undoes_encoding() -> None:
    random = np.random.default_rng(0)
    low = random.uniform(0, 0.6, size=(5, 2))
    objects = np.concatenate([low, low + random.uniform(0.05, 0.4, size=(5, 2))], axis=1).astype(np.float32)
    offsets, labels = encode(objects, np.arange(5, dtype=np.int32), DEFAULTS)
    positive = labels > 0
    assert set(labels[positive]) == {1, 2, 3, 4, 5}
    np.testing.assert_allclose(decode(offsets, DEFAULTS)[positive], objects[labels[positive] - 1], atol=1e-6)


def test_suppression_keeps_the_best_of_a_heap_and_everything_apart_from_it() -> None:
    boxes = array([0, 0, 10, 10], [1, 0, 11, 10], [20, 20, 30, 30], [0, 0, 10, 6], [0, 0, 10, 4])
    scores = np.array([0.8, 0.9, 0.1, 0.5, 0.4], np.float32)
    # IoU with the best (1,0,11,10): 90/110 goes, 54/106 goes, 36/104 stays.
    assert suppress(boxes, scores, threshold=0.45).tolist() == [1, 4, 2]


def test_a_suppressed_box_suppresses_nothing() -> None:
    boxes = array([0, 0, 10, 10], [4, 0, 14, 10], [8, 0, 18, 10])
    scores = np.array([0.9, 0.8, 0.7], np.float32)
    assert suppress(boxes, scores, threshold=0.4).tolist() == [0, 2]


def test_detection_finds_the_encoded_objects_again() -> None:
    objects = array([0.1, 0.2, 0.5, 0.7], [0.6, 0.6, 0.9, 0.95])
    offsets, labels = encode(objects, np.array([3, 7], np.int32), DEFAULTS)
    confidences = np.zeros((8732, 21), np.float32)
    confidences[np.arange(8732), labels] = 12
    detections = detect(offsets, confidences, DEFAULTS)
    best = [detections.labels.tolist().index(label) for label in (3, 7)]
    np.testing.assert_allclose(detections.boxes[best], objects, atol=1e-5)
    assert len(detections.scores) == 2 and (np.diff(detections.scores) <= 0).all()


def test_detection_of_a_network_that_knows_nothing_is_bounded() -> None:
    random = np.random.default_rng(1)
    offsets = random.normal(0, 50, size=(8732, 4)).astype(np.float32)
    detections = detect(offsets, random.normal(size=(8732, 21)).astype(np.float32), DEFAULTS)
    assert len(detections.scores) == DETECTIONS_PER_IMAGE
    assert np.isfinite(detections.boxes).all() and detections.boxes.min() >= 0 and detections.boxes.max() <= 1
