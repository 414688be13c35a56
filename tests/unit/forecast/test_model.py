"""The model against data whose truth is known, and against the published tables."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy
import pytest

from spotmpi.core.errors import InputError
from spotmpi.forecast import forecast, model
from spotmpi.forecast.forecast import Goal
from spotmpi.forecast.model import Series
from spotmpi.forecast.published import published_references, published_tables

COMPUTE, VOLUME, LATENCY = 0.8, 0.1, 0.004  # seconds


def truth(nodes: int, serial: float = 1.0, strong: bool = True) -> float:
    """Seconds of an iteration, written down anew from the definition."""
    compute = COMPUTE / nodes if strong else COMPUTE
    allreduce = 2 * (nodes - 1) / nodes * VOLUME + 2 * (nodes - 1) * LATENCY
    return max(compute, serial * compute + allreduce)


def generate_trials(
    nodes: Sequence[int], trials: int = 1, noise: float = 0.0, seed: int = 1, serial: float = 1.0, strong: bool = True
) -> Series:
    chance = numpy.random.default_rng(seed)
    noisy = {count: numpy.exp(noise * chance.standard_normal(trials)) for count in nodes}
    rates = {count: [float(each) / truth(count, serial, strong) for each in noisy[count]] for count in nodes}
    return Series("generated", rates, strong=strong, serial=serial)


@pytest.mark.parametrize(
    ("serial", "strong", "fitted"),
    [(1.0, True, [1, 2, 4]), (1 / 3, True, [1, 2, 4, 8]), (0.0, True, [2, 4, 8, 16]), (1.0, False, [1, 2, 4])],
)
def test_known_parameters_predict_the_counts_that_were_not_fitted(
    serial: float, strong: bool, fitted: list[int]
) -> None:
    fitted_model = model.fit(generate_trials([1, 2, 4, 8, 16, 32], serial=serial, strong=strong), fitted)
    for nodes in (8, 32, 64):
        assert fitted_model.predict(nodes).rate == pytest.approx(1 / truth(nodes, serial, strong), rel=0.02)
    assert fitted_model.predict(32).verdict == model.CHECKED
    assert fitted_model.predict(64).verdict == model.EXTRAPOLATED


def test_an_allreduce_hidden_at_every_fitted_count_is_reported_as_unknown() -> None:
    fitted_model = model.fit(generate_trials([1, 2, 4], serial=0.0), [1, 2])
    assert fitted_model.predict(4).rate == pytest.approx(4 / COMPUTE, rel=1e-3)
    assert "the allreduce had no visible cost at these counts" in fitted_model.notes[-1]
    assert "the allreduce had no visible cost" not in " ".join(model.fit(generate_trials([1, 2, 4]), [1, 2]).notes)


@pytest.fixture
def fitted_model() -> model.Model:
    """The model of a series of 1, 2, 4 and 8 nodes whose parameters the first three determine."""
    return model.fit(generate_trials([1, 2, 4, 8]), [1, 2, 4])


def test_the_parameters_are_those_that_generated_the_data(fitted_model: model.Model) -> None:
    parameters = {"divided": COMPUTE, "volume": VOLUME, "latency": LATENCY}
    assert fitted_model.parameters == pytest.approx(parameters, rel=1e-3)


def test_trials_without_allreduce_tell_a_fixed_part_of_the_computation_from_the_volume() -> None:
    rates = {nodes: [1 / (truth(nodes) + 0.05)] for nodes in (1, 2, 4)}
    without_allreduce = {nodes: [1 / (COMPUTE / nodes + 0.05)] for nodes in (1, 2, 4)}
    fitted_model = model.fit(Series("generated", rates, without_allreduce=without_allreduce), [1, 2, 4])
    parameters = {"divided": COMPUTE, "volume": VOLUME, "fixed": 0.05, "latency": LATENCY}
    assert fitted_model.parameters == pytest.approx(parameters, rel=1e-2)


@pytest.mark.parametrize(
    ("counts", "skipped", "options", "names"),
    [
        ([1, 2], [], {}, ["divided", "volume"]),
        ([1, 2, 4], [], {}, ["divided", "volume", "latency"]),
        ([1, 2, 4, 8], [], {}, ["divided", "volume", "latency"]),
        ([1, 2, 4], [1], {}, ["divided", "volume", "latency"]),
        ([1, 2], [1, 2], {}, ["divided", "volume", "fixed"]),
        ([1, 2, 4], [1, 2, 8], {}, ["divided", "volume", "fixed", "latency"]),
        ([1, 2, 4], [1, 8], {}, ["divided", "volume", "latency"]),
        ([1, 2], [], {"serial": 0.0}, ["divided", "fixed"]),
        ([1, 2, 4, 8], [], {"serial": 0.0}, ["divided", "fixed", "volume", "latency"]),
        ([1, 2], [], {"strong": False}, ["fixed", "volume"]),
        ([1, 2, 4, 8], [1, 2], {"strong": False}, ["fixed", "volume", "latency"]),
    ],
)
def test_as_many_parameters_are_fitted_as_the_counts_determine(
    counts: list[int], skipped: list[int], options: dict[str, Any], names: list[str]
) -> None:
    series = generate_trials([1, 2, 4, 8], **options)
    without_allreduce = {count: [count / COMPUTE] for count in skipped}
    fitted_model = model.fit(replace(series, without_allreduce=without_allreduce or None), counts)
    assert list(fitted_model.parameters) == names


def test_the_interval_of_a_prediction_holds_the_truth() -> None:
    covered = 0
    for seed in range(60):
        noisy = generate_trials([1, 2, 4, 8], trials=3, noise=0.02, seed=seed)
        prediction = model.fit(noisy, [1, 2, 4]).predict(8)
        assert prediction.low is not None and prediction.high is not None
        covered += prediction.low <= 1 / truth(8) <= prediction.high
    assert covered >= 54


def test_a_fit_without_degrees_of_freedom_has_no_interval_and_says_so() -> None:
    fitted_model = model.fit(generate_trials([1, 2, 4]))
    assert (fitted_model.counts, fitted_model.degrees_of_freedom) == ((1, 2), 0)
    assert (fitted_model.predict(4).low, fitted_model.predict(4).high) == (None, None)
    note = "fitted on 1 and 2 nodes with as many parameters as trials: no degrees of freedom, hence no interval"
    assert fitted_model.notes == [note]
    repeated = model.fit(generate_trials([1, 2, 4], trials=3, noise=0.01))
    assert repeated.predict(4).low is not None
    assert "covers the noise of the trials, not the model error" in repeated.notes[0]
    without = {count: [count / COMPUTE] * 3 for count in (1, 2, 4)}
    for skipped in ({2: without[2]}, without):  # of the allreduce they tell its time on 2 nodes alone
        some = model.fit(replace(generate_trials([1, 2, 4], trials=3, noise=0.01), without_allreduce=skipped), [1, 2])
        assert some.notes == repeated.notes
    assert model.fit(replace(repeated.series, without_allreduce=without), [1, 2, 4]).notes == []


def test_an_interval_that_says_nothing_is_none() -> None:
    far = Series("far", {nodes: [10 * nodes**0.95 * noise for noise in (1, 1.01)] for nodes in (1, 2, 64)})
    assert model.fit(far, far.nodes).predict(64).low is not None
    assert model.fit(far, far.nodes).predict(1024).low is None, "from 1e-50 to 1e50 iterations/s"


def test_too_few_counts_are_refused_with_the_measured_ones() -> None:
    with pytest.raises(InputError, match="two of the measured counts of generated: 1, 2, 4"):
        model.fit(generate_trials([1, 2, 4]), [2, 8])
    with pytest.raises(InputError, match="fit"):
        model.fit(generate_trials([1]))


def published_trials(table: str, name: str) -> Series:
    return next(series for series in published_tables()[table].as_series() if series.name == name)


@pytest.mark.parametrize(
    ("table", "name", "verdict"),
    [
        ("chainercv-ssd300-p3", "base", model.CHECKED),
        ("chainercv-ssd300-p3", "single zone, placement group", model.NOT_VALID),
        ("chainercv-ssd300-p3", "fp16, double buffering", model.NOT_VALID),
        ("chainercv-ssd300-p2", "base", model.NOT_VALID),
        ("chainercv-ssd300-p2", "fp16, double buffering", model.NOT_VALID),
    ],
)
def test_the_published_8_nodes_are_predicted_from_2_and_4_honestly(table: str, name: str, verdict: str) -> None:
    series = published_trials(table, name)
    prediction = model.fit(series).predict(8)
    assert prediction.error == pytest.approx(prediction.rate / series.rate(8) - 1)
    assert prediction.verdict == verdict
    assert (abs(prediction.error or 0.0) > 0.1) == (verdict == model.NOT_VALID)
    assert prediction.low is None  # single runs at two counts leave nothing to judge the spread by
    refuted = verdict == model.NOT_VALID
    assert model.fit(series).predict(6).verdict == (model.NOT_VALID if refuted else model.UNCHECKED)
    if refuted:
        assert model.fit(series).predict(16).verdict == model.NOT_VALID


def test_the_super_linear_published_cell_raises_our_own_warning_and_no_other_does() -> None:
    series = [each for table in published_tables().values() for each in table.as_series()]
    (warning,) = [warning for each in series for warning in each.warnings()]
    assert warning.startswith("fp16, double buffering, 8 nodes: efficiency 108.5 % against 2 nodes is above 105 %")


def test_published_tables_say_where_they_come_from_and_how_they_were_measured() -> None:
    for table in published_tables().values():
        assert table.source and len(table.setup) > 3
        assert all(list(rates) == [2, 4, 8] for rates in table.series.values())
    for series in published_tables()["chainercv-ssd300-p3"].as_series():
        assert (series.batch, series.serial) == (32, 0.0 if series.name == "fp16, double buffering" else 1.0)
    assert len(published_references()) == 3


def test_efficiency_is_the_rate_over_that_of_as_many_times_the_smallest_count() -> None:
    strong = Series("s", {2: [1.0, 3.0, 2.0], 8: [6.0]})
    assert (strong.nodes, strong.rate(2)) == ([2, 8], 2.0)
    assert strong.efficiency(8, 6.0) == 6.0 / (2.0 * 4)
    assert Series("w", {2: [2.0], 8: [1.5]}, strong=False).efficiency(8, 1.5) == 1.5 / 2.0


def test_every_count_but_the_smallest_can_be_implausible() -> None:
    assert Series("s", {1: [1.0], 2: [2.2], 4: [4.1]}).warnings() == [
        "s, 2 nodes: efficiency 110.0 % against 1 node is above 105 %: slow base, or different work"
    ]
    assert len(Series("w", {1: [1.0], 2: [1.2], 4: [1.1]}, strong=False).warnings()) == 2


@pytest.mark.parametrize("strong", [True, False])
def test_more_nodes_are_no_faster_than_the_workers_of_their_stream(strong: bool) -> None:
    """Their number stays; under weak scaling each node brings more batches."""
    series = generate_trials([1, 2, 4], strong=strong)
    preparation = 0.4  # seconds
    slowest = {nodes: preparation * (1 if strong else nodes) for nodes in (1, 2, 4, 8, 16)}
    rates = {nodes: [min(rate, 1 / slowest[nodes]) for rate in trials] for nodes, trials in series.rates.items()}
    fitted = model.fit(replace(series, rates=rates, preparation=preparation), [1, 2])
    for nodes in (4, 8, 16):
        expected = min(1 / truth(nodes, strong=strong), 1 / slowest[nodes])
        assert fitted.predict(nodes).rate == pytest.approx(expected, rel=0.02)
    assert model.fit(series, [1, 2]).predict(16).rate > 1.1 * fitted.predict(16).rate
    per_node = "" if strong else " / nodes"
    note = (
        f"the stream's workers prepare batches for at most 2.5{per_node} iterations/s: raise stream.workers.count for"
    )
    assert fitted.notes[-1] == f"{note} more"
    assert fitted.predict(16).low is None  # the trials say nothing about it


def test_the_workers_of_a_stream_cost_the_same_on_any_number_of_nodes(fitted_model: model.Model) -> None:
    alone = forecast.forecast(fitted_model, [1, 2, 4, 8], Goal(iterations=3600, deadline=36000, price=1.0))
    costly = Goal(iterations=3600, deadline=36000, price=1.0, workers_price=50.0)
    result = forecast.forecast(fitted_model, [1, 2, 4, 8], costly)
    extra = [
        (with_workers.dollars or 0.0) - (without.dollars or 0.0)
        for with_workers, without in zip(result.by_nodes, alone.by_nodes, strict=True)
    ]
    assert extra == pytest.approx([50.0 * (each.seconds or 0.0) / 3600 for each in result.by_nodes])
    assert alone.cheapest == 1
    assert result.cheapest == min(result.by_nodes, key=lambda each: each.dollars or 0.0).nodes != 1


def test_money_time_and_the_cheapest_count_for_a_deadline(fitted_model: model.Model) -> None:
    goal, counts = Goal(iterations=36_000, deadline=4 * 3600, price=0.5), [1, 2, 4, 8]
    result = forecast.forecast(fitted_model, counts, goal)
    hours = {nodes: 36_000 * truth(nodes) / 3600 for nodes in counts}
    assert [nodes for nodes, needed in hours.items() if needed <= 4] == [4, 8]
    for each, nodes in zip(result.by_nodes, counts, strict=True):
        assert each.seconds == pytest.approx(hours[nodes] * 3600)
        assert each.dollars == pytest.approx(hours[nodes] * nodes * 0.5)
        assert each.dollars_per_thousand == pytest.approx(nodes * 0.5 * 1000 * truth(nodes) / 3600)
        assert each.efficiency == pytest.approx(truth(1) / (nodes * truth(nodes)))
    assert result.cheapest == 4
    assert result.answers[0] == f"cheapest within the deadline: 4 nodes, {hours[4]:.2f} h for ${hours[4] * 2:.2f}"
    cheap = forecast.forecast(fitted_model, counts, Goal(iterations=36_000, deadline=4 * 3600, price=1e-6))
    assert cheap.answers[0].endswith(" h for < $0.01")
    just = forecast.forecast(fitted_model, [1, 8], Goal(iterations=36_000, deadline=result.by_nodes[3].seconds))
    assert just.answers[0] == f"cheapest within the deadline: 8 nodes, {hours[8]:.2f} h", "without a price"
    hopeless = forecast.forecast(fitted_model, [1, 2, 4], Goal(iterations=36_000, deadline=60))
    assert hopeless.answers[0] == "cheapest within the deadline: none of these counts"


@pytest.mark.parametrize("share", [0.5, 0.01])
def test_the_last_node_that_pays_is_found_one_by_one(fitted_model: model.Model, share: float) -> None:
    gains = [1 / truth(count + 1) - 1 / truth(count) for count in range(1, 16)]
    last = next(count for count, gain in enumerate(gains, 1) if gain < share / truth(1))
    result = forecast.forecast(fitted_model, [1, 16], Goal(min_efficiency=share))
    assert result.last_paying == last
    answer = (
        f"more nodes than {last} do not pay: each additional one adds less than {share:.0%} of the base rate per node"
    )
    assert result.answers == (answer.replace("%", " %"),)


def test_where_every_node_pays_and_where_not_even_the_second_does(fitted_model: model.Model) -> None:
    every = forecast.forecast(fitted_model, [1, 4], Goal(min_efficiency=0.01))
    answer = "up to 4 nodes, each additional node adds at least 1 % of the base rate per node"
    assert (every.last_paying, every.answers) == (4, (answer,))
    first = forecast.forecast(fitted_model, [1, 4], Goal(min_efficiency=0.99))
    answer = "more nodes than 1 do not pay: each additional one adds less than 99 % of the base rate per node"
    assert (first.last_paying, first.answers) == (1, (answer,))
    assert forecast.forecast(fitted_model, [1], Goal()).answers == ()  # nobody asks about another node


def test_an_error_of_the_model_at_a_measured_count_is_no_gain_of_a_node() -> None:
    series = Series("s", {nodes: [10 * nodes**0.9] for nodes in (1, 2, 4)})
    fitted = model.fit(series)
    assert fitted.predict(4).error == pytest.approx(-0.055, abs=0.001)
    assert forecast.forecast(fitted, [1, 16], Goal()).last_paying == 7


@pytest.mark.parametrize("strong", [True, False])
@pytest.mark.parametrize("base", [1, 3])
@pytest.mark.parametrize("share", [0.2, 0.6])
def test_another_node_pays_by_the_work_that_it_adds_to_the_rate_per_node_of_the_smallest_count(
    strong: bool, base: int, share: float
) -> None:
    fitted_model = model.fit(generate_trials([base, 6, 12], strong=strong), [base, 6, 12])

    def work(count: int) -> float:  # in batches of one node under weak scaling
        return (1 if strong else count) / truth(count, strong=strong)

    paying = [count for count in range(base, 40) if work(count + 1) - work(count) >= share * work(base) / base]
    assert forecast.forecast(fitted_model, [40], Goal(min_efficiency=share)).last_paying == base + len(paying)


@pytest.mark.parametrize(("rate", "cheapest"), [(2.5, 4), (2.0, 2)], ids=["cheaper", "as cheap, and more nodes"])
def test_the_cheapest_count_has_the_fewest_node_hours(rate: float, cheapest: int) -> None:
    fitted_model = model.fit(Series("super-linear", {2: [1.0], 4: [rate]}))
    assert forecast.forecast(fitted_model, [2, 4], Goal(iterations=1000, deadline=1e6)).cheapest == cheapest


@pytest.mark.parametrize(
    ("price", "answer"), [(0.526, "node price: $0.526 an hour (spot in eu-west-1a)"), (None, "spot in eu-west-1a")]
)
def test_the_source_of_the_price_or_the_reason_why_there_is_none_comes_first(
    fitted_model: model.Model, price: float | None, answer: str
) -> None:
    result = forecast.forecast(fitted_model, [1, 2], Goal(price=price, price_source="spot in eu-west-1a"))
    assert result.answers[0] == answer
    assert result.by_nodes[0].seconds is None and result.by_nodes[0].dollars is None


def test_epochs_become_the_iterations_of_each_count() -> None:
    weak = replace(generate_trials([1, 2, 4], strong=False), batch=32, samples=3200)
    result = forecast.forecast(model.fit(weak, [1, 2, 4]), [1, 4], Goal(epochs=2))
    expected = [200 * truth(1, strong=False), 50 * truth(4, strong=False)]
    assert [each.seconds for each in result.by_nodes] == pytest.approx(expected)
    assert Goal(epochs=2).iterations_on(replace(weak, strong=True), 2) == 200


def test_a_measured_count_uses_its_measured_rate_even_if_the_model_is_wrong() -> None:
    series = published_trials("chainercv-ssd300-p3", "fp16, double buffering")
    result = forecast.forecast(model.fit(series), [2, 4, 8, 16], Goal(iterations=1000, deadline=1000 / 4))
    assert result.cheapest == 8
    assert result.by_nodes[2].seconds == pytest.approx(1000 / 4.0316)
    nowhere = forecast.forecast(model.fit(series), [16], Goal(iterations=1000, deadline=1e9, price=1.0))
    (there,) = nowhere.by_nodes
    assert (there.seconds, there.dollars, there.dollars_per_thousand) == (None, None, None)
    assert nowhere.answers == (
        "cheapest within the deadline: none of these counts (the model is not valid for any of them)",
        "unknown where more nodes stop paying: the model is not valid for any of these counts",
    )


def test_all_problems_of_a_goal_are_reported_at_once(fitted_model: model.Model) -> None:
    with pytest.raises(InputError) as refused:
        forecast.forecast(fitted_model, [4], Goal(epochs=3, deadline=-1, price=0))
    assert [problem.field for problem in refused.value.problems] == ["epochs", "deadline", "price"]


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        (Goal(iterations=1, epochs=3), "epochs = 3: set either iterations or epochs"),
        (Goal(deadline=60), "deadline = '1m': needs iterations or epochs"),
        (Goal(iterations=1, deadline=0.0), "deadline = '0s': must be above 0"),
        (Goal(epochs=3), "epochs = 3: generated does not report its samples; use iterations"),
        (Goal(iterations=0), "iterations = 0: must be above 0"),
        (Goal(price=float("inf")), "price = inf: must be above 0"),
        (Goal(min_efficiency=-0.5), "min_efficiency = -0.5: must be above 0"),
    ],
)
@pytest.mark.parametrize("reported", [{}, {"batch": 32}, {"samples": 3200}])
def test_a_goal_without_a_forecast_is_refused_with_its_value(
    goal: Goal, message: str, reported: dict[str, int]
) -> None:
    series = Series("generated", {1: [1.0], 2: [1.5]}, **reported)  # type: ignore[arg-type]
    with pytest.raises(InputError) as refused:
        goal.check(series)
    assert message in [str(problem) for problem in refused.value.problems]
    Goal(epochs=3).check(Series("generated", {1: [1.0]}, batch=32, samples=3200))


@pytest.mark.parametrize(
    ("text", "counts"),
    [("4,2,4", [2, 4]), ("2..64", [2, 4, 8, 16, 32, 64]), ("3..8", [3, 6, 8]), ("4..4", [4]), ("1,10000", [1, 10_000])],
)
def test_node_counts_are_listed_or_doubled(text: str, counts: list[int]) -> None:
    assert forecast.node_counts(text) == counts


SYNTAX = "must be counts such as 2,4,8 or a range such as 2..64"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *[(text, SYNTAX) for text in ("", "x", "2..", "2,", "1..2..3")],
        *[(text, "counts must be at least 1") for text in ("0..4", "0,1", "-1")],
        ("4..2", "the smaller count comes first"),
        *[(text, "counts must be at most 10000") for text in ("10001", "1..10001")],
    ],
)
def test_wrong_node_counts_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        forecast.node_counts(text)
    assert str(refused.value) == f"--nodes = {text!r}: {message}"
    with pytest.raises(InputError, match=r"^--at = "):
        forecast.node_counts(text, "--at")


@pytest.mark.parametrize(
    ("measured", "fitted"),
    [([1, 2], [1, 2]), ([1, 2, 4], [1, 2]), ([1, 2, 4, 8], [1, 2]), ([1, 2, 4, 8, 16], [1, 2, 4]), ([3], [3])],
)
def test_the_smaller_half_of_the_counts_is_fitted_and_at_least_two(measured: list[int], fitted: list[int]) -> None:
    assert model.small_counts(Series("s", {count: [1.0] for count in measured})) == fitted


@pytest.mark.parametrize("counts", [[], [0, 2], [-1], [10_001]])
def test_a_forecast_for_no_node_count_is_refused_in_python_too(counts: list[int]) -> None:
    fitted = model.fit(Series("s", {1: [1.0], 2: [1.8]}), [2, 1, 2])
    assert fitted.counts == (1, 2), "a count that is named twice is one count"
    with pytest.raises(InputError, match="counts must be at"):
        forecast.forecast(fitted, counts, forecast.Goal())
    with pytest.raises(InputError, match="a model needs at least two"):
        model.fit(Series("s", {1: [1.0], 2: [1.8]}), [2, 2])
