import numpy as np
import pytest

from spotmpi.programs.multibox import hard_negatives
from tests.programs.multibox_reference import cross_entropy, multibox_sums


def test_three_negatives_with_the_highest_loss_count_for_each_positive() -> None:
    losses = np.array([[9.0, 1, 2, 3, 4, 5, 6]])
    positive = np.array([[True, False, False, False, False, False, False]])
    assert hard_negatives(losses, positive).tolist() == [[False, False, False, False, True, True, True]]


def test_negatives_are_chosen_within_each_image() -> None:
    losses = np.array([[0.1, 0.2, 0.3, 0.4, 0.5], [90, 91, 92, 93, 94]])
    positive = np.array([[True, False, False, False, False], [False] * 5])
    chosen = hard_negatives(losses, positive)
    assert chosen.sum(axis=1).tolist() == [3, 0]


def test_no_more_negatives_are_chosen_than_there_are() -> None:
    positive = np.array([[True, True, False, False]])
    chosen = hard_negatives(np.ones((1, 4)), positive)
    assert chosen.tolist() == [[False, False, True, True]]


def test_equal_losses_count_in_box_order() -> None:
    positive = np.zeros((1, 50), bool)
    positive[0, 20] = True
    assert np.flatnonzero(hard_negatives(np.ones((1, 50)), positive)[0]).tolist() == [0, 1, 2]


def test_cross_entropy_survives_large_confidences() -> None:
    confidences = np.array([[[1000.0, 0.0], [0.0, 1000.0], [0.0, 0.0]]])
    losses = cross_entropy(confidences, np.array([[0, 0, 1]], np.int32))
    np.testing.assert_allclose(losses, [[0, 1000, np.log(2)]], atol=1e-9)


def test_the_sums_are_those_worked_out_by_hand() -> None:
    offsets = np.zeros((1, 6, 4), np.float32)
    targets = np.zeros_like(offsets)
    targets[0, 0] = [0.5, -0.5, 2, -3]
    targets[0, 1] = 7  # unmatched, so it must not count
    labels = np.array([[2, 0, 0, 0, 0, 0]], np.int32)
    confidences = np.zeros((1, 6, 3), np.float32)
    confidences[0, 5, 0] = 5  # an easy negative: the one that is left out
    confidences[0, 4, 0] = 1
    sums = multibox_sums(offsets, confidences, targets, labels)
    assert sums.location == pytest.approx(0.125 + 0.125 + 1.5 + 2.5)
    # The positive and three of the undecided boxes; both decided ones have a smaller loss.
    assert sums.confidence == pytest.approx(4 * np.log(3))
    assert sums.positives == 1


def test_a_batch_gives_the_sum_of_its_images() -> None:
    random = np.random.default_rng(3)
    offsets, targets = random.normal(size=(2, 4, 40, 4)).astype(np.float32)
    confidences = random.normal(size=(4, 40, 5)).astype(np.float32)
    labels = (random.integers(0, 5, size=(4, 40)) * (random.random((4, 40)) < 0.1)).astype(np.int32)
    whole = multibox_sums(offsets, confidences, targets, labels)
    parts = [
        multibox_sums(offsets[i : i + 1], confidences[i : i + 1], targets[i : i + 1], labels[i : i + 1])
        for i in range(4)
    ]
    assert whole.positives == sum(part.positives for part in parts) > 0
    assert whole.location == pytest.approx(sum(part.location for part in parts))
    assert whole.confidence == pytest.approx(sum(part.confidence for part in parts))
