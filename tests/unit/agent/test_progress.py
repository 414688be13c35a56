"""Reports of programs: their lines, and what an attempt has reported so far."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spotmpi.agent import protocol
from spotmpi.agent.launcher_output import Line
from spotmpi.agent.plan import COORDINATOR, NODE, Member
from spotmpi.agent.progress import Progress, Recognizer, Report

START, REPORT = 100.0, 110.0
STREAM: dict[str, Any] = {**dict.fromkeys(protocol.STREAM_COUNTS, 0), "ranks": 2}
PENDING = {"batch": 7, "rows": "a.csv rows 7 to 7", "worker": "worker 2", "seconds": 5.0}


def report(kind: str, stream: str = "o", **values: Any) -> Line:
    return Line(values.get("rank", 0), stream, protocol.encode(kind, **values))


def progress_after(kind: str, **values: Any) -> Progress:
    """The progress of an attempt that reports only this."""
    progress = Progress(START)
    assert progress.read(COORDINATOR, report(kind, **values), REPORT) == (kind, values)
    return progress


def test_a_program_that_printed_nothing_has_reported_nothing() -> None:
    progress = Progress(START)
    assert {name: value for name, value in vars(progress).items() if not name.startswith("_")} == {
        "alive": False,
        "last_progress": START,
        "iteration": None,
        "first_iteration": None,
        "first_iteration_time": None,
        "first_iteration_elapsed": None,
        "resumed": None,
        "checkpoint": None,
        "notice_checkpoints": 0,
        "context": {},
        "result": {},
        "fatal": None,
        "stream_used": False,
        "pending": {},
        "earlier": [],
        "from_text": False,
        "matched": None,
    }


@pytest.mark.parametrize(
    ("kind", "values", "attribute", "expected"),
    [
        (protocol.CONTEXT, {"world_size": 2}, "context", {"world_size": 2}),
        (protocol.RESUMED, {"iteration": 20, "path": "x"}, "resumed", 20),
        (protocol.METRIC, {"iteration": 20}, "iteration", 20),
        (protocol.METRIC, {"iteration": 0}, "iteration", 0),
        (protocol.METRIC, {"iteration": 7}, "first_iteration", 7),  # without seconds, a window is its last iteration
        (protocol.EVALUATION, {"iteration": 20, "accuracy": 0.5}, "iteration", None),
        (protocol.CHECKPOINT, {"iteration": 20, "reason": "timer"}, "checkpoint", 20),
        (protocol.CHECKPOINT, {"iteration": 20, "reason": "timer"}, "notice_checkpoints", 0),
        (protocol.CHECKPOINT, {"iteration": 20, "reason": "end"}, "notice_checkpoints", 0),
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
    assert Progress(START).read(COORDINATOR, report(f"new {kind}", iteration=1), REPORT) is None


def test_checkpoints_on_notice_are_counted() -> None:
    progress = progress_after(protocol.CHECKPOINT, iteration=20, reason="notice")
    assert progress.notice_checkpoints == 1
    progress.read(COORDINATOR, report(protocol.CHECKPOINT, iteration=30, reason="notice"), 120.0)
    assert progress.notice_checkpoints == 2


WITHOUT_REASON = "the program reported a fatal error without a reason"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"reason": "the data set has 9 classes"}, "the data set has 9 classes"),
        *[(values, WITHOUT_REASON) for values in ({}, {"reason": ""}, {"reason": None}, {"reason": 3})],
    ],
)
def test_a_fatal_error_has_a_reason_and_is_no_progress(values: dict[str, Any], reason: str) -> None:
    progress = progress_after(protocol.FATAL, **values)
    assert (progress.fatal, progress.last_progress) == (reason, START)


def test_the_first_iteration_is_that_of_the_first_window_and_iterations_never_go_back() -> None:
    progress = progress_after(protocol.METRIC, iteration=30, seconds=[0.1] * 4)
    assert (progress.first_iteration, progress.iteration) == (27, 30)
    progress.output_received(115.0)
    for repeated in (29, 30):
        progress.read(COORDINATOR, report(protocol.METRIC, iteration=repeated, seconds=[0.1]), 120.0)
    assert (progress.iteration, progress.last_progress) == (30, REPORT), "nor is other output progress"
    progress.read(COORDINATOR, report(protocol.METRIC, iteration=31, seconds=[0.1]), 130.0)
    assert (progress.first_iteration, progress.iteration, progress.last_progress) == (27, 31, 130.0)


def test_the_first_output_is_a_sign_of_life() -> None:
    progress = Progress(START)
    progress.output_received(101.0)
    assert progress.alive and progress.last_progress == 101.0


def test_a_report_without_an_iteration_is_recorded_and_no_progress() -> None:
    progress = progress_after(protocol.METRIC, loss=0.5)
    assert (progress.iteration, progress.first_iteration, progress.last_progress) == (None, None, START)


def pending(rank: int, **values: Any) -> Line:
    return report(protocol.STREAM, **{**STREAM, "rank": rank, "pending": {**PENDING, **values}})


def test_a_rank_that_takes_batches_makes_progress_and_one_that_waits_does_not() -> None:
    progress = progress_after(protocol.STREAM, **STREAM)
    assert progress.last_progress == REPORT
    progress.output_received(120.0)
    progress.read(COORDINATOR, pending(1), 120.0)
    assert progress.last_progress == REPORT
    progress.output_received(130.0)
    progress.read(COORDINATOR, pending(1), 130.0)
    progress.read(COORDINATOR, Line(0, "o", "other output"), 130.0)
    assert progress.last_progress == 130.0


def test_the_longest_wait_of_a_rank_is_named_with_batch_rows_and_worker() -> None:
    progress = Progress(START)
    assert progress.longest_wait(120.0) is None
    progress.read(COORDINATOR, pending(0), 120.0)
    progress.read(COORDINATOR, pending(1, worker=None, seconds=15.0, batch=9), 122.0)
    assert progress.longest_wait(125.0) == "rank 1 has waited 18 s for batch 9 (a.csv rows 7 to 7)"
    progress.read(COORDINATOR, report(protocol.STREAM, **{**STREAM, "rank": 1}), 123.0)
    assert progress.longest_wait(125.0) == "worker 2 has spent 10 s on batch 7 (a.csv rows 7 to 7), and rank 0 waits"


@pytest.mark.parametrize(
    "line",
    [
        report(protocol.METRIC, stream="e", iteration=1),
        *[
            Line(0, "o", f'{{"spotmpi": "metric", {values}}}')
            for values in (
                '"iteration": true',
                '"iteration": null',
                '"iteration": 1.0',
                '"iteration": 1, "seconds": 0.5',
                '"iteration": 1, "seconds": ["a"]',
                '"iteration": 1, "seconds": [0.5, NaN]',
                '"iteration": 1, "seconds": [-0.5]',
                '"total_iterations": "30"',
                '"samples_per_iteration": "64"',
                '"samples_per_iteration": 0',
                '"hosts": [1]',
                '"versions": ["1"]',
            )
        ],
    ],
    ids=lambda line: f"{line.stream} {line.text}",
)
def test_a_report_on_stderr_or_with_unusable_values_is_plain_output(line: Line) -> None:
    progress = Progress(START)
    assert progress.read(COORDINATOR, line, REPORT) is None
    assert progress.iteration is None


def test_a_pattern_reads_rank_zero_of_node_zero_and_each_iteration_once() -> None:
    progress = Progress(START, r"step (?P<iteration>\S+) loss (?P<loss>\S+)(?: of (?P<total_iterations>\S+))?")

    def take(node: int, rank: int | None, text: str) -> Any:
        return progress.read(Member(NODE, node), Line(rank, "o", text), REPORT)

    assert take(0, None, "step 1 loss 0.5") == ("metric", {"iteration": 1, "loss": 0.5})
    assert take(0, None, "step 1 loss 0.6") is None, "another rank's"
    assert take(0, 1, "step 2 loss 0.6") is None
    assert take(1, 0, "step 2 loss 0.6") is None
    expected = {"iteration": 2, "loss": None, "total_iterations": 9}
    assert take(0, 0, "step 2 loss 1 of many") is None
    assert take(0, 0, "step 2 loss nan of 9") == ("metric", expected)
    assert take(0, 0, "step three loss 1") is None
    assert take(0, 0, "step nan loss 1") is None
    assert take(0, 0, "step 4.0 loss x") == ("metric", {"iteration": 4, "loss": "x"})


def test_a_counter_that_begins_anew_in_each_epoch_loses_no_line() -> None:
    """The last one of each epoch but the first was left out, with the loss at the end; none of them was progress."""
    progress = Progress(START, r"step (?P<iteration>\d+) loss (?P<loss>\d+)")
    assert None not in read_steps(progress, 10, 20, 30, 10, 20, 30)
    assert progress.last_progress == REPORT + 5
    assert read_steps(progress, 30, 10) == [None, ("metric", {"iteration": 10, "loss": 1})]
    assert (progress.iteration, progress.last_progress) == (30, REPORT + 5), "what repeats or goes back is none"


def read_steps(progress: Progress, *steps: int, rank: int | None = None, node: int = 0) -> list[Report | None]:
    """What lines such as "step 1 loss 1" report, read one second after the other."""
    lines = (Line(rank, "o", f"step {step} loss 1") for step in steps)
    return [progress.read(Member(NODE, node), line, REPORT + number) for number, line in enumerate(lines)]


def test_a_form_is_recognized_in_the_output_of_rank_zero_of_node_zero() -> None:
    progress = Progress(START, None, Recognizer())
    assert read_steps(progress, 1, 2, 3, rank=1) == read_steps(progress, 1, 2, 3, node=1) == [None] * 3
    assert progress.recognized is None

    assert read_steps(progress, 1, 2, 3, 3) == [None, None, ("metric", {"iteration": 3, "loss": 1}), None]
    assert (progress.first_iteration, progress.iteration) == (1, 3)
    assert progress.recognized == ("numbers of steps", "step 3 loss 1")


def test_what_a_recognized_form_reports_comes_with_what_it_reported_before() -> None:
    progress = Progress(START, None, Recognizer())
    read_steps(progress, 1, 2, 3)
    assert progress.earlier == [(REPORT, {"iteration": 1, "loss": 1}), (REPORT + 1, {"iteration": 2, "loss": 1})]
    read_steps(progress, 4)
    assert progress.earlier == []


def test_all_output_of_a_program_whose_form_was_recognized_is_progress() -> None:
    progress = Progress(START, None, Recognizer())
    read_steps(progress, 1, 2, 3)
    progress.output_received(REPORT + 60)
    assert progress.last_progress == REPORT + 60


def test_a_pattern_and_protocol_lines_win_over_recognition() -> None:
    by_pattern = Progress(START, r"epoch (?P<iteration>\d+)", Recognizer())
    assert read_steps(by_pattern, 1, 2, 3) == [None] * 3 and by_pattern.recognized is None
    matched = []
    for read, text in ((by_pattern.read_state, "epoch 4"), (by_pattern.read, "epoch 5 ")):
        assert read(COORDINATOR, Line(None, "o", text), REPORT)
        matched.append(by_pattern.matched)
    assert matched == [None, "epoch 5"]

    progress = Progress(START, None, Recognizer())
    read_steps(progress, 10, 20, 30)
    assert progress.read(COORDINATOR, report("metric", iteration=1), REPORT) == ("metric", {"iteration": 1})
    assert (progress.first_iteration, progress.iteration, progress.recognized) == (1, 1, None)
    assert read_steps(progress, 40, 50, 60, 70) == [None] * 4


@pytest.mark.parametrize(
    ("kind", "values"), [("stream", STREAM), ("checkpoint", {"iteration": 1}), ("resumed", {"iteration": 1})]
)
def test_lines_of_functions_that_any_program_may_call_do_not_end_recognition(kind: str, values: dict[str, Any]) -> None:
    progress = Progress(START, None, Recognizer())
    progress.read(COORDINATOR, report(kind, **values), REPORT)
    assert read_steps(progress, 1, 2, 3)[2] == ("metric", {"iteration": 3, "loss": 1})


@pytest.mark.parametrize("pattern", [None, r"step (?P<iteration>\d+) loss (?P<loss>\d+)"])
def test_states_of_a_progress_bar_are_read_like_lines_but_are_no_protocol(pattern: str | None) -> None:
    progress = Progress(START, pattern, Recognizer())
    for step in (1, 2):
        progress.read_state(COORDINATOR, Line(0, "o", f"step {step} loss 1"), REPORT)
    assert progress.read_state(COORDINATOR, Line(0, "o", "step 3 loss 1"), REPORT) == (
        "metric",
        {"iteration": 3, "loss": 1},
    )
    assert progress.read_state(COORDINATOR, Line(1, "o", "step 4 loss 1"), REPORT) is None
    assert progress.read_state(COORDINATOR, report("metric", iteration=9), REPORT) is None


def test_a_pattern_is_tried_on_the_beginning_of_a_line_only() -> None:
    progress = Progress(START, r"(?P<iteration>\d+)(?: lr (?P<lr>\S+))?")
    values = {"iteration": 7, "lr": 0.001}
    assert progress.read(COORDINATOR, Line(None, "o", " " * 4000 + "7 lr 1e-3"), REPORT) == ("metric", values)
    assert progress.read(COORDINATOR, Line(None, "o", " " * 5000 + "8"), REPORT) is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}", '{"spotmpi": 1}', '{"spotmpi": "new kind"}', '{"spotmpi": "metric"', ' {"spotmpi": "metric"}'],
)
def test_what_is_no_protocol_line_is_plain_output(text: str) -> None:
    assert protocol.decode(text) is None


def test_a_protocol_line_has_no_number_that_json_lacks_whoever_wrote_it() -> None:
    values = {"iteration": 1, "loss": float("nan"), "parts": [float("inf"), 1.0]}
    ours, another = protocol.encode(protocol.METRIC, **values), json.dumps({"spotmpi": "metric", **values})
    assert "null" in ours and "NaN" in another
    for text in (ours, another):
        assert protocol.decode(text) == ("metric", {"iteration": 1, "loss": None, "parts": [None, 1.0]})


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": 1e400, "b": -1e400, "c": NaN}', {"a": None, "b": None, "c": None}),
        ('{"a": 18446744073709551615, "b": 1' + "0" * 25 + "}", {"a": float(2**64), "b": 1e25}),
        ('{"a": -9223372036854775808}', {"a": float(-(2**63))}),
        ('{"a": ' + "9" * 5000 + "}", {"a": None}),
        ('{"\\ud800": ["\\udfff", "\\ud83d\\ude00"]}', {"?": ["?", "\U0001f600"]}),
        ("[" * 16 + "]" * 16, None),
    ],
)
def test_json_of_anybody_has_no_value_that_a_reader_stumbles_over(text: str, values: Any) -> None:
    value = protocol.read_json(text)
    assert values is None or value == values
    assert json.loads(json.dumps(value).encode())


@pytest.mark.parametrize("text", ["[" * 17 + "]" * 17, "[" * 100_000, "[" * 100_000 + "]" * 100_000, "{", ""])
def test_json_that_is_partial_or_nested_deeply_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        protocol.read_json(text)


@pytest.mark.parametrize("length", [0, 1, protocol.REASON_LENGTH])
def test_a_reason_that_is_short_enough_stays_as_it_is(length: int) -> None:
    assert protocol.truncate("x" * length) == "x" * length


def test_of_a_longer_reason_the_beginning_and_the_end_stay() -> None:
    reason = protocol.truncate("first " + "\U0001f600" * 1_000_000 + " last")
    assert reason.startswith("first ") and reason.endswith(" last")
    assert len(json.dumps({"ended": 1, "reason": reason})) < 1 << 15
    assert len(reason) <= protocol.REASON_LENGTH
