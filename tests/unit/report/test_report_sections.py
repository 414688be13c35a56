"""The sections of the report of a study, from recorded runs of known contents."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotmpi.cli.report import print_report
from spotmpi.core.price import Price
from spotmpi.report import files, trial_results
from spotmpi.report.charts import picture_charts
from spotmpi.report.figures import BarChart, Chart, Curve, Drawing
from spotmpi.report.files import markdown, page
from spotmpi.report.gather import gather
from spotmpi.report.report import Report, Section
from spotmpi.runs.reader import timeline
from spotmpi.study.study import BASELINE, MEASURED, PENDING, WITHOUT_ALLREDUCE, StudyOptions
from spotmpi.study.study_file import from_values
from spotmpi.study.sweep import find_sweep
from tests.unit.report.recorded_runs import NOW, SPEC, START, Recorded, over_nodes, record, record_sweep, study_report

PRICE = {"node_hour": 3.6, "source": "spot, 21 November 2026"}


def section(report: Report, title: str) -> Section:
    return next(each for each in report.sections if each.title == title)


def curves(section: Section, at: int = 0) -> Sequence[Curve]:
    chart = section.charts[at]
    assert isinstance(chart, Chart)
    return chart.curves


def test_money_per_1000_iterations_is_nodes_times_price_over_rate(runs: Path) -> None:
    report = study_report(runs, {"nodes": [1, 2]}, {("base", 1): 10.0, ("base", 2): 16.0}, price=PRICE)
    costs = section(report, "Cost")
    dollars = [float(cells[3]) for cells in costs.cells]
    assert dollars == pytest.approx([1 * 3.6 * 1000 / 10 / 3600, 2 * 3.6 * 1000 / 16 / 3600], rel=0.01)
    assert "$3.6 an hour (spot, 21 November 2026)" in costs.text[0]
    assert [y for _, y in curves(costs)[0].points] == pytest.approx(dollars, rel=0.01)


def test_the_time_breakdown_shows_what_the_allreduce_costs(runs: Path) -> None:
    parameters, rates = {"nodes": [2, 4]}, {("base", 2): 10.0, ("base", 4): 16.0}
    report = study_report(runs, parameters, rates, without_allreduce=True, repeats=5)
    split = section(report, "Time breakdown")
    assert [cells[1] for cells in split.cells] == ["2", "4"]
    assert {cells[3] for cells in split.cells} == {"20.0 %"}  # 1 - 1 / 1.25
    assert {cells[2] for cells in split.cells} == {"80.0 %"}
    (chart,) = split.charts
    assert isinstance(chart, BarChart)
    assert [name for _, name in chart.legend] == ["compute", "communication", "input"]
    assert [[size for _, size in bar.parts] for bar in chart.bars] == [pytest.approx([0.8, 0.2, 0.0])] * 2
    assert [len(row.runs) for row in report.rows] == [5, 5]  # trials without allreduce are in no rate


@pytest.mark.parametrize(("waited", "without", "compute", "over"), [
    (0.9, 1.25, "0.0 %", "110.0 %"),
    (0.5, 0.9, "50.0 %", None),
])  # fmt: skip
def test_no_share_of_the_time_breakdown_is_below_0_or_above_the_rest(
    runs: Path, waited: float, without: float, compute: str, over: str | None
) -> None:
    """Computing took -10 % where trials without the allreduce waited less for batches, and 61 % by noise alone."""
    rates = {("base", 2): 10.0, ("base", 4): 16.0}
    parameters = {"nodes": [2, 4]}
    share_of_rates = {MEASURED: 1.0, WITHOUT_ALLREDUCE: without / 1.25}
    trials = {
        (role, repeat): Recorded(10.0 * share, waited=waited)
        for role, share in share_of_rates.items()
        for repeat in range(6)
    }
    split = section(study_report(runs, parameters, rates, trials, without_allreduce=True, repeats=5), "Time breakdown")
    assert {cells[2] for cells in split.cells} == {compute}
    assert any(f"2 nodes: {over}; " in text for text in split.text) == bool(over), split.text
    (chart,) = split.charts
    assert isinstance(chart, BarChart)
    for bar in chart.bars:
        assert sum(size for _, size in bar.parts) == pytest.approx(1.0)
        assert min(size for _, size in bar.parts) >= 0


def stream_reports(waited: float, source: str = "0123456789ab") -> tuple[dict[str, Any], ...]:
    """Those of one rank that waits for this share of its time for two busy workers, after a slow start of 10 s."""
    counts = {"rank": 0, "ranks": 1, "workers": 2, "in_flight": 8, "skipped": 1, "source": source}
    amounts = {"bytes": 1e6, "batches": 10, "waited": waited, "preparing": 2}
    reports = [(10 + time, {key: time * amount for key, amount in amounts.items()}) for time in (0, 50, 100)]
    return tuple({**counts, **each, "seconds": time, "waited": 10 + each["waited"]} for time, each in reports)


def test_a_stream_has_a_section_with_both_waits_and_advice(runs: Path) -> None:
    waits = {1: 0.4, 2: 0.5, 3: 0.6}  # of the repeats
    trials = {("measured", repeat): Recorded(stream=stream_reports(share)) for repeat, share in waits.items()}
    report = study_report(runs, {"nodes": [1, 2]}, {("base", 1): 10.0, ("base", 2): 16.0}, trials, price=PRICE)
    streams = section(report, "Streams")
    assert streams.text[-1] == "Source list: 0123456789ab."
    assert streams.cells == (
        ("base", "1", "2", "10.00", "1.000", "50.0 %", "0.0 %", "3"),
        ("base", "2", "2", "10.00", "1.000", "50.0 %", "0.0 %", "3"),
    )
    assert streams.bullets[0] == "1 node: ranks wait 50 % for batches: 4 workers would do, $7.20/h more"
    sweep = find_sweep("study-1", runs)
    prices = {cell: Price(3.7, "with the share of two workers", 0.05) for cell in sweep.study.configurations}
    sweep.study = replace(sweep.study, budget=replace(sweep.study.budget, prices=prices))
    sweep.save()
    assert section(gather([], runs, NOW), "Streams").bullets[0].endswith("4 workers would do, $0.10/h more")
    (chart,) = streams.charts
    assert isinstance(chart, BarChart)
    assert [(bar.name, bar.parts) for bar in chart.bars] == [
        ("1 node: 1 rank", ((5, 0.5), (4, 0.5))),
        ("1 node: 2 workers", ((5, 1.0),)),
        ("2 nodes: 1 rank", ((5, 0.5), (4, 0.5))),
        ("2 nodes: 2 workers", ((5, 1.0),)),
    ]


def test_streams_of_different_sources_are_different_work(runs: Path) -> None:
    paths = [record(runs, source, SPEC, Recorded(stream=stream_reports(0.5, source))) for source in ("before", "after")]
    one, other = (trial_results.read(path, "") for path in paths)
    assert trial_results.differences(one, other) == ["source of the stream: before, after"]
    assert trial_results.differences(one, other, ["stream"]) == trial_results.differences(one, one) == []

    def of(store: str, run: trial_results.TrialResult) -> trial_results.TrialResult:
        stream = {"source": f"{store}/datasets/ratings/{'a' * 64}/files", "batch": 4}
        return replace(run, work={**run.work, "stream": stream})

    # Their lists have the paths and times of a copy; those of one place were changed between both runs.
    assert trial_results.differences(of("/home/me/store", one), of("store", other)) == []
    assert trial_results.differences(of("store", one), of("store", other)) == ["source of the stream: before, after"]


def test_a_significant_effect_is_distinguished_from_noise(runs: Path) -> None:
    parameters = {"nodes": [2], "double_buffering": [False, True], "loader_processes": [0, 2]}
    spec = SPEC.canonical() | {"resources": {"gpu": 1}}
    study = from_values({"spec": spec, "parameters": parameters})
    names = [variant.name for variant in study.variants]
    rates = {(name, 2): 10.0 if name.startswith("no double") else 14.0 for name in names}
    report = study_report(runs, parameters, rates, repeats=5, spec=spec)
    effects = {cells[0]: (cells[4], cells[6], cells[7]) for cells in section(report, "Effect of each parameter").cells}
    assert effects["double buffering"] == ("\N{MULTIPLICATION SIGN}1.400", "2", "faster")
    assert [title for title, _ in _drawn(report)] == ["Effect of each parameter", "Loss over time"]
    assert effects["loader processes"] == ("\N{MULTIPLICATION SIGN}1.000", "2", "within noise")


def test_an_efficiency_has_the_bounds_of_the_ratio_that_it_is(runs: Path) -> None:
    report = study_report(runs, {"nodes": [1, 2]}, {("base", 1): 10.0, ("base", 2): 16.0}, repeats=5)
    base, row = report.rows
    assert base.efficiency_bounds is None
    assert row.efficiency is not None
    assert row.efficiency_bounds is not None
    assert row.efficiency_bounds.low < row.efficiency < row.efficiency_bounds.high
    # Rates differ by 1 % from trial to trial on both sides.
    assert row.efficiency_bounds.low == pytest.approx(0.8 * 0.99 / 1.01, rel=0.01)
    drawn = next(chart for title, chart in _drawn(report) if title == "Scaling efficiency")
    assert isinstance(drawn, Chart)
    assert [bar[0] for bar in drawn.curves[1].error_bars] == [2.0]


def test_the_effect_of_another_global_batch_is_that_on_samples(runs: Path) -> None:
    recorded = {("base", 1): [Recorded(10.0)] * 2, ("wide", 1): [Recorded(6.0, samples=128)] * 2}
    record_sweep(runs, SPEC, StudyOptions([1], ["wide:args+=--global-batch 128"], repeats=2), recorded)
    effects = section(gather([], runs, NOW), "Effect of each parameter")
    assert effects.text[0].startswith("Samples/s relative to")
    # Terminals show the table alone, below rates in iterations/s.
    assert effects.cells[0][4] == "\N{MULTIPLICATION SIGN}1.200 samples/s"


def test_the_picture_of_a_study_shows_time_breakdown_and_effects_instead_of_the_loss(runs: Path) -> None:
    parameters = {"nodes": [1, 2], "loader_processes": [0, 2]}
    cells = {(f"loader processes {level}", nodes): 10.0 * nodes for level in (0, 2) for nodes in (1, 2)}
    report = study_report(runs, parameters, cells, without_allreduce=True, repeats=5)
    titles = ["Iterations per second", "Scaling efficiency", "Time breakdown", "Effect of each parameter"]
    assert [title for title, _ in _drawn(report)] == titles
    effects = section(report, "Effect of each parameter").charts[0]
    assert isinstance(effects, BarChart)
    tall = Section("Effects", (), charts=(replace(effects, bars=effects.bars * 31),), in_picture=True)
    assert [title for title, _ in _drawn(replace(report, sections=[tall]))] == [*titles[:2], "Loss over time"]


def _drawn(report: Report) -> list[tuple[str, Drawing]]:
    return [(chart.title, chart) for chart in picture_charts(report)]


def test_the_model_is_compared_with_the_measurement(runs: Path) -> None:
    falling = {("base", 2): 15.474, ("base", 4): 18.987, ("base", 8): 18.405}
    model = section(study_report(runs, {"nodes": [2, 4, 8]}, falling), "Scaling model")
    assert [cells[-1] for cells in model.cells] == ["fitted", "fitted", "not valid here"]
    assert model.cells[-1][-2] == "16.4 %"
    assert len(curves(model)) == 2
    ends = [max(x for x, _ in curve.points) for curve in curves(model)]
    assert ends == [8.0, 8.0], "no model beyond the counts that refute it"
    valid = {("base", nodes): nodes / (1 + 0.01 * nodes) for nodes in (2, 4, 8)}
    model = section(study_report(runs / "valid", {"nodes": [2, 4, 8]}, valid), "Scaling model")
    assert max(x for x, _ in curves(model)[0].points) == 16.0


def test_a_published_table_is_compared_with_ours_and_all_differences_are_listed(runs: Path) -> None:
    rates = {("base", 2): 15.0, ("base", 4): 22.0}
    report = study_report(runs, {"nodes": [2, 4]}, rates, compare="chainercv-ssd300-p2")
    comparison = section(report, "Comparison with published results")
    assert ("ours", "15.0") in {(cells[4], cells[2][:4]) for cells in comparison.cells}
    assert any("efficiency 108.5 %" in fact for fact in comparison.bullets)
    assert any("Different work" in fact and "global batch 64" in fact for fact in comparison.bullets)
    assert any("single run" in fact for fact in comparison.bullets)
    assert [len(curves(comparison, at)) for at in range(2)] == [4, 4]
    assert "Horovod" in comparison.text[1]


def test_the_timeline_has_every_attempt_and_the_reason_of_an_interruption(runs: Path) -> None:
    recorded = {("measured", 2): Recorded(interrupted_at=(30, 60)), ("measured", 3): Recorded(state="stopped")}
    report = study_report(runs, {"nodes": [1, 2]}, {("base", 1): 10.0, ("base", 2): 16.0}, recorded)
    titles = [each.title for each in report.sections]
    assert titles == ["Attempts and interruptions"]  # and no cost without a price
    timeline = section(report, "Attempts and interruptions")
    assert timeline.text[0] == "10 attempts of 6 trials."
    assert [cells[2] for cells in timeline.cells if cells[3] == "interrupted"] == 4 * ["1 s"]
    assert {(cells[3], cells[4]) for cells in timeline.cells} == {("interrupted", "reclaimed"), ("stopped", "")}
    assert {curve.label for curve in curves(timeline)} == {"succeeded", "interrupted", "stopped"}


def test_an_attempt_that_was_lost_with_its_agents_is_in_the_timeline_up_to_its_last_report(runs: Path) -> None:
    """It was left out, as it has no event of its end."""
    paths = record(runs, "run-1", SPEC, Recorded(state="running"))
    lost = [(1, START, json.loads(paths.metrics.read_text().splitlines()[-1])["t"], "interrupted")]
    again: list[dict[str, Any]] = [{"event": "started", "attempt": 2}, {"event": "failed"}]
    for events, attempts in (([], lost), (again, [*lost, (2, START + 60, START + 60, "failed")])):
        with paths.events.open("a") as file:
            file.writelines(json.dumps({"t": START + 60, **each}) + "\n" for each in events)
        found = [(each.number, each.start, each.end, each.outcome) for each in timeline(paths)]
        assert found == attempts


def test_a_baseline_that_changes_until_the_end_is_a_caveat(runs: Path) -> None:
    parameters, rates = {"nodes": [1]}, {("base", 1): 10.0}
    steady = study_report(runs / "a", parameters, rates, baseline=True)
    assert not any("Drift" in warning for warning in steady.warnings)
    slower = {(BASELINE, 4): Recorded(rate=9.0)}
    drifted = study_report(runs / "b", parameters, rates, slower, baseline=True)
    assert any("after all other trials than before them" in warning for warning in drifted.warnings)
    assert [len(row.runs) for row in drifted.rows] == [3]


@pytest.mark.parametrize(
    ("recorded", "caveat"),
    [
        (Recorded(context={"versions": {}}), "No versions reported by run-1 (and 4 more)"),
        (Recorded(result={"loss": None}), "No finite loss at the end of run-1 (and 4 more)"),
        (
            Recorded(work={"code": {"files": {"programs": "b" * 64}, "commit": "c" * 40, "diff": "d"}}),
            "Uncommitted code in",
        ),
        (Recorded(ranks=(0.1, 0.1, 0.13)), "rank 2 takes 30.0 % longer than the median rank"),
    ],
)
def test_doubtful_figures_have_caveats(runs: Path, recorded: Recorded, caveat: str) -> None:
    report = study_report(
        runs, {"nodes": [1]}, {("base", 1): 10.0}, {("measured", at): recorded for at in range(1, 6)}, repeats=5
    )
    assert any(caveat in warning for warning in report.warnings), report.warnings


def test_a_study_stopped_by_a_limit_names_the_limit(runs: Path) -> None:
    study_report(runs, {"nodes": [1]}, {("base", 1): 10.0})
    sweep = find_sweep("study-1", runs)
    sweep.limit_reached = "limits.money = 5 reached: $4.80 spent, the next trial costs $0.30"
    sweep.trials[-1] = replace(sweep.trials[-1], state=PENDING, runs=())
    sweep.save()
    warnings = gather([], runs, NOW).warnings
    assert warnings[0].startswith("The study stopped: limits.money = 5 reached")
    assert "Trial 3 (1 node, repeat 3 of 3) has not run yet." in warnings


def test_few_repeats_are_warned_of_and_five_are_enough(runs: Path) -> None:
    few = study_report(runs / "few", {"nodes": [1]}, {("base", 1): 10.0}, repeats=4)
    assert few.warnings == ["Rows with fewer than 5 trials show their range; 5 repeats give a 95 % interval."]
    assert study_report(runs / "enough", {"nodes": [1]}, {("base", 1): 10.0}, repeats=5).warnings == []


def test_sections_are_in_every_form_and_the_rows_in_csv(runs: Path, tmp_path: Path) -> None:
    report = study_report(
        runs, {"nodes": [1, 2]}, {("base", 1): 10.0, ("base", 2): 16.0}, price=PRICE, without_allreduce=True
    )
    paths = files.write(report, tmp_path / "out")
    for title in ("Cost", "Time breakdown", "Attempts and interruptions"):
        assert f"<h2>{title}</h2>" in page(report)
        assert f"## {title}" in markdown(report)
    output = io.StringIO()
    print_report(report, output, width=120)
    assert "Cost" in output.getvalue() and "$ per 1,000 iterations" in output.getvalue()
    for title in ("Cost", "Time breakdown", "Attempts and interruptions"):
        assert title in [each["title"] for each in json.loads(paths.data.read_text())["sections"]]
    rows = list(csv.DictReader(paths.csv.open()))
    assert [row["nodes"] for row in rows] == ["1", "2"]
    assert float(rows[1]["iterations_per_second"]) == pytest.approx(16.0, rel=0.01)


def test_micro_benchmarks_have_a_section(runs: Path) -> None:
    busy = {("allreduce", 0): Recorded(result={"best_busbw": 1.25})}
    report = study_report(runs, {"nodes": [1, 2]}, {("base", 1): 10.0, ("base", 2): 16.0}, busy, micro_benchmarks=True)
    beforehand = section(report, "Micro-benchmarks")
    assert beforehand.cells == (("base", "2", "allreduce, bus bandwidth", "1.250", "GB/s"),)
    assert [len(row.runs) for row in report.rows] == [3, 3]  # the benchmark is in no rate
    benchmark = Recorded(samples=None, scaling=None, loss=None, result={"best_busbw": 1.25})
    alone = over_nodes(runs / "alone", (2, benchmark), spec=SPEC.model_copy(update={"program": "allreduce"}))
    assert section(alone, "Micro-benchmarks").cells[0][2:] == beforehand.cells[0][2:]
    assert alone.warnings == []  # it has neither samples nor a loss
