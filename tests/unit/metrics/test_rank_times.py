import pytest

from spotmpi.agent import protocol
from spotmpi.metrics import rates
from spotmpi.metrics.rates import RankTimes, unpack
from tests.unit.metrics.test_rates import window


def test_times_of_ranks_come_back_as_they_were_packed() -> None:
    one, other = [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    (rows,) = unpack([protocol.pack(one), protocol.pack(other)], 3)
    assert rows.shape == (2, 2, 3)
    assert rows.tolist() == [[pytest.approx(row) for row in one], [pytest.approx(row) for row in other]]


PACKED = protocol.pack([[0.5, 0.25, 1.0]])


@pytest.mark.parametrize(
    "text",
    [
        "?",
        "",
        "AAAA",
        f"{PACKED[:4]}?{PACKED[4:]}",
        PACKED[:-4],
        *[protocol.pack([[0.5, value, 1.0]]) for value in (-1.0, 1e9, float("nan"), float("inf"))],
    ],
)
def test_damaged_and_foreign_texts_are_left_out(text: str) -> None:
    assert unpack([text], 3) == []
    assert [rows.tolist() for rows in unpack([text, PACKED], 3)] == [[[[0.5, 0.25, 1.0]]]]


def test_lines_of_other_numbers_of_ranks_are_apart_and_no_time_is_a_time() -> None:
    two = [[0.5, 0.0, 1.0], [0.0, 0.0, 0.0]]
    assert [rows.tolist() for rows in unpack([PACKED, protocol.pack(two), PACKED], 3)] == [
        [[[0.5, 0.25, 1.0]]] * 2,
        [two],
    ]


def timed(count: int, *means: float, **values: object) -> dict[str, object]:
    """A metric line of *count* iterations with these seconds on each rank."""
    return {"seconds": [max(means)] * count, "ranks": protocol.pack([[mean] * count for mean in means]), **values}


def test_the_mean_of_a_rank_is_over_lines_of_any_length() -> None:
    times = RankTimes()
    for line in (timed(3, 1.0, 2.0), timed(6, 2.0, 3.0), timed(3, 1.0, 2.0)):
        times.add(line)
    assert times.rank_seconds() == pytest.approx((1.5, 2.5))


def test_after_a_change_of_the_world_size_the_one_of_most_iterations_counts() -> None:
    times = RankTimes()
    for line in (timed(5, 1.0, 2.0, 3.0), timed(3, 1.0, 2.0), timed(3, 3.0, 4.0), timed(5, 5.0)):
        times.add(line)
    assert times.rank_seconds() == pytest.approx((2.0, 3.0))


def test_lines_without_times_count_neither_as_time_nor_as_waiting() -> None:
    times = RankTimes()
    assert (times.input_wait(), times.rank_seconds()) == (None, ())
    for line in ({"seconds": [], "waited": 5.0}, {"waited": 5.0}, {"seconds": [1.0]}, {"seconds": 1.0, "waited": 5.0}):
        times.add(line)
    assert times.input_wait() is None
    times.add({"seconds": [1.0, 1.0], "waited": 0.5})
    assert times.input_wait() == 0.25
    times.add({"seconds": [1.0], "waited": 9.5})
    assert times.input_wait() == 1.0, "no more than all time is spent waiting"


def test_the_mean_of_each_rank_and_the_share_of_waiting_leave_the_first_line_out() -> None:
    times = [[0.1, 0.1], [0.1, 0.3]]
    lines = [
        window(2, [9.0, 9.0], waited=18.0, ranks=protocol.pack([[9.0, 9.0], [9.0, 9.0]])),
        window(4, [0.1, 0.1], waited=0.05, ranks=protocol.pack(times)),
        window(6, [0.1, 0.1], waited=0.01, ranks=protocol.pack(times)),
        window(7, [0.1]),
    ]
    read = rates.read(lines)
    assert read.rank_seconds == pytest.approx((0.1, 0.2))
    assert read.input_wait == pytest.approx(0.15)
    assert "waited" not in read.series and "ranks" not in read.series
