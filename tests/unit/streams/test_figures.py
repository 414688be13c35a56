"""The figures of a stream: what a rank counts, the sums over ranks, and the advice."""

from __future__ import annotations

from typing import Any

import pytest

from spotmpi.agent import protocol
from spotmpi.agent.plan import WORKER, Member
from spotmpi.streams.engine import TaskLocation
from spotmpi.streams.figures import Figures, Reports, advice, text
from tests.unit.streams.flow import PREFIX

FIRST = Member(WORKER, 1)
FIGURES = Figures(
    ranks=2,
    workers=4,
    batches=100,
    fewest=50,
    most=50,
    skipped=0,
    in_flight=16,
    batches_per_second=20.0,
    mb_per_second=5.0,
    ranks_wait=0.0,
    workers_wait=0.0,
)


def report(rank: int, seconds: float, batches: int, **values: Any) -> dict[str, Any]:
    """The report of one of two ranks that wait half of their time for two workers that are always busy."""
    counts = {"ranks": 2, "workers": 2, "bytes": batches * 1_000_000, "in_flight": 8, "skipped": 0}
    return {"rank": rank, "seconds": seconds, "batches": batches, "waited": seconds / 2, "preparing": seconds} | (
        counts | values
    )


def reports(*values: dict[str, Any]) -> Reports:
    result = Reports()
    for each in values:
        result.add(each, 1)
    return result


def test_a_rank_reports_what_it_has_counted(make_stream: Any) -> None:
    reports: list[dict[str, Any]] = []
    stream = make_stream(rank=1, size=2, prepare=PREFIX + "fail_at_7", on_error="skip", workers=3, reports=reports)
    for _ in range(2):
        list(stream)
    assert all(protocol.valid(protocol.STREAM, each) for each in reports)
    assert all(each["seconds"] >= each["waited"] >= each["preparing"] >= 0 for each in reports)
    expected = {"rank": 1, "ranks": 2, "workers": 3, "batches": 20, "in_flight": 0}
    assert [{key: each[key] for key in expected} for each in reports if not each["in_flight"]] == [expected, expected]
    assert [each["batches"] for each in reports] == [0, 20, 0, 20]
    assert [each["skipped"] for each in reports if each["batches"]] == [1, 2]


def test_the_time_of_workers_that_only_postprocess_is_counted_by_itself() -> None:
    both = {"postprocess_workers": 4}
    first = report(0, 10.0, 100, ranks=1, **both, postprocessing=8.0)
    last = report(0, 20.0, 200, ranks=1, **both, preparing=15.0, postprocessing=44.0)
    figures = reports(first, last).total()
    assert figures and (figures.workers, figures.workers_wait) == (2, 0.75)
    assert figures.postprocess_workers == 4 and figures.postprocess_wait == pytest.approx(0.1)
    assert text(figures).endswith("2 workers wait 75 %, 4 postprocess workers wait 10 %")
    assert advice(figures, 0.5) == "ranks wait 50 % for results: 8 workers for the postprocess would do"
    idle = figures._replace(ranks_wait=0.0, workers_wait=0.3, postprocess_wait=0.8)
    assert advice(idle) == "postprocess workers wait 80 % for ranks: 1 worker for the postprocess would do"


def test_a_rank_reports_the_wait_that_has_not_ended(make_stream: Any, workers: Any) -> None:
    reports: list[dict[str, Any]] = []
    workers.places = [TaskLocation(FIRST, None), TaskLocation(FIRST, (0, "rows", 0.001))]
    next(iter(make_stream(reports=reports)))
    unknown, known, *_ = reports
    assert unknown["waited"] > unknown["preparing"] == 0
    assert known["waited"] >= known["preparing"] > 0


def test_a_rank_that_leaves_its_loop_early_reports_what_it_has_taken(make_stream: Any) -> None:
    reports: list[dict[str, Any]] = []
    for _ in make_stream(reports=reports):
        break
    assert [each["batches"] for each in reports] == [0, 1]


def test_a_rank_reports_that_it_uses_the_stream_with_the_first_batch_or_where_none_is_left(make_stream: Any) -> None:
    """By that the agent knows a program that took no batch, also where its loop never ends."""
    reports: list[dict[str, Any]] = []
    stream = make_stream(reports=reports)
    stream.report_empty()
    assert not reports
    next(iter(stream))
    assert [each["batches"] for each in reports[:1]] == [0]
    reports.clear()
    stream.resume(10_000).report_empty()
    assert [each["batches"] for each in reports] == [0]


def test_the_figures_are_sums_over_ranks_since_the_first_report_or_the_begin() -> None:
    assert Reports().recent() is None
    assert reports({**report(0, 10, 5), "batches": "many"}, {"kind": protocol.STREAM}).recent() is None
    alone = reports(report(0, 10, 100), report(1, 10, 98)).total()
    assert alone == Figures(2, 2, 198, 98, 100, 0, 16, 19.8, 10.0, 0.5, 0.0)
    later = reports(report(0, 10, 0), report(1, 10, 0), report(0, 20, 100), report(1, 20, 100)).total()
    assert later is not None and later.batches_per_second == 20.0


def test_recent_figures_are_those_of_the_last_half_minute() -> None:
    series = reports(
        *(report(0, seconds, 0 if seconds < 60 else 10 * (seconds - 60), ranks=1) for seconds in range(95))
    )
    recent, total = series.recent(), series.total()
    assert recent is not None and total is not None
    assert recent.batches_per_second == pytest.approx(10, rel=0.05)
    assert total.batches_per_second == pytest.approx(3.6, rel=0.05)


def test_a_new_attempt_and_a_new_iteration_count_from_zero() -> None:
    series = reports(report(0, 50, 500), report(1, 50, 500), report(0, 1, 30), report(1, 1, 30))
    assert (figures := series.recent()) is not None and figures.batches_per_second == 60
    series.add(report(0, 60, 60), 2)
    assert (figures := series.recent()) is not None and (figures.batches, figures.batches_per_second) == (60, 1)


@pytest.mark.parametrize(
    ("changes", "price", "expected"),
    [
        ({}, None, None),
        ({"ranks_wait": 0.05, "workers_wait": 0.3}, 0.2, None),
        (
            {"ranks_wait": 0.38, "workers_wait": 0.1},
            0.205,
            "ranks wait 38 % for batches: 6 workers would do, $0.41/h more",
        ),
        ({"ranks_wait": 0.5}, None, "ranks wait 50 % for batches: 8 workers would do"),
        ({"ranks_wait": 1.0}, None, "ranks wait 100 % for batches: 80 workers or more would do"),
        ({"ranks_wait": 1.0, "batches_per_second": 0.0}, None, None),
        ({"workers_wait": 0.8}, 0.1, "workers wait 80 % for ranks: 1 worker would do, $0.30/h less"),
        (
            {"ranks_wait": 0.4, "workers_wait": 0.6},
            None,
            "ranks wait 40 % for batches and workers 60 % for ranks: more workers would not help; "
            "raise stream.prefetch, or make batches smaller",
        ),
        (
            {"ranks_wait": 0.4, "mb_per_second": 90.0},
            None,
            "each rank takes 90 MB/s and would take 150 without waiting: above about 100 MB/s loading inside the ranks "
            "is the better choice",
        ),
    ],
)
def test_the_advice_is_one_line_with_its_cost(changes: dict[str, Any], price: float | None, expected: str) -> None:
    assert advice(FIGURES._replace(**changes), price) == expected


def test_the_figures_are_one_line() -> None:
    assert text(FIGURES) == "20 batches/s, 16 chunks in flight, ranks wait 0 %, 4 workers wait 0 %"
    assert text(FIGURES._replace(skipped=3)).endswith(", 3 skipped")
    alone = text(FIGURES._replace(workers=1, postprocess_workers=1))
    assert alone.endswith(", 1 worker waits 0 %, 1 postprocess worker waits 0 %")
