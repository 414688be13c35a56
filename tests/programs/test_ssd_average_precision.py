import numpy as np
import pytest

from spotmpi.programs.detection import Detections, average_precisions
from spotmpi.programs.voc import CLASSES, Objects

Box = tuple[float, float, float, float]
CAR, DOG = CLASSES.index("car"), CLASSES.index("dog")
FIRST, SECOND, THIRD = (0, 0, 10, 10), (20, 20, 30, 30), (50, 50, 60, 60)
NEARLY_FIRST = (0, 0, 10, 5)  # IoU 0.5 with HERE: just counts
TOO_SMALL = (0, 0, 10, 4.9)


def objects(*items: tuple[Box, int, bool]) -> Objects:
    boxes, labels, difficult = zip(*items, strict=True) if items else ((), (), ())
    return Objects(np.array(boxes, np.float32).reshape(-1, 4), np.array(labels, np.int32), np.array(difficult, bool))


def detections_of(*items: tuple[Box, int, float]) -> Detections:
    boxes, labels, scores = zip(*items, strict=True) if items else ((), (), ())
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4), np.array(labels, np.int32), np.array(scores, np.float32)
    )


def test_the_value_of_a_case_worked_out_by_hand() -> None:
    # Three cars count (one more is difficult). By score: 0.9 right, 0.8 wrong, 0.7 on the difficult one (left out),
    # 0.6 right, 0.5 a second hit on the first car: wrong.
    truth = [objects((FIRST, CAR, False), (SECOND, CAR, True)), objects((FIRST, CAR, False), (SECOND, CAR, False))]
    detections = [
        detections_of((FIRST, CAR, 0.9), (SECOND, CAR, 0.7), (FIRST, CAR, 0.5)),
        detections_of((THIRD, CAR, 0.8), (NEARLY_FIRST, CAR, 0.6)),
    ]
    # Recall 1/3, 1/3, 2/3, 2/3 with precision 1, 1/2, 2/3, 1/2: recalls 0 to 0.3 give 1, 0.4 to 0.6 give 2/3, then 0.
    assert average_precisions(detections, truth) == {"car": pytest.approx((4 * 1 + 3 * 2 / 3) / 11)}


def test_a_recall_that_falls_exactly_on_a_point_counts_for_it() -> None:
    boxes = [(100.0 * i, 0, 100.0 * i + 10, 10) for i in range(10)]
    truth = [objects(*((box, CAR, False) for box in boxes))]
    for hits in range(11):
        detections = [detections_of(*((box, CAR, 0.9 - 0.01 * i) for i, box in enumerate(boxes[:hits])))]
        expected = (hits + 1) / 11 if hits else 0
        assert average_precisions(detections, truth) == {"car": pytest.approx(expected)}


def test_perfect_detections_give_one() -> None:
    truth = [objects((FIRST, CAR, False), (SECOND, DOG, False))]
    assert average_precisions([detections_of((FIRST, CAR, 0.5), (SECOND, DOG, 0.6))], truth) == {"car": 1, "dog": 1}


def test_only_classes_that_have_objects_which_count_have_a_precision() -> None:
    truth = [objects((FIRST, CAR, False), (SECOND, DOG, True))]
    assert average_precisions([detections_of((THIRD, DOG, 0.9), (FIRST, CAR, 0.8))], truth) == {"car": 1}


def test_a_box_of_the_wrong_class_or_below_half_overlap_is_wrong() -> None:
    truth = [objects((FIRST, CAR, False))]
    assert average_precisions([detections_of((FIRST, DOG, 0.9))], truth) == {"car": 0}
    assert average_precisions([detections_of((TOO_SMALL, CAR, 0.9))], truth) == {"car": 0}
    assert average_precisions([detections_of((NEARLY_FIRST, CAR, 0.9))], truth) == {"car": 1}


def test_a_detection_never_counts_for_an_object_of_another_image() -> None:
    truth = [objects((FIRST, CAR, False)), objects((SECOND, CAR, False))]
    detections = [detections_of((SECOND, CAR, 0.9)), detections_of((FIRST, CAR, 0.9))]
    assert average_precisions(detections, truth) == {"car": 0}


def test_nothing_to_find_gives_no_number() -> None:
    assert average_precisions([detections_of()], [objects((FIRST, CAR, True))]) == {}


def test_lists_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="1 images with detections but 2"):
        average_precisions([detections_of()], [objects(), objects()])
