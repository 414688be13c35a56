from typing import Any

import pytest

from spotmpi.agent import protocol
from spotmpi.metrics import rates as metrics


def window(last: int, seconds: list[float], attempt: int = 1, t: float = 100.0, **scalars: Any) -> dict[str, Any]:
    messages = {"iteration": last, "seconds": seconds, **scalars}
    return {"t": t, "attempt": attempt, "node": 0, "kind": protocol.METRIC, **messages}


def messages(kind: str, iteration: int, attempt: int = 1, t: float = 100.0, **values: Any) -> dict[str, Any]:
    return {"t": t, "attempt": attempt, "node": 0, "kind": kind, "iteration": iteration, **values}


def arrival(iteration: int, t: float, attempt: int = 1, **scalars: Any) -> dict[str, Any]:
    return messages(protocol.METRIC, iteration, attempt, t, **scalars)


def rates(lines: list[dict[str, Any]]) -> metrics.Rates:
    measured = metrics.read(lines).rates
    assert measured is not None
    return measured


def test_the_rate_is_iterations_over_their_seconds() -> None:
    seconds = [9.0] * 10 + [0.1, 0.1, 0.1, 0.7]
    measured = rates([window(14, seconds)])
    assert measured.iterations == 4
    assert measured.seconds == pytest.approx(1.0)
    assert measured.per_second == pytest.approx(4.0)
    assert measured.median == pytest.approx(0.1)
    assert not measured.by_arrival


@pytest.mark.parametrize("unit", [1.0, 0.01])
def test_the_spread_is_the_distance_of_the_quartiles_over_the_median(unit: float) -> None:
    spread = rates([window(15, [9.0] * 10 + [unit * each for each in (1.0, 2.0, 3.0, 4.0, 5.0)])]).iqr
    assert spread == pytest.approx((4.0 - 2.0) / 3.0)


def test_iterations_of_which_most_take_no_time_have_an_infinite_spread() -> None:
    assert rates([window(15, [9.0] * 10 + [0.0, 0.0, 0.0, 1.0, 1.0])]).iqr == float("inf")


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
    assert whole.left_out["warm-up"] == dropped
    assert whole.seconds == pytest.approx(0.5 * (count - dropped))


def test_warm_up_that_ends_inside_a_window_cuts_the_window() -> None:
    measured = rates([window(7, [5.0] * 7), window(14, [5.0] * 3 + [0.5] * 4)])
    assert (measured.iterations, measured.seconds) == (4, 2.0)


def test_each_attempt_has_its_own_warm_up() -> None:
    first = [window(20, [5.0] * 10 + [1.0] * 10)]
    second = [window(40, [5.0] * 10 + [1.0] * 10, attempt=2)]
    measured = rates(first + second)
    assert measured.iterations == 20
    assert measured.per_second == pytest.approx(1.0)
    assert measured.left_out["warm-up"] == 20


def test_iterations_repeated_after_a_restart_count_once_with_the_later_times() -> None:
    first = [window(30, [9.0] * 10 + [1.0] * 10 + [2.0] * 10)]
    resumed = [messages(protocol.RESUMED, 20, attempt=2)]
    second = [window(50, [9.0] * 10 + [4.0] * 20, attempt=2)]
    measured = rates(first + resumed + second)
    assert measured.left_out["repeated after a restart"] == 10
    assert measured.seconds == pytest.approx(10 * 1.0 + 20 * 4.0)


def test_an_attempt_that_starts_from_zero_replaces_all_that_was_before() -> None:
    measured = rates([window(30, [1.0] * 30), window(30, [2.0] * 30, attempt=2)])
    assert measured.left_out["repeated after a restart"] == 30
    assert measured.median == 2.0


def test_a_middle_attempt_that_got_less_far_does_not_bring_repeated_iterations_back() -> None:
    lines = [window(60, [1.0] * 60), window(30, [2.0] * 15, attempt=2), window(40, [3.0] * 20, attempt=3)]
    measured = rates(lines)
    assert measured.left_out["repeated after a restart"] == (60 - 15) + (30 - 20)
    assert measured.seconds == pytest.approx((15 - 10) * 1.0 + 10 * 3.0)


def test_the_window_in_which_an_attempt_was_interrupted_is_counted_though_its_times_are_lost() -> None:
    # Saved at 34 on notice, but the window from 31 on was never told.
    measured = rates(
        [window(30, [1.0] * 30), messages(protocol.RESUMED, 34, attempt=2), window(60, [1.0] * 26, attempt=2)]
    )
    assert measured.left_out["in an interrupted window"] == 4
    assert measured.left_out["repeated after a restart"] == 0
    assert measured.iterations == (30 - 10) + (26 - 10)


def test_an_interrupted_window_is_left_out_and_counted() -> None:
    first = [window(30, [1.0] * 30), {**window(34, [7.0] * 4), "cut": True}]
    measured = rates([*first, window(60, [1.0] * 26, attempt=2)])
    assert measured.left_out["in an interrupted window"] == 4
    assert measured.seconds == pytest.approx(20 + 16)
    # Stopped then and not taken up again: the same.
    assert rates(first).left_out["in an interrupted window"] == 4
    assert "cut" not in metrics.read(first).series


@pytest.mark.parametrize("kind", [protocol.EVALUATION, protocol.CHECKPOINT])
def test_iterations_on_both_sides_of_an_evaluation_or_a_checkpoint_are_left_out(kind: str) -> None:
    seconds = [1.0] * 20
    seconds[14] = seconds[15] = 50.0
    measured = rates([window(15, seconds[:15]), messages(kind, 15), window(20, seconds[15:])])
    assert measured.left_out["beside an evaluation or checkpoint"] == 2
    assert measured.seconds == pytest.approx(8.0)


@pytest.mark.parametrize("kind", [protocol.EVALUATION, protocol.CHECKPOINT])
def test_iterations_beside_each_of_several_pauses_are_left_out(kind: str) -> None:
    lines = [window(20, [1.0] * 20), messages(kind, 20), window(30, [1.0] * 10), messages(kind, 30)]
    left_out = rates([*lines, window(40, [1.0] * 10)]).left_out
    assert left_out["beside an evaluation or checkpoint"] == 4


def test_scalars_from_the_first_repeated_iteration_on_are_dropped() -> None:
    lines = [window(10, [1.0] * 10, loss=3.0), window(20, [1.0] * 10, loss=2.0)]
    resumed = window(24, [1.0] * 5, attempt=2, loss=1.0)
    assert [point.iteration for point in metrics.read([*lines, resumed]).series["loss"]] == [10, 24]


def test_iterations_of_several_windows_that_are_repeated_are_all_counted_as_such() -> None:
    first = [window(at, [1.0] * 10) for at in (10, 20, 30, 40)]
    left_out = rates([*first, window(40, [1.0] * 25, attempt=2)]).left_out
    assert left_out["repeated after a restart"] == 25


def test_every_reported_iteration_counts_or_is_named_as_left_out() -> None:
    first = [window(30, [1.0] * 30), messages(protocol.CHECKPOINT, 20), messages(protocol.EVALUATION, 30)]
    training = metrics.read([*first, window(60, [1.0] * 40, attempt=2)])
    assert training.rates is not None
    assert training.rates.iterations + sum(training.rates.left_out.values()) == training.reported == 70


def test_a_program_that_does_not_time_its_iterations_is_read_by_the_arrival_of_its_lines() -> None:
    lines = [arrival(10, 100.0), arrival(20, 300.0), arrival(30, 305.0), arrival(40, 315.0)]
    measured = rates(lines)
    assert measured.by_arrival
    assert measured.left_out["warm-up"] == 10
    assert measured.iterations == 20
    assert measured.per_second == pytest.approx(20 / 15.0)


def test_a_window_that_holds_part_of_the_warm_up_is_dropped_whole_when_only_arrivals_are_known() -> None:
    lines = [arrival(1, 0.0), arrival(8, 90.0), arrival(15, 180.0), arrival(17, 182.0), arrival(19, 184.0)]
    measured = rates(lines)
    assert measured.left_out["warm-up"] == 14
    assert measured.per_second == pytest.approx(1.0)


def test_windows_beside_an_evaluation_are_dropped_whole_when_only_arrivals_are_known() -> None:
    lines = [arrival(at, float(at)) for at in (10, 20, 30, 40, 50, 60)]
    disturbed = rates([*lines[:3], messages(protocol.EVALUATION, 30), *lines[3:]])
    assert disturbed.left_out["beside an evaluation or checkpoint"] == 20, "both before and after it"
    assert disturbed.iterations == 50 - 10 - 20

    resumed = [messages(protocol.CHECKPOINT, 22), *[arrival(at, 1000.0 + at, attempt=2) for at in (26, 36, 46, 56)]]
    cut = rates([*lines, *resumed])
    assert cut.left_out["repeated after a restart"] == 60 - 25
    assert cut.left_out["beside an evaluation or checkpoint"] == 5, "what is left of the window from 21 to 30"


def test_a_count_of_iterations_may_be_large_and_lines_may_arrive_together() -> None:
    lines = [arrival(800_000, 100.0), arrival(800_010, 300.0), arrival(800_020, 305.0), arrival(800_030, 305.0)]
    found = rates(lines)
    assert (found.iterations, found.seconds) == (20, 5.0)


def test_a_line_that_repeats_its_iteration_has_no_window() -> None:
    lines = [line for at in range(1, 31) for line in (arrival(at, float(at)), arrival(at, float(at), loss=1.0))]
    assert rates(lines).iterations == 29 - 10


def test_an_attempt_repeats_from_its_first_line_on_when_only_arrivals_are_known() -> None:
    lines = [arrival(at, float(at)) for at in range(1, 41)]
    left_out = rates([*lines, *[arrival(at, 1000.0 + at, attempt=2) for at in range(21, 41)]]).left_out
    assert left_out["repeated after a restart"] == 20


def test_an_attempt_that_got_no_window_done_leaves_nothing_out() -> None:
    first = [{**arrival(10, 1.0), "cut": True}]
    found = rates([*first, window(60, [1.0] * 50, attempt=2)])
    assert found.left_out["in an interrupted window"] == 0 and found.iterations == 40


def test_what_is_between_two_attempts_is_unknown_when_only_arrivals_are_known() -> None:
    lines = [arrival(at, float(at)) for at in range(1, 21)]
    left_out = rates([*lines, *[arrival(at, 1000.0 + at, attempt=2) for at in range(31, 51)]]).left_out
    assert left_out["in an interrupted window"] == 0


def test_the_pause_between_two_attempts_is_in_no_iterations_time() -> None:
    lines = [arrival(at, float(at)) for at in range(1, 21)]
    lines += [arrival(at, 1000.0 + at, attempt=2) for at in range(21, 41)]
    assert rates(lines).per_second == pytest.approx(1.0)


def test_a_counter_that_starts_anew_within_an_attempt_loses_one_window_and_no_more() -> None:
    lines = [arrival(at, float(at)) for at in range(0, 31)] + [arrival(at, 40.0 + at) for at in range(0, 31)]
    measured = rates(lines)
    assert measured.iterations == 30 + 30 - 10
    assert measured.per_second == pytest.approx(1.0)


def test_too_few_iterations_give_no_rate_and_their_number() -> None:
    training = metrics.read([window(8, [0.1] * 8)])
    assert (training.rates, training.reported) == (None, 8)
    assert metrics.read([]).rates is None


@pytest.mark.parametrize(("count", "counted"), [(10, None), (11, None), (12, 2)])
def test_a_rate_takes_two_iterations_after_warm_up(count: int, counted: int | None) -> None:
    found = metrics.read([window(count, [0.1] * count)]).rates
    assert (found and found.iterations) == counted


def test_without_any_line_nothing_was_reported() -> None:
    assert metrics.read([]) == metrics.Training(None, 0, 0)


def test_lines_without_node_or_attempt_are_those_of_the_first() -> None:
    plain = {key: value for key, value in window(30, [1.0] * 10).items() if key not in ("node", "attempt")}
    training = metrics.read([window(20, [1.0] * 20), plain])
    assert (training.reported, training.attempts) == (30, 1)


@pytest.mark.parametrize(
    "changed", [{"attempt": "1"}, {"kind": 3}, {"kind": None}, {"seconds": "soon"}, {"seconds": [-1.0]}]
)
def test_lines_with_values_of_another_type_are_ignored(changed: dict[str, Any]) -> None:
    lines = [window(20, [1.0] * 20), {**window(30, [1.0] * 10), **changed}, window(40, [1.0] * 10)]
    assert metrics.read(lines).reported == 30


def test_a_scalar_has_one_value_per_iteration_over_all_attempts() -> None:
    lines = [
        {"t": 10.0, "attempt": 1, "node": 0, "kind": protocol.CONTEXT, "world_size": 2},
        window(10, [1.0] * 10, t=20.0, loss=3.0),
        window(20, [1.0] * 10, t=30.0, loss=2.0),
        messages(protocol.EVALUATION, 20, t=31.0, accuracy=0.4),
        window(27, [1.0] * 7, t=35.0, loss=1.9),
        window(20, [1.0] * 5, attempt=2, t=50.0, loss=2.5),
        messages(protocol.EVALUATION, 20, attempt=2, t=51.0, accuracy=0.5),
        window(30, [1.0] * 10, attempt=2, t=60.0, loss=float("nan")),
    ]
    training = metrics.read(lines)
    points = [(point.iteration, point.time, point.value) for point in training.series["loss"]]
    assert points == [(10, 10.0, 3.0), (20, 40.0, 2.5)]
    assert [point.value for point in training.evaluations["accuracy"]] == [0.5]
    assert training.context == {"world_size": 2}
    assert training.attempts == 2


def test_the_last_result_and_all_evaluations_are_returned() -> None:
    lines = [
        window(20, [1.0] * 20, loss=1.0),
        messages(protocol.EVALUATION, 20, accuracy=0.5, time=3.0),
        messages(protocol.RESULT, 20, loss=0.3, accuracy=0.9, parameters="abc"),
    ]
    training = metrics.read(lines)
    assert training.result == {"iteration": 20, "loss": 0.3, "accuracy": 0.9, "parameters": "abc"}
    assert list(training.evaluations) == ["accuracy"]


def test_lines_of_other_nodes_are_not_counted_twice() -> None:
    lines = [window(20, [1.0] * 20), {**window(20, [9.0] * 20), "node": 1}]
    assert rates(lines).iterations == 10
