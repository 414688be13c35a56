"""What a reader is promised of an interval, checked against data whose truth is known."""

import numpy
import pytest

from spotmpi.metrics import intervals

Trials = list[list[float]]


def trials(
    generator: numpy.random.Generator,
    count: int,
    seconds: float = 0.1,
    between: float = 0.02,
    within: float = 0.1,
    iterations: int = 100,
) -> Trials:
    """Trials whose means differ by *between*, of iterations that wobble by *within* and remember the one before."""
    memory = 0.7
    means = seconds * (1 + between * generator.standard_normal(count))
    steps = generator.standard_normal((count, iterations)) * (1 - memory**2) ** 0.5
    steps[:, 0] = generator.standard_normal(count)
    for at in range(1, iterations):
        steps[:, at] += memory * steps[:, at - 1]
    return [list(row) for row in means[:, None] * (1 + within * steps)]


def limits(bounds: intervals.Bounds | None) -> list[float]:
    assert bounds is not None
    return [bounds.low, bounds.high]


def test_a_rate_has_the_same_last_digit_on_every_version_of_python() -> None:
    assert intervals.rate([0.1] * 10) == 10.0  # where `sum` gives 0.9999999999999999 before Python 3.12


LONG = pytest.mark.nightly("ten times as many simulated studies as by day")


@pytest.mark.parametrize(("between", "within"), [(0.02, 0.1), (0.02, 0.001), (0.0, 0.1)])
@pytest.mark.parametrize(
    ("count", "studies"), [(7, 300), *(pytest.param(count, 3000, marks=LONG) for count in (5, 6, 7, 8, 12))]
)
def test_the_interval_holds_the_true_rate_at_least_93_times_in_100(
    count: int, studies: int, between: float, within: float
) -> None:
    generator = numpy.random.default_rng(11)
    measured = [
        [trials(generator, count, between=between, within=within, iterations=20) for _ in range(2)]
        for _ in range(studies)
    ]
    rates = [intervals.rate_bounds(one) for one, _ in measured]
    ratios = [intervals.ratio_bounds(one, other) for one, other in measured]
    for all_bounds, truth in ((rates, 10.0), (ratios, 1.0)):
        covered = sum(bounds is not None and bounds.contains(truth) for bounds in all_bounds) / studies
        assert 0.93 <= covered < 0.99


@pytest.mark.parametrize(("between", "within"), [(0.02, 0.1), (0.0, 0.1)])
@pytest.mark.parametrize("count", [5, 8])
def test_of_many_comparisons_of_equal_rates_none_is_claimed_to_differ_in_95_of_100_tables(
    count: int, between: float, within: float
) -> None:
    """Of 20 intervals of 95 %, one excludes 1 in most tables."""
    generator = numpy.random.default_rng(7)

    def measured(expected: float = 0.1) -> list[list[float]]:
        return trials(generator, count, expected, between=between, within=within, iterations=10)

    tables = [[[(measured(), measured())] for _ in range(20)] for _ in range(100)]
    assert sum(any(intervals.hold_together(table)) for table in tables) <= 11
    table = [[(measured(), measured(0.2))], [(measured(), measured()), (measured(), measured(0.3))], *tables[0]]
    assert intervals.hold_together(table)[:2] == [True, True]


def test_a_claim_needs_less_where_fewer_are_left_and_those_of_few_trials_count_for_nothing() -> None:
    generator = numpy.random.default_rng(7)
    clear, equal = ([(trials(generator, 5), trials(generator, 5, expected))] for expected in (0.2, 0.1))
    few = [(clear[0][0][:4], clear[0][1])]
    assert intervals.hold_together([clear, few, equal, few]) == [True, False, False, False]
    assert intervals.hold_together([equal, few]) == [True, True], "one alone is left to its interval"
    assert intervals.hold_together([few]) == [False] and intervals.hold_together([]) == []
    same = [([[0.1] * 5] * 5, [[0.1] * 5] * 5)]
    assert intervals.hold_together([same, [([[0.1] * 5] * 5, [[0.2] * 5] * 5)]]) == [False, True]


def test_the_interval_narrows_with_more_trials() -> None:
    generator = numpy.random.default_rng(5)
    few, many = (limits(intervals.rate_bounds(trials(generator, count))) for count in (6, 40))
    assert many[1] - many[0] < 0.7 * (few[1] - few[0])


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_trials_of_very_few_iterations_have_an_interval(iterations: int) -> None:
    assert limits(intervals.rate_bounds([[0.1] * iterations] * 5)) == pytest.approx([10.0, 10.0])


def test_the_same_trials_always_have_the_same_interval() -> None:
    measured = trials(numpy.random.default_rng(5), 6)
    assert intervals.rate_bounds(measured) == intervals.rate_bounds(measured)


def test_fewer_than_five_trials_have_their_range_and_one_has_nothing() -> None:
    measured = [[0.1] * 50, [0.125] * 50, [0.2] * 50, [0.25] * 50]
    assert limits(intervals.rate_bounds(measured)) == pytest.approx([4.0, 10.0])
    assert intervals.rate_bounds(measured[:1]) is None
    assert intervals.ratio_bounds(measured, measured[:1]) is None


def test_the_range_of_a_ratio_is_from_its_smallest_to_its_largest_possible_value() -> None:
    above, below = [[0.1] * 50, [0.125] * 50], [[0.2] * 50, [0.25] * 50]
    assert limits(intervals.ratio_bounds(above, below)) == pytest.approx([8 / 5, 10 / 4])
    assert intervals.ratio(above, below) == pytest.approx(9 / 4.5)


@pytest.mark.parametrize(("count", "kind"), [(2, intervals.RANGE), (4, intervals.RANGE), (5, intervals.INTERVAL)])
def test_from_five_trials_on_the_bounds_are_an_interval(count: int, kind: str) -> None:
    generator = numpy.random.default_rng(3)
    above, below = trials(generator, count), trials(generator, count)
    (_, mean) = intervals.mean_ratio([(above, below), (below, above)])
    for bounds in (intervals.rate_bounds(above), intervals.ratio_bounds(above, below), mean):
        assert bounds is not None and bounds.kind == kind


def test_the_mean_of_several_ratios_is_their_geometric_mean() -> None:
    one, two, four = [[1.0] * 50] * 2, [[0.5] * 50] * 2, [[0.25] * 50] * 2
    mean, bounds = intervals.mean_ratio([(two, one), (four, one)])
    assert [mean, *limits(bounds)] == pytest.approx([8**0.5] * 3)
    mean, bounds = intervals.mean_ratio([(two, one), (four, one), (one, one[:1])])
    assert mean == pytest.approx(2.0) and bounds is None, "one of them has a single trial"


def test_the_mean_of_a_single_ratio_is_that_ratio_with_its_bounds() -> None:
    generator = numpy.random.default_rng(3)
    for count in (1, 3, 6):
        above, below = trials(generator, count), trials(generator, count, 0.2)
        mean, bounds = intervals.mean_ratio([(above, below)])
        assert mean == pytest.approx(intervals.ratio(above, below))
        assert bounds == intervals.ratio_bounds(above, below)


def test_the_range_of_a_mean_ratio_is_the_mean_of_the_ranges() -> None:
    slow, fast = [[1.0] * 50, [0.5] * 50], [[0.25] * 50, [0.125] * 50]
    _, bounds = intervals.mean_ratio([(fast, slow), (slow, slow)])
    assert limits(bounds) == pytest.approx([(2 * 0.5) ** 0.5, (8 * 2) ** 0.5])


def test_the_interval_of_a_mean_ratio_holds_the_truth_and_is_narrower_than_that_of_one() -> None:
    generator = numpy.random.default_rng(3)
    pairs = [(trials(generator, 6, 0.1), trials(generator, 6, 0.1 * ratio)) for ratio in (1, 4) * 4]
    mean, bounds = intervals.mean_ratio(pairs)
    assert bounds is not None and bounds.contains(2.0) and bounds.contains(mean)
    each = [intervals.ratio_bounds(*pair) for pair in pairs]
    narrowest = min(other.high / other.low for other in each if other)
    assert bounds.high / bounds.low < 1 + 0.8 * (narrowest - 1)


@pytest.mark.parametrize(("count", "kind"), [(4, intervals.RANGE), (8, intervals.INTERVAL)])
def test_the_exposed_share_is_within_10_percent_of_a_delay_that_is_known(count: int, kind: str) -> None:
    generator = numpy.random.default_rng(7)
    without_allreduce, other = (trials(generator, count, 0.08, between=0.005, within=0.05) for _ in range(2))
    delayed = [[second + 0.02 for second in trial] for trial in other]
    share, bounds = intervals.exposed_share(delayed, without_allreduce)
    assert share == pytest.approx(0.02 / 0.1, rel=0.1)
    assert bounds is not None and bounds.contains(0.2) and bounds.kind == kind
    assert bounds.high - bounds.low < 0.1


def test_without_any_delay_nothing_is_exposed() -> None:
    generator = numpy.random.default_rng(7)
    share, bounds = intervals.exposed_share(*(trials(generator, 8, between=0.005, within=0.03) for _ in range(2)))
    assert abs(share) < 0.02
    assert bounds is not None and bounds.contains(0.0)


def test_first_and_last_iterations_show_whether_a_trial_slowed_down() -> None:
    assert list(intervals.edges([0.1] * 150 + [0.2] * 50) or ()) == pytest.approx([10.0, 5.0])
    assert list(intervals.edges([0.1] * 20 + [0.2] * 20) or ()) == pytest.approx([10.0, 5.0])
    assert list(intervals.edges([0.1] * 30 + [0.2] * 240 + [0.4] * 30) or ()) == pytest.approx([10.0, 2.5])
    assert intervals.edges([0.1] * 39) is None
    assert intervals.edges([0.0] * 40 + [0.1] * 40) is None


@pytest.mark.filterwarnings("error")
def test_iterations_that_are_too_short_to_time_have_finite_bounds() -> None:
    bounds = intervals.rate_bounds([[0.0] * 50 + [1e-3] * count for count in range(1, 6)])
    assert bounds is not None and bounds.low < bounds.high <= 1e9
