"""Rates and series that the metric lines of a run give, and what is left out of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotmpi.agent import protocol
from spotmpi.metrics import rates as metrics

Lines = list[dict[str, Any]]
REPEATED, INTERRUPTED = "repeated after a restart", "in an interrupted window"
BESIDE = "next to an evaluation or checkpoint"


def messages(kind: str, iteration: int, attempt: int = 1, t: float = 100.0, **values: Any) -> dict[str, Any]:
    return {"t": t, "attempt": attempt, "member": "node/0", "kind": kind, "iteration": iteration, **values}


def window(last: int, seconds: list[float], attempt: int = 1, t: float = 100.0, **scalars: Any) -> dict[str, Any]:
    return messages(protocol.METRIC, last, attempt, t, seconds=seconds, **scalars)


def ones(last: int, count: int, attempt: int = 1, seconds: float = 1.0) -> dict[str, Any]:
    """A window of *count* iterations of a second each."""
    return window(last, [seconds] * count, attempt)


def arrival(iteration: int, t: float, attempt: int = 1, **scalars: Any) -> dict[str, Any]:
    return messages(protocol.METRIC, iteration, attempt, t, **scalars)


def arrivals(times: dict[int, float], attempt: int = 1) -> Lines:
    """A line for each iteration at its time."""
    return [arrival(iteration, t, attempt) for iteration, t in times.items()]


def each_second(first: int, last: int, delay: float = 0.0, attempt: int = 1) -> Lines:
    """A line for each iteration, one a second."""
    return arrivals({at: delay + at for at in range(first, last + 1)}, attempt)


def rates(lines: Lines) -> metrics.Rates:
    measured = metrics.read(lines).rates
    assert measured is not None
    return measured


NUMBERS = st.integers(-3, 60) | st.floats(0, 1e6) | st.sampled_from([None, True, "x", float("nan"), 1e308])
LINES = st.fixed_dictionaries(
    {
        "t": st.floats(0, 1e9),
        "kind": st.sampled_from([protocol.METRIC, protocol.EVALUATION, protocol.CHECKPOINT, protocol.CONTEXT]),
        "iteration": st.integers(0, 60) | NUMBERS,
    },
    optional={
        "seconds": st.lists(st.floats(0, 100), max_size=30) | NUMBERS,
        "attempt": st.integers(1, 3) | NUMBERS,
        **dict.fromkeys(("waited", "uptime", "loss"), NUMBERS),
        "interrupted": st.booleans(),
        "ranks": st.lists(st.text(max_size=6), max_size=2) | NUMBERS,
    },
)


@st.composite
def recordings(draw: st.DrawFn) -> Lines:
    """Windows of several attempts, and whatever else a program prints."""
    lines: Lines = []
    iteration, attempt = 0, 1
    for kind in draw(st.lists(st.sampled_from(["window", "window", "checkpoint", "restart", "other"]), max_size=12)):
        if kind == "window":
            seconds = draw(st.lists(st.floats(0.01, 100), min_size=1, max_size=20))
            iteration += len(seconds)
            lines.append(window(iteration, seconds, attempt))
        elif kind == "checkpoint":
            lines.append(messages(protocol.CHECKPOINT, iteration, attempt))
        elif kind == "restart":
            iteration, attempt = draw(st.integers(0, iteration)), attempt + 1
        else:
            lines.append(draw(LINES))
    return lines


@settings(max_examples=60)
@given(recordings())
def test_each_reported_iteration_is_counted_or_left_out_for_one_reason_whatever_is_printed_besides(
    lines: Lines,
) -> None:
    measured = metrics.read(lines)
    if (found := measured.rates) is not None:
        excluded = sum(count for reason, count in found.excluded.items() if reason != INTERRUPTED)
        assert found.iterations == len(found.iteration_seconds)
        assert found.iterations + excluded == measured.reported
        assert 0 < found.per_second < math.inf


def test_windows_of_a_counter_that_begins_anew_all_count() -> None:
    measured = rates([window(last, [1.0] * 20, t=1.0 * at) for at, last in enumerate((20, 40, 20, 40, 20, 40))])
    assert measured.iterations == 6 * 20 - 12


def test_the_rate_is_iterations_over_their_seconds() -> None:
    measured = rates([window(14, [9.0] * 10 + [0.1, 0.1, 0.1, 0.7])])
    assert (measured.iterations, measured.by_arrival) == (4, False)
    assert (measured.seconds, measured.per_second, measured.median) == pytest.approx((1.0, 4.0, 0.1))


@pytest.mark.parametrize(
    ("seconds", "spread"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0], (4.0 - 2.0) / 3.0),
        ([0.01, 0.02, 0.03, 0.04, 0.05], (4.0 - 2.0) / 3.0),
        ([0.0, 0.0, 0.0, 1.0, 1.0], None),
    ],
)
def test_the_spread_is_the_distance_of_the_quartiles_over_the_median(
    seconds: list[float], spread: float | None
) -> None:
    assert rates([window(15, [9.0] * 10 + seconds)]).iqr == pytest.approx(spread)


@pytest.mark.parametrize("step", [3600.0, -3600.0, 0.5])
def test_neither_a_sleep_nor_a_clock_that_is_set_is_time_of_an_iteration(step: float) -> None:
    """Unix time goes on in a sleep and may be set; what agents record beside it does neither."""
    lines = [dict(arrival(at, at / 50 + (step if at > 60 else 0.0)), uptime=900 + at / 50) for at in range(1, 121)]
    measured = rates(lines)
    assert measured.by_arrival and measured.per_second == pytest.approx(50.0)
    assert measured.iterations == rates(each_second(1, 120)).iterations


@pytest.mark.parametrize("seconds", [0.0, 1e-10])
def test_iterations_that_no_clock_could_time_have_no_rate(seconds: float) -> None:
    training = metrics.read([window(30, [seconds] * 30)])
    assert (training.rates, training.reported) == (None, 30)


@pytest.mark.parametrize(("count", "dropped"), [(50, 10), (100, 10), (101, 11), (200, 20)])
def test_warm_up_is_ten_iterations_or_a_tenth_of_the_attempt(count: int, dropped: int) -> None:
    seconds = [5.0] * dropped + [0.5] * (count - dropped)
    measured = rates([window(at + 10, seconds[at : at + 10]) for at in range(0, count, 10) if at + 10 <= count])
    assert measured.median == 0.5
    whole = rates([window(count, seconds)])
    assert whole.excluded["warm-up"] == dropped
    assert whole.seconds == pytest.approx(0.5 * (count - dropped))


FIRST, PARTIAL = ones(30, 30), {**ones(34, 4, seconds=7.0), "interrupted": True}
SLOW_START = [5.0] * 10 + [1.0] * 10
ON_NOTICE = messages(protocol.RESUMED, 34, attempt=2)  # but the window from 31 on was never reported
TIMED: dict[str, tuple[Lines, dict[str, int], int, float]] = {
    "warm-up within a window": ([ones(7, 7), window(14, [5.0] * 3 + [0.5] * 4)], {}, 4, 2.0),
    "two warm-ups": ([window(20, SLOW_START), window(40, SLOW_START, attempt=2)], {"warm-up": 20}, 20, 20.0),
    "repeated iterations count once with the later times": (
        [FIRST, messages(protocol.RESUMED, 20, attempt=2), window(50, [9.0] * 10 + [4.0] * 20, attempt=2)],
        {REPEATED: 10},
        30,
        10 * 1.0 + 20 * 4.0,
    ),
    "a start from zero": ([FIRST, ones(30, 30, 2, seconds=2.0)], {REPEATED: 30}, 20, 20 * 2.0),
    "an attempt that got less far": (
        [ones(60, 60), ones(30, 15, 2, seconds=2.0), ones(40, 20, 3, seconds=3.0)],
        {REPEATED: (60 - 15) + (30 - 20)},
        (15 - 10) + 10,
        (15 - 10) * 1.0 + 10 * 3.0,
    ),
    "several repeated windows": (
        [*[ones(at, 10) for at in (10, 20, 30, 40)], ones(40, 25, 2)],
        {REPEATED: 25},
        20,
        20.0,
    ),
    "a window whose times are lost": ([FIRST, ON_NOTICE, ones(60, 26, 2)], {INTERRUPTED: 4, REPEATED: 0}, 36, 36.0),
    "an interrupted window": ([FIRST, PARTIAL, ones(60, 26, 2)], {INTERRUPTED: 4}, 20 + 16, 36.0),
    "an interrupted window at the end": ([FIRST, PARTIAL], {INTERRUPTED: 4}, 20, 20.0),
    "no window done": ([{**arrival(10, 1.0), "interrupted": True}, ones(60, 50, 2)], {INTERRUPTED: 0}, 40, 40.0),
    "lines of another node": ([ones(20, 20), {**ones(20, 20, seconds=9.0), "member": "node/1"}], {}, 10, 10.0),
}


@pytest.mark.parametrize(("lines", "excluded", "iterations", "seconds"), TIMED.values(), ids=TIMED)
def test_each_iteration_counts_once_and_what_is_left_out_is_named(
    lines: Lines, excluded: dict[str, int], iterations: int, seconds: float
) -> None:
    measured = rates(lines)
    assert {reason: measured.excluded[reason] for reason in excluded} == excluded
    assert measured.iterations == iterations
    assert measured.seconds == pytest.approx(seconds)
    assert "interrupted" not in metrics.read(lines).series


@pytest.mark.parametrize("kind", [protocol.EVALUATION, protocol.CHECKPOINT])
def test_iterations_on_both_sides_of_each_evaluation_or_checkpoint_are_left_out(kind: str) -> None:
    seconds = [1.0] * 20
    seconds[14] = seconds[15] = 50.0
    measured = rates([window(15, seconds[:15]), messages(kind, 15), window(20, seconds[15:])])
    assert measured.excluded[BESIDE] == 2
    assert measured.seconds == pytest.approx(8.0)
    lines = [window(20, [1.0] * 20), messages(kind, 20), window(30, [1.0] * 10), messages(kind, 30)]
    assert rates([*lines, window(40, [1.0] * 10)]).excluded[BESIDE] == 4


def test_every_reported_iteration_counts_or_is_named_as_left_out() -> None:
    first = [FIRST, messages(protocol.CHECKPOINT, 20), messages(protocol.EVALUATION, 30)]
    training = metrics.read([*first, window(60, [1.0] * 40, attempt=2)])
    assert training.rates is not None
    assert training.rates.iterations + sum(training.rates.excluded.values()) == training.reported == 70


TENS = arrivals({at: float(at) for at in (10, 20, 30, 40, 50, 60)})
DISTURBED = [*TENS[:3], messages(protocol.EVALUATION, 30), *TENS[3:]]
RESUMED_AT_22 = [messages(protocol.CHECKPOINT, 22), *arrivals({at: 1000.0 + at for at in (26, 36, 46, 56)}, attempt=2)]
TWICE = [line for at in range(1, 31) for line in (arrival(at, float(at)), arrival(at, at + 0.9, loss=1.0))]
LATE = sorted([*each_second(1, 30), *each_second(1, 28, 1.4), *each_second(1, 28, 1.5)], key=lambda line: line["t"])
ONCE_LATE = [*TENS[:2], arrival(10, 20.5), arrival(20, 20.6), *TENS[2:]]
SUMMED_UP = [*each_second(0, 30), *arrivals({0: 40.0, 1: 41.0, 30: 70.0, 31: 71.0})]
LARGE = arrivals({800_000: 100.0, 800_010: 300.0, 800_020: 305.0, 800_030: 305.0})
ARRIVED: dict[str, tuple[Lines, dict[str, int], int, float]] = {
    "warm-up": (arrivals({10: 100.0, 20: 300.0, 30: 305.0, 40: 315.0}), {"warm-up": 10}, 20, 15.0),
    "a window with part of it": (arrivals({1: 0, 8: 90, 15: 180, 17: 182, 19: 184}), {"warm-up": 14}, 4, 4.0),
    "both windows beside an evaluation": (DISTURBED, {BESIDE: 20}, 50 - 10 - 20, 20.0),
    "what is left of the window from 21 to 30": ([*TENS, *RESUMED_AT_22], {REPEATED: 60 - 25, BESIDE: 5}, 20, 20.0),
    "large counts, and lines that arrive together": (LARGE, {}, 20, 5.0),
    "lines that repeat their iteration": (TWICE, {}, 29 - 10, 19.0),
    "lines of ranks that are late": (LATE, {}, 29 - 10, 19.0),
    "lines of a rank that is late once": (ONCE_LATE, {}, 60 - 20, 40.0),
    "a counter that starts anew and gets further": (SUMMED_UP, {}, 30 - 10 + 31, 51.0),
    "a repeating attempt": ([*each_second(1, 40), *each_second(21, 40, 1000.0, 2)], {REPEATED: 20}, 18, 18.0),
    "an unknown window": ([*each_second(1, 20), *each_second(31, 50, 1000.0, 2)], {INTERRUPTED: 0}, 18, 18.0),
    "a pause between attempts": ([*each_second(1, 20), *each_second(21, 40, 1000.0, 2)], {}, 18, 18.0),
    "a counter that starts anew": ([*each_second(0, 30), *each_second(0, 30, 40.0)], {}, 30 + 30 - 10, 50.0),
}


@pytest.mark.parametrize(("lines", "excluded", "iterations", "seconds"), ARRIVED.values(), ids=ARRIVED)
def test_a_program_that_does_not_time_its_iterations_is_read_by_the_arrival_of_its_lines(
    lines: Lines, excluded: dict[str, int], iterations: int, seconds: float
) -> None:
    measured = rates(lines)
    assert measured.by_arrival
    assert {reason: measured.excluded[reason] for reason in excluded} == excluded
    assert measured.iterations == iterations
    assert measured.seconds == pytest.approx(seconds)


@pytest.mark.parametrize(("count", "counted"), [(8, None), (10, None), (11, None), (12, 2)])
def test_a_rate_takes_two_iterations_after_warm_up(count: int, counted: int | None) -> None:
    training = metrics.read([window(count, [0.1] * count)])
    assert (training.rates and training.rates.iterations, training.reported) == (counted, count)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([ones(8, 8)], "8 warm-up"),
        ([line for at in range(20, 61, 10) for line in (*arrivals({at: at}), messages(protocol.EVALUATION, at))],
         "10 warm-up, 30 next to an evaluation or checkpoint"),
        ([ones(60, 60, seconds=0.0)], "50 in less time than a clock can tell"),
        ([ones(60, 60), *(ones(at, at, attempt) for attempt, at in ((2, 5), (3, 5)))],
         "5 warm-up, 65 repeated after a restart"),
    ],
)  # fmt: skip
def test_a_run_without_a_rate_says_where_its_iterations_went(lines: Lines, reason: str) -> None:
    """It said that there were too few after the warm-up, whatever the reason."""
    training = metrics.read(lines)
    assert (training.rates, training.unrated) == (None, reason)


def test_without_any_line_nothing_was_reported() -> None:
    assert metrics.read([]) == metrics.Training(None, 0)


def test_lines_without_node_or_attempt_are_those_of_the_first() -> None:
    plain = {key: value for key, value in window(30, [1.0] * 10).items() if key not in ("node", "attempt")}
    first, second = window(20, [1.0] * 20), window(30, [1.0] * 10)
    assert metrics.read([first, plain]) == metrics.read([first, second])


@pytest.mark.parametrize(
    "changed", [{"attempt": "1"}, {"kind": 3}, {"kind": None}, {"seconds": "soon"}, {"seconds": [-1.0]}]
)
def test_lines_with_values_of_another_type_are_ignored(changed: dict[str, Any]) -> None:
    lines = [window(20, [1.0] * 20), {**window(30, [1.0] * 10), **changed}, window(40, [1.0] * 10)]
    assert metrics.read(lines).reported == 30


def test_a_scalar_has_one_value_per_iteration_over_all_attempts() -> None:
    lines = [
        {"t": 10.0, "attempt": 1, "member": "node/0", "kind": protocol.CONTEXT, "world_size": 2},
        window(10, [1.0] * 10, t=20.0, loss=3.0),
        window(20, [1.0] * 10, t=30.0, loss=2.0),
        messages(protocol.EVALUATION, 20, t=31.0, accuracy=0.4),
        window(27, [1.0] * 7, t=35.0, loss=1.9),
        window(20, [1.0] * 5, attempt=2, t=50.0, loss=2.5),
        messages(protocol.EVALUATION, 20, attempt=2, t=51.0, accuracy=0.5),
        window(30, [1.0] * 10, attempt=2, t=60.0, loss=None),
    ]
    training = metrics.read(lines)
    assert training.not_finite == {"loss"}
    points = [(point.iteration, point.time, point.value) for point in training.series["loss"]]
    assert points == [(10, 10.0, 3.0), (20, 40.0, 2.5)]
    assert [point.value for point in training.evaluations["accuracy"]] == [0.5]
    assert training.context == {"world_size": 2}


def test_scalars_from_the_first_repeated_iteration_on_are_dropped() -> None:
    lines = [window(10, [1.0] * 10, loss=3.0), window(20, [1.0] * 10, loss=2.0)]
    resumed = window(24, [1.0] * 5, attempt=2, loss=1.0)
    assert [point.iteration for point in metrics.read([*lines, resumed]).series["loss"]] == [10, 24]


def test_evaluations_before_the_first_metric_line_of_an_attempt_replace_those_that_they_repeat() -> None:
    """Those of the same attempt were lost with the earlier ones, or all stayed where lines have no seconds."""

    def attempt(number: int, *evaluated: int) -> Lines:
        return [messages(protocol.EVALUATION, at, number, accuracy=number) for at in evaluated]

    lines = [*attempt(1, 5), ones(10, 10), *attempt(1, 10, 15), ones(20, 10), *attempt(1, 20)]
    lines += [*attempt(2, 15), ones(22, 10, attempt=2), *attempt(2, 20)]
    lines += [*attempt(3, 20, 25), arrival(30, 100.0, attempt=3)]
    points = metrics.read(lines).evaluations["accuracy"]
    assert [(point.iteration, point.value) for point in points] == [(5, 1), (10, 1), (15, 2), (20, 3), (25, 3)]


def test_the_last_result_and_all_evaluations_are_returned() -> None:
    result: dict[str, Any] = {"iteration": 20, "loss": 0.3, "accuracy": 0.9, "parameters": "abc"}
    lines = [
        window(20, [1.0] * 20, loss=1.0),
        messages(protocol.EVALUATION, 20, accuracy=0.5, time=3.0),
        messages(protocol.RESULT, **result),
    ]
    training = metrics.read(lines)
    assert training.result == result
    assert list(training.evaluations) == ["accuracy"]


def test_a_chart_has_the_time_of_a_clock_that_nobody_sets_within_an_attempt() -> None:
    """After a clock was set back, curves went back with it, and left their axis where they began."""
    times = [(1000.0, 1.0, 1), (900.0, 11.0, 1), (910.0, 21.0, 1), (950.0, 3.0, 2), (940.0, 13.0, 2), (0.0, 0.0, 3)]
    lines = [
        messages(protocol.METRIC, 10 * at, attempt, t, uptime=uptime, loss=1.0)
        for at, (t, uptime, attempt) in enumerate(times, 1)
    ]
    assert [point.time for point in metrics.read(lines).series["loss"]] == [0.0, 10.0, 20.0, 60.0, 70.0, 70.0]


@pytest.mark.parametrize("t", [None, "now", float("nan"), True])
def test_a_line_without_a_time_is_ignored(t: object) -> None:
    damaged = {**messages(protocol.METRIC, 10, loss=1.0), "t": t}
    assert metrics.read([damaged, messages(protocol.METRIC, 20, loss=2.0)]).series == {
        "loss": [metrics.Point(20, 0.0, 2.0)]
    }
    del damaged["t"]
    assert metrics.read([damaged]).series == {}


def test_of_very_many_iterations_that_lines_time_the_first_ones_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """35,000,000 iterations in 40 lines took 1.4 GB of whoever asked for the report."""
    monkeypatch.setattr(metrics, "_MOST", 1000)
    lines = [arrival(100 * at, float(at)) for at in range(1, 20)]
    lines += [arrival(100 * at, float(at), attempt=2) for at in range(21, 40)]
    training = metrics.read(lines)
    assert training.rates and training.rates.per_second == pytest.approx(100.0)
    assert training.rates.excluded[metrics._BEYOND] == 2600
    assert training.reported == 3600 == training.rates.iterations + sum(training.rates.excluded.values())
