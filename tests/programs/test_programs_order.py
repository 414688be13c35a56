"""What is trained on depends on seed and counters alone."""

import pytest

from spotmpi.agent.protocol import STRONG, WEAK
from spotmpi.programs.exits import Fatal
from spotmpi.programs.sampling import (
    Batching,
    Order,
    divide,
    iteration_seed,
    iterations_left,
    sample_generator,
)


def test_every_epoch_holds_every_sample_once_in_an_order_of_its_own() -> None:
    order = Order(seed=3, samples=50)
    epochs = [order.slice(50 * epoch, 50) for epoch in range(3)]

    for number, epoch in enumerate(epochs):
        assert {of for of, _ in epoch} == {number}
        assert sorted(index for _, index in epoch) == list(range(50))
    first, second, _ = [[index for _, index in epoch] for epoch in epochs]
    assert first != second
    assert first != sorted(first)


def test_the_order_is_the_same_from_any_position_and_differs_by_seed() -> None:
    whole = Order(1, 30).slice(0, 100)

    assert Order(1, 30).slice(37, 63) == whole[37:]
    assert Order(2, 30).slice(0, 100) != whole


def test_a_batch_may_lie_across_two_epochs() -> None:
    assert [epoch for epoch, _ in Order(0, 10).slice(8, 4)] == [0, 0, 1, 1]


def test_the_randomness_of_a_sample_depends_on_seed_epoch_and_index() -> None:
    def draw(*key: int) -> float:
        return float(sample_generator(*key).random())

    assert draw(1, 2, 3) == draw(1, 2, 3)
    assert len({draw(1, 2, 3), draw(2, 2, 3), draw(1, 3, 3), draw(1, 2, 4)}) == 4


def test_ranks_and_iterations_have_seeds_of_their_own() -> None:
    seeds = {iteration_seed(seed, rank, iteration) for seed in (0, 1) for rank in range(8) for iteration in range(50)}

    assert len(seeds) == 2 * 8 * 50
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_a_global_batch_is_strong_scaling_and_a_batch_per_worker_weak() -> None:
    assert divide(32, None, 4) == Batching(8, 32, STRONG)
    assert divide(None, 8, 4) == Batching(8, 32, WEAK)


@pytest.mark.parametrize(("ranks", "parts"), [(8, 1), (4, 2), (2, 4), (6, 2), (1, 8), (3, 4)])
def test_where_a_run_may_have_8_ranks_no_part_is_larger_than_their_share_of_a_batch(ranks: int, parts: int) -> None:
    batching = divide(48, None, ranks, most_ranks=8)

    assert batching == Batching(48 // ranks, 48, STRONG, parts)
    assert batching.per_part <= 48 // 8
    assert batching.per_part * batching.parts * ranks == 48


@pytest.mark.parametrize(
    ("batch", "ranks", "remedy"), [(33, 2, "use 32 or 34"), (3, 4, "use 4"), (10, 4, "use 8 or 12")]
)
def test_a_global_batch_that_the_ranks_cannot_share_evenly_is_refused(batch: int, ranks: int, remedy: str) -> None:
    with pytest.raises(Fatal, match=f"--global-batch {batch} is not divisible by {ranks} ranks: {remedy}"):
        divide(batch, None, ranks)


def test_epochs_become_iterations_from_where_the_samples_stand() -> None:
    assert iterations_left(2, samples=100, position=0, global_batch=32) == 7
    assert iterations_left(2, samples=100, position=96, global_batch=8) == 13, "also with another batch after a resume"
    assert iterations_left(2, samples=100, position=224, global_batch=32) == 0
    assert iterations_left(0.5, samples=100, position=0, global_batch=10) == 5
