import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spotmpi.core.errors import InputError, UnknownRun
from spotmpi.report import chart as chart_data
from spotmpi.report import charts
from spotmpi.report import gather as gathering
from spotmpi.report.files import markdown
from spotmpi.report.gather import gather
from spotmpi.report.table import table
from spotmpi.spec.job import JobSpec, Metrics
from spotmpi.study.study import StudyOptions
from tests.unit.report.recorded_runs import NOW, SPEC, Recorded, only, over_nodes, record, record_sweep, sweep_report

Golden = Callable[[str, str], None]


def test_a_sweeps_markdown_and_json_equal_the_golden_files(runs: Path, golden: Golden) -> None:
    report = sweep_report(runs)
    golden("sweep.md", markdown(report))
    golden("sweep.json", json.dumps(report.to_json(), indent=1) + "\n")


def test_a_single_runs_markdown_equals_the_golden_file(runs: Path, golden: Golden) -> None:
    golden("run.md", markdown(over_nodes(runs, (2, Recorded()))))


def test_efficiency_is_samples_per_rank_against_the_smallest_ranks_of_the_same_variant(runs: Path) -> None:
    report = over_nodes(runs, (4, Recorded(28.0)), (2, Recorded(20.0)))
    assert [row.nodes for row in report.rows] == [2, 4]
    assert [row.efficiency for row in report.rows] == [pytest.approx(1.0), pytest.approx(0.7, rel=1e-3)]
    assert {row.base for row in report.rows} == {"2 ranks (2 nodes \N{MULTIPLICATION SIGN} 1 slot)"}
    assert [row.is_base for row in report.rows] == [True, False]


def test_efficiency_under_weak_scaling_does_not_ask_for_more_iterations(runs: Path) -> None:
    weak = Recorded(10.0, scaling="weak")
    report = over_nodes(runs, (1, replace(weak, samples=32)), (2, replace(weak, rate=9.0, samples=64)))
    assert report.rows[1].efficiency == pytest.approx(0.9, rel=1e-3)
    assert report.rows[1].samples_per_second == pytest.approx(9.0 * 64, rel=1e-3)
    assert {row.line.batch for row in report.rows} == {32}


def test_strong_and_weak_scaling_never_share_a_line_or_a_chart(runs: Path) -> None:
    strong, weak = Recorded(), Recorded(scaling="weak")
    recorded = [(1, strong), (2, strong), (1, replace(weak, samples=32)), (2, replace(weak, samples=64))]
    report = over_nodes(runs, *recorded)
    assert len(report.lines) == 2
    titles = [(chart.title, chart.subtitle.split(",")[0]) for chart in charts.charts(report)]
    assert titles[0] == ("Iterations per second", "strong scaling")
    assert titles[2] == ("Iterations per second", "weak scaling")
    for chart in charts.charts(report)[:4]:
        assert len([curve for curve in chart.curves if curve.kind == chart_data.MEASURED]) == 1


def test_the_ideal_line_rises_under_strong_scaling_and_is_flat_under_weak(runs: Path) -> None:
    recorded = [(1, Recorded(10.0)), (4, Recorded(30.0))]
    recorded += [(1, Recorded(10.0, scaling="weak", samples=8)), (4, Recorded(9.0, scaling="weak", samples=32))]
    ideals = [
        [round(y, 1) for _, y in curve.points]
        for chart in charts.charts(over_nodes(runs, *recorded))
        if chart.title == "Iterations per second"
        for curve in chart.curves
        if curve.kind == chart_data.IDEAL
    ]
    assert ideals == [[10.0, 40.0], [10.0, 10.0]]


def test_batches_that_grow_neither_way_are_different_lines_without_efficiency(runs: Path) -> None:
    odd = Recorded(scaling=None)
    report = over_nodes(runs, (1, replace(odd, samples=32)), (2, replace(odd, samples=48)))
    assert len(report.lines) == 2
    assert [row.efficiency for row in report.rows] == [None, None]


@pytest.mark.parametrize(("batches", "kind"), [((64, 64), "strong"), ((32, 64), "weak")])
def test_the_kind_of_scaling_follows_from_the_batches_where_a_program_does_not_tell_it(
    runs: Path, batches: tuple[int, int], kind: str
) -> None:
    report = over_nodes(runs, *((n, Recorded(scaling=None, samples=b)) for n, b in zip((1, 2), batches, strict=True)))
    assert {row.line.scaling for row in report.rows} == {kind}
    assert len(report.lines) == 1


def test_without_samples_per_iteration_there_is_no_efficiency_but_a_remedy(runs: Path) -> None:
    report = over_nodes(runs, (1, Recorded(samples=None)), (2, Recorded(samples=None)))
    assert "Efficiency" not in table(report).header
    assert any("metrics.samples_per_iteration" in warning for warning in report.warnings)
    assert not any(curve.kind == chart_data.IDEAL for chart in charts.charts(report) for curve in chart.curves)


def test_the_specs_samples_per_iteration_serve_a_program_that_does_not_tell_them(runs: Path) -> None:
    metrics = Metrics(pattern="(?P<iteration>)", samples_per_iteration=16)
    spec = JobSpec(name="foreign", command=["x"], metrics=metrics)
    report = over_nodes(runs, (1, Recorded(10.0, samples=None)), (2, Recorded(15.0, samples=None)), spec=spec)
    assert report.rows[1].efficiency == pytest.approx(0.75, rel=1e-3)


def test_fewer_than_five_trials_show_their_range_and_five_an_interval(runs: Path) -> None:
    rates = [10.0, 10.4, 10.1, 10.2, 10.3]
    four = over_nodes(runs / "four", *((1, Recorded(rate, wobble=0.0)) for rate in rates[:4]))
    assert [only(four).low, only(four).high] == pytest.approx([10.0, 10.4])
    assert only(four).bounds == "range over the trials"
    five = over_nodes(runs / "five", *((1, Recorded(rate, wobble=0.0)) for rate in rates))
    assert only(five).bounds == "95 % interval of the median"
    assert only(five).iterations_per_second == pytest.approx(10.2)
    assert [only(five).low, only(five).high] == pytest.approx([10.0, 10.4])


def test_a_single_trial_has_the_spread_of_its_iterations_and_no_bounds(runs: Path) -> None:
    row = only(over_nodes(runs, (1, Recorded(wobble=0.02))))
    assert (row.low, row.high) == (None, None)
    assert row.spread == pytest.approx(0.024, abs=0.002)  # quartiles at -0.6 and 0.6 of the wobble
    assert table(gather(["run-0"], runs, NOW)).cells[0][4].startswith("IQR 2.")


@pytest.mark.parametrize(
    ("recorded", "flag"),
    [
        ([(1, Recorded(10.0)), (1, Recorded(10.6))], "spread above 5 %"),
        ([(1, Recorded(wobble=0.1))], "spread above 5 %"),
        ([(1, Recorded(10.0)), (2, Recorded(21.3))], "efficiency above 105 %"),
        ([(1, Recorded(slows=0.2))], "first and last window differ by more than 5 %"),
        ([(1, Recorded(oversubscribed=True))], "oversubscribed"),
        (
            [(1, Recorded(context={"data_fingerprint": "synthetic-detection-0"}))],
            "synthetic data: only times are meaningful",
        ),
        ([(1, Recorded(by_arrival=True))], "timed by arrival of lines"),
        ([(2, Recorded(context={"exchange": False}))], "without allreduce: this is no training"),
        ([(1, Recorded(state="failed"))], "run-0: failed"),
        ([(1, Recorded(iterations=10))], "run-0: only 10 iterations reported, no rate after the warm-up"),
    ],
)
def test_rows_with_caveats_are_flagged(runs: Path, recorded: list[tuple[int, Recorded]], flag: str) -> None:
    report = over_nodes(runs, *recorded)
    assert flag in [note for _, note in table(report).notes]
    assert flag in report.rows[-1].flags


def test_a_clean_row_has_no_flags_and_its_table_no_notes(runs: Path) -> None:
    report = over_nodes(runs, (1, Recorded(10.0)), (1, Recorded(10.4)), (2, Recorded(20.9)))
    assert table(report).notes == []
    assert "Notes" not in table(report).header


def test_reading_by_arrival_is_explained(runs: Path) -> None:
    assert any(
        "arrival of one line" in messages for messages in over_nodes(runs, (1, Recorded(by_arrival=True))).method
    )


def test_interruptions_are_counted_and_their_iterations_only_once(runs: Path) -> None:
    row = only(over_nodes(runs, (1, Recorded(iterations=120, interrupted_at=(50, 90)))))
    rates = row.runs[0].training.rates
    assert row.interruptions == 2
    assert rates is not None
    assert rates.left_out["repeated after a restart"] == 20
    assert rates.iterations + rates.left_out["warm-up"] == 120


def test_runs_of_different_work_are_refused_with_what_differs(runs: Path) -> None:
    data = [{"data_fingerprint": "one"}, {"data_fingerprint": "two"}]
    with pytest.raises(
        InputError, match=r"runs: run-1 measured different work than run-0 \(data_fingerprint: one, two\): .*--force"
    ):
        over_nodes(runs, *((1, Recorded(context=context)) for context in data))


def test_runs_with_the_same_difference_share_one_line(runs: Path) -> None:
    other = Recorded(work={"args": ["--fast"]})
    with pytest.raises(InputError) as refused:
        over_nodes(runs, (1, Recorded()), (2, other), (4, other))
    assert len(refused.value.problems) == 1
    assert "run-1, run-2 measured different work than run-0" in str(refused.value)


def test_another_machine_is_refused_too(runs: Path) -> None:
    machine = {"cpu": "Other CPU", "cores": 8, "memory_gib": 32, "gpus": [], "system": "Linux 6"}
    with pytest.raises(InputError, match=r"machine\.cpu: Test CPU, Other CPU"):
        over_nodes(runs, (1, Recorded()), (2, Recorded(work={"machine": machine})))


def test_forced_runs_of_different_work_stand_in_lines_of_their_own_and_are_marked(runs: Path) -> None:
    other = Recorded(20.0, work={"args": ["--fast"]})
    report = over_nodes(runs, (1, Recorded()), (2, other), force=True)
    assert [row.line.variant for row in report.rows] == ["digits A", "digits B"]
    assert [row.efficiency for row in report.rows] == [None, None]
    assert report.rows[1].flags == ("different work",)
    assert report.warnings[0] == "run-1 measured different work than run-0 (args: --global-batch 64, --fast)"


def test_variants_of_a_sweep_may_differ_in_what_they_declare_and_in_nothing_else(runs: Path) -> None:
    factors = StudyOptions([1], ["fast:args+=--fast"], repeats=1)
    unlike = Recorded(context={"data_fingerprint": "two"})
    record_sweep(
        runs,
        SPEC,
        factors,
        {("base", 1): [Recorded(context={"data_fingerprint": "one"})], ("fast", 1): [unlike]},
    )
    with pytest.raises(InputError, match="data_fingerprint"):
        gather(["sweep-1"], runs, NOW)
    assert len(gather(["sweep-1"], runs, NOW, force=True).rows) == 2


def test_an_unfinished_sweep_is_reported_with_what_is_missing(runs: Path) -> None:
    record_sweep(
        runs, SPEC, StudyOptions([1, 2], repeats=2), {("base", 1): [Recorded()] * 2, ("base", 2): [Recorded()]}
    )
    report = gather([], runs, NOW)
    assert [len(row.runs) for row in report.rows] == [2, 1]
    assert len(report.warnings) == 1
    assert re.fullmatch(r"Trial \d \(2 nodes, repeat 2 of 2\) has not run yet\.", report.warnings[0])


def test_parallel_reading_gives_the_same_report(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = sweep_report(runs).to_json()
    monkeypatch.setattr(gathering, "_PARALLEL_FROM", 0)
    assert gather(["sweep-1"], runs, NOW).to_json() == alone


def test_a_sweep_without_a_finished_trial_says_so(runs: Path) -> None:
    record_sweep(runs, SPEC, StudyOptions([1], repeats=1), {("base", 1): []})
    with pytest.raises(InputError, match="no trial has succeeded yet"):
        gather(["sweep-1"], runs, NOW)


def test_a_run_that_was_cleaned_away_is_missing_from_its_sweep_and_the_report_says_so(runs: Path) -> None:
    record_sweep(runs, SPEC, StudyOptions([1], repeats=2), {("base", 1): [Recorded()] * 2})
    shutil.rmtree(runs / "run-base-1-2")
    report = gather(["sweep-1"], runs, NOW)
    assert len(only(report).runs) == 1
    assert report.warnings[0].endswith("the folder of its run run-base-1-2 has been removed.")


def test_an_empty_folder_and_unknown_ids_are_refused(runs: Path) -> None:
    with pytest.raises(UnknownRun, match="nothing recorded"):
        gather([], runs, NOW)
    with pytest.raises(UnknownRun, match="no such run"):
        gather(["nope"], runs, NOW)


def test_a_sweep_is_not_mixed_with_runs(runs: Path) -> None:
    sweep_report(runs)
    with pytest.raises(InputError, match="reported alone"):
        gather(["sweep-1", "run-base-1-1"], runs, NOW)


@pytest.mark.parametrize("damage", ["", "{", '{"name": "x"}'])
def test_a_run_with_a_damaged_plan_is_refused_by_its_id(runs: Path, damage: str) -> None:
    record(runs, "run-0", SPEC, Recorded()).plan.write_text(damage)
    with pytest.raises(InputError, match="run-0"):
        gather(["run-0"], runs, NOW)


def test_the_summarys_work_has_precedence_over_the_plans(runs: Path) -> None:
    paths = record(runs, "run-0", SPEC, Recorded())
    identity = json.loads(paths.plan.read_text())["work"]
    paths.plan.write_text('{"name": "digits"}')
    paths.summary.write_text(json.dumps({"work": {**identity, "seed": 7}, "oversubscribed": True}))
    report = gather(["run-0"], runs, NOW)
    assert dict(report.conditions)["Seed"] == "7"
    assert "oversubscribed" in only(report).flags


def test_a_torn_last_metric_line_does_not_matter(runs: Path) -> None:
    paths = record(runs, "run-0", SPEC, Recorded())
    whole = only(gather(["run-0"], runs, NOW)).iterations_per_second
    with paths.metrics.open("a") as file:
        file.write('{"t": 1, "kind": "met')
    assert only(gather(["run-0"], runs, NOW)).iterations_per_second == whole


def test_a_report_reads_no_more_of_a_run_than_its_folder(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report may be made on another machine than the run's: this one is not inspected."""
    report = over_nodes(runs, (1, Recorded()))
    facts = dict(report.conditions)
    assert facts["Machine"] == "Test CPU, 8 cores, 32 GiB"
    assert facts["Versions"] == "framework 1.0, open_mpi 5.0.11"
    assert facts["Code"] == f"commit {'c' * 12}; programs {'b' * 12}"


def test_a_run_on_an_unknown_machine_is_reported_with_what_its_program_reported(runs: Path) -> None:
    data = dict.fromkeys(("files", "bytes", "listing", "state", "content"))
    other = {"machine": None, "data": {"path": "/data/voc", **data}}
    facts = dict(over_nodes(runs, (1, Recorded(work=other, context={"hosts": ["pod-0"]}))).conditions)
    assert (facts["Hosts"], facts["Data"]) == ("pod-0", "/data/voc")
    assert "Machine" not in facts
