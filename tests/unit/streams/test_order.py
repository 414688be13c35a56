"""Which rows a batch has, and which batches a rank gets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotmpi.streams.errors import StreamError
from spotmpi.streams.order import Order, Part, Settings, differences, digest, read_settings
from tests.unit.streams.data import numbered_rows, parts_of

PARTS = [Part("a", 5, 10, "1"), Part("empty", 0, 0, "1"), Part("b", 3, 6, "1"), Part("c", 4, 8, "1")]  # 12 rows
ORIGIN = {"a": 0, "b": 5, "c": 8}


def order(batch: int = 5, parts: list[Part] = PARTS, **values: object) -> Order:
    return Order(parts, Settings("set", batch, **values))  # type: ignore[arg-type]


def rows(order: Order, number: int) -> list[int]:
    """The rows of a batch, numbered through the whole source."""
    return [ORIGIN[each.part.name] + row for each in order.slices(number) for row in range(each.start, each.stop)]


@st.composite
def orders(draw: st.DrawFn) -> Order:
    """Any order of any source with a batch."""
    lengths = draw(st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any))
    last_batch = draw(st.sampled_from(["keep", "drop", "pad"]))
    batch = draw(st.integers(1, sum(lengths) if last_batch == "drop" else 40))
    how = draw(st.sampled_from(["", "shuffle", "shuffle_batches"]))
    table = Settings(
        "set",
        batch,
        draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 3)),
        shuffle=how == "shuffle",
        shuffle_block=draw(st.integers(1, 50)),
        shuffle_batches=how == "shuffle_batches",
        last_batch=last_batch,
    )
    return Order(parts_of(lengths, draw(st.integers(0, 12))), table)


@settings(max_examples=60)
@given(orders())
def test_an_epoch_has_each_row_once_without_an_incomplete_batch_and_with_a_padded_one(order: Order) -> None:
    last_batch, batch = order.settings.last_batch, order.settings.batch
    for epoch in range(order.settings.epochs):
        numbers = range(epoch * order.epoch_batches, (epoch + 1) * order.epoch_batches)
        drawn = [numbered_rows(order, number) for number in numbers]
        found = [row for batch in drawn for row in batch]
        assert set(found) <= set(range(order.rows))
        assert last_batch == "keep" or {len(rows) for rows in drawn} == {batch}
        if last_batch == "pad":
            assert set(found) == set(range(order.rows)) and len(found) - order.rows < batch
        else:
            assert (
                len(found) == len(set(found)) == (order.rows if last_batch == "keep" else order.rows // batch * batch)
            )


@settings(max_examples=60)
@given(orders(), st.lists(st.tuples(st.integers(1, 5), st.integers(0, 8)), max_size=3), st.integers(1, 5))
def test_each_batch_is_taken_once_with_whatever_ranks_the_run_continues_from_wherever_it_stopped(
    order: Order, attempts: list[tuple[int, int]], last: int
) -> None:
    taken: list[int] = []
    for ranks, rounds in [*attempts, (last, order.total)]:
        if order.settings.last_batch == "drop" and order.total < ranks and not taken:
            return  # refused, as another test says
        shares = [list(order.numbers(len(taken), rank, ranks))[:rounds] for rank in range(ranks)]
        assert order.settings.last_batch == "keep" or len({len(share) for share in shares}) == 1
        taken += sorted(number for share in shares for number in share)
    assert taken == list(range(len(taken)))
    over = len(taken) - order.total
    if order.settings.last_batch == "pad":
        assert 0 <= over < max(last, *(ranks for ranks, _ in attempts), 1)
    else:
        assert 0 >= over >= {"keep": 0, "drop": 1 - last}[order.settings.last_batch]


def test_batches_span_parts_and_leave_out_empty_ones() -> None:
    assert [str(each) for each in order(batch=7).slices(0)] == ["a rows 0 to 4", "b rows 0 to 1"]


def test_an_incomplete_batch_is_dropped_kept_or_padded_with_the_first_rows() -> None:
    assert order(last_batch="drop").epoch_batches == 2
    assert rows(order(last_batch="keep"), 2) == [10, 11]
    assert rows(order(last_batch="pad"), 2) == [10, 11, 0, 1, 2]


def test_padding_repeats_a_source_that_is_smaller_than_a_batch() -> None:
    assert rows(order(batch=25, last_batch="pad"), 0) == [*range(12), *range(12), 0]


def test_the_next_epoch_begins_with_the_first_row_again() -> None:
    assert rows(order(epochs=2), 2) == rows(order(epochs=2), 0)


def test_shuffled_epochs_differ_and_repeat() -> None:
    shuffled = [order(batch=1, epochs=2, shuffle_batches=True, seed=seed) for seed in (1, 1, 2)]
    first, again, other = ([rows(each, number) for number in range(24)] for each in shuffled)
    assert first == again
    assert first != other
    assert first[:12] != first[12:]


def test_the_order_of_a_seed_never_changes() -> None:
    assert [rows(order(batch=4, shuffle_batches=True, seed=7), number)[0] for number in range(3)] == [4, 0, 8]
    assert [order(seed=7).seed(number) for number in range(2)] == [2680530905, 1781599302]


@pytest.mark.parametrize("start", [24, 25, 1000])
@pytest.mark.parametrize("last_batch", ["drop", "pad", "keep"])
def test_a_stream_at_its_end_gives_nothing(start: int, last_batch: str) -> None:
    assert len(order(batch=1, epochs=2, last_batch=last_batch).numbers(start, 1, 2)) == 0


def test_padded_rounds_begin_with_the_first_batch_again() -> None:
    padded = order(batch=4, last_batch="pad")  # 3 batches
    assert [padded.numbers(0, rank, 2)[-1] for rank in range(2)] == [2, 3]
    assert (padded.slices(3), padded.seed(3)) == (padded.slices(0), padded.seed(0))


def test_more_ranks_than_batches_are_refused_or_padded() -> None:
    with pytest.raises(StreamError, match="2 batches for 3 ranks: each rank needs one; use fewer ranks"):
        order().numbers(0, 0, 3)
    assert [list(order(last_batch="pad").numbers(0, rank, 4)) for rank in range(4)] == [[0], [1], [2], [3]]
    assert [list(order(last_batch="keep").numbers(0, rank, 4)) for rank in range(4)] == [[0], [1], [2], []]


def test_a_negative_position_is_refused() -> None:
    with pytest.raises(StreamError, match="start = -1"):
        order().numbers(-1, 0, 1)


@pytest.mark.parametrize("parts", [[], [Part("empty", 0, 0, "1")]])
def test_an_empty_source_is_refused(parts: list[Part]) -> None:
    with pytest.raises(StreamError, match="the source set is empty: none of its parts has a row; write rows"):
        order(parts=parts)


def test_a_source_without_a_complete_batch_is_refused() -> None:
    with pytest.raises(StreamError, match="has 12 rows and a batch 13: no batch is complete"):
        order(batch=13)


def test_a_digest_changes_with_name_rows_size_and_version() -> None:
    one = Part("a", 1, 2, "3")
    others = [one._replace(name="b"), one._replace(rows=2), one._replace(size=3), one._replace(version="4")]
    assert len({digest([each]) for each in [one, one, *others]}) == 5


def test_differences_name_the_first_parts() -> None:
    old = [Part(str(number), 1, 1, "old") for number in range(9)]
    new = [part if part.name == "8" else part._replace(version="new") for part in old]
    assert differences(old, new) == "0, 1, 2, 3, 4 and 3 more"
    assert differences(old, old[:-1]) == "8"


def test_settings_survive_their_json() -> None:
    settings = Settings("s3://set/*.parquet", 7, prepare="flow:prepare", shuffle_batches=True)
    assert read_settings(settings.to_json()) == settings
