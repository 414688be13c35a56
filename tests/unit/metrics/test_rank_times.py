import pytest

from spotmpi.agent import protocol
from spotmpi.metrics import rates
from spotmpi.metrics.rank_times import unpack
from tests.unit.metrics.test_rates import window


def test_times_of_ranks_come_back_as_they_were_packed() -> None:
    one, other = [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    (rows,) = unpack([protocol.pack(one), protocol.pack(other)], 3)
    assert rows.shape == (2, 2, 3)
    assert rows.tolist() == [[pytest.approx(row) for row in one], [pytest.approx(row) for row in other]]


def test_damaged_and_foreign_texts_are_left_out() -> None:
    assert unpack(["?", "", "AAAA"], 3) == []


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
