"""What an attempt has reported so far, by kind of report."""

from __future__ import annotations

from typing import Any

import pytest

from spotmpi.agent import protocol
from spotmpi.agent.lines import Line
from spotmpi.agent.progress import Progress

START, REPORT = 100.0, 110.0
STREAM = {**dict.fromkeys(protocol.STREAM_COUNTS, 0), "ranks": 2}
PENDING = {"batch": 7, "rows": "a.csv rows 7 to 7", "worker": 2, "seconds": 5.0}


def progress_after(kind: str, **values: Any) -> Progress:
    """The progress of an attempt that reports only this."""
    progress = Progress(START)
    assert progress.read(0, Line(0, "o", protocol.encode(kind, **values)), REPORT) == (kind, values)
    return progress


def test_a_program_that_printed_nothing_has_reported_nothing() -> None:
    progress = Progress(START)
    assert {name: value for name, value in vars(progress).items() if not name.startswith("_")} == {
        "alive": False,
        "last_progress": START,
        "iteration": None,
        "first_iteration": None,
        "first_iteration_time": None,
        "resumed": None,
        "checkpoint": None,
        "notice_checkpoints": 0,
        "context": {},
        "result": {},
        "fatal": None,
        "pending": {},
    }


@pytest.mark.parametrize(
    ("kind", "values", "attribute", "expected"),
    [
        (protocol.CONTEXT, {"world_size": 2}, "context", {"world_size": 2}),
        (protocol.RESUMED, {"iteration": 20, "path": "x"}, "resumed", 20),
        (protocol.METRIC, {"iteration": 20}, "iteration", 20),
        (protocol.METRIC, {"iteration": 0}, "iteration", 0),
        (protocol.EVALUATION, {"iteration": 20, "accuracy": 0.5}, "iteration", None),
        (protocol.CHECKPOINT, {"iteration": 20, "reason": "timer"}, "checkpoint", 20),
        (protocol.RESULT, {"iteration": 20, "loss": 0.5}, "result", {"iteration": 20, "loss": 0.5}),
    ],
)
def test_each_report_is_progress_and_leaves_what_it_says(
    kind: str, values: dict[str, Any], attribute: str, expected: Any
) -> None:
    progress = progress_after(kind, **values)
    assert getattr(progress, attribute) == expected
    assert progress.last_progress == REPORT


@pytest.mark.parametrize("kind", protocol.KINDS)
def test_every_kind_of_report_is_read_and_others_are_plain_output(kind: str) -> None:
    progress_after(kind, **(STREAM if kind == protocol.STREAM else {"iteration": 1}))
    assert Progress(START).read(0, Line(0, "o", protocol.encode(f"new {kind}", iteration=1)), REPORT) is None


@pytest.mark.parametrize(("reason", "count"), [("notice", 1), ("timer", 0), ("end", 0)])
def test_checkpoints_on_notice_are_counted(reason: str, count: int) -> None:
    progress = progress_after(protocol.CHECKPOINT, iteration=20, reason=reason)
    assert progress.notice_checkpoints == count
    progress.read(0, Line(0, "o", protocol.encode(protocol.CHECKPOINT, iteration=30, reason="notice")), 120.0)
    assert progress.notice_checkpoints == count + 1


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"reason": "the data set has 9 classes"}, "the data set has 9 classes"),
        *[
            (values, "the program reported a fatal error without a reason")
            for values in ({}, {"reason": ""}, {"reason": None}, {"reason": 3})
        ],
    ],
)
def test_a_fatal_error_has_a_reason_and_is_no_progress(values: dict[str, Any], reason: str) -> None:
    progress = progress_after(protocol.FATAL, **values)
    assert (progress.fatal, progress.last_progress) == (reason, START)


def test_the_first_iteration_is_that_of_the_first_window_and_iterations_never_go_back() -> None:
    progress = progress_after(protocol.METRIC, iteration=30, seconds=[0.1] * 4)
    assert (progress.first_iteration, progress.iteration) == (27, 30)
    progress.read(0, Line(0, "o", protocol.encode(protocol.METRIC, iteration=29, seconds=[0.1])), 120.0)
    assert (progress.iteration, progress.last_progress) == (30, REPORT)
    progress.read(0, Line(0, "o", protocol.encode(protocol.METRIC, iteration=31, seconds=[0.1])), 130.0)
    assert (progress.first_iteration, progress.iteration, progress.last_progress) == (27, 31, 130.0)


def test_without_seconds_a_window_counts_as_its_last_iteration() -> None:
    assert progress_after(protocol.METRIC, iteration=7).first_iteration == 7


def test_a_report_without_an_iteration_is_recorded_and_no_progress() -> None:
    progress = progress_after(protocol.METRIC, loss=0.5)
    assert (progress.iteration, progress.first_iteration, progress.last_progress) == (None, None, START)


def pending_line(rank: int, **values: Any) -> Line:
    report = {**STREAM, "rank": rank, "pending": {**PENDING, **values}}
    return Line(rank, "o", protocol.encode(protocol.STREAM, **report))


def test_a_rank_that_takes_batches_makes_progress_and_one_that_waits_does_not() -> None:
    progress = progress_after(protocol.STREAM, **STREAM)
    assert progress.last_progress == REPORT
    progress.output_received(120.0)
    progress.read(0, pending_line(1), 120.0)
    assert progress.last_progress == REPORT
    progress.output_received(130.0)
    progress.read(0, pending_line(1), 130.0)
    progress.read(0, Line(0, "o", "other output"), 130.0)
    assert progress.last_progress == 130.0


def test_the_longest_wait_of_a_rank_is_named_with_batch_rows_and_worker() -> None:
    progress = Progress(START)
    assert progress.longest_wait(120.0) is None
    progress.read(0, pending_line(0), 120.0)
    progress.read(0, pending_line(1, worker=None, seconds=15.0, batch=9), 122.0)
    assert progress.longest_wait(125.0) == "rank 1 has waited 18 s for batch 9 (a.csv rows 7 to 7)"
    progress.read(0, Line(1, "o", protocol.encode(protocol.STREAM, **{**STREAM, "rank": 1})), 123.0)
    assert progress.longest_wait(125.0) == "worker 2 has spent 10 s on batch 7 (a.csv rows 7 to 7), and rank 0 waits"


def test_a_report_on_stderr_is_plain_output() -> None:
    progress = Progress(START)
    assert progress.read(0, Line(0, "e", protocol.encode(protocol.METRIC, iteration=1)), REPORT) is None
    assert progress.iteration is None


def test_values_that_readers_cannot_use_make_a_match_of_the_pattern_plain_output() -> None:
    progress = Progress(START, r"(?P<iteration>\d+) of (?P<total_iterations>\S+)")
    assert progress.read(0, Line(0, "o", "1 of many"), REPORT) is None
    assert progress.read(0, Line(0, "o", "1 of 9"), REPORT) == ("metric", {"iteration": 1, "total_iterations": 9})
