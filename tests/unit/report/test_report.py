import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotmpi.core.errors import InputError, UnknownRun
from spotmpi.report import charts, figures
from spotmpi.report import gather as gathering
from spotmpi.report.files import markdown, table
from spotmpi.report.gather import gather
from spotmpi.report.report import Report
from spotmpi.spec.job import JobSpec, Limits, Metrics
from spotmpi.study.study import StudyOptions
from tests.unit.report.recorded_runs import (
    NOW,
    SPEC,
    START,
    Recorded,
    only,
    over_nodes,
    record,
    record_sweep,
    sweep_report,
    work_of,
)

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


def test_strong_and_weak_scaling_never_share_a_line_a_colour_a_chart_or_an_ideal(runs: Path) -> None:
    weak = Recorded(10.0, scaling="weak", samples=32)
    recorded = [(1, Recorded(10.0)), (4, Recorded(30.0)), (1, weak), (4, replace(weak, rate=9.0, samples=128))]
    report = over_nodes(runs, *recorded)
    assert len(report.lines) == 2
    drawn = charts.charts(report)[:4]
    titles = [(chart.title, chart.subtitle.split(",")[0]) for chart in drawn]
    assert titles[::2] == [("Iterations per second", f"{kind} scaling") for kind in ("strong", "weak")]
    colours: dict[str, set[int]] = {}
    for chart in drawn:
        (measured,) = (curve for curve in chart.curves if curve.kind == figures.MEASURED)
        colours.setdefault(measured.label, set()).add(measured.colour)
    assert sorted(colours.values(), key=str) == [{0}, {1}]
    ideals = [curve.points for chart in drawn[::2] for curve in chart.curves if curve.kind == figures.IDEAL]
    assert [[round(y, 1) for _, y in points] for points in ideals] == [[10.0, 40.0], [10.0, 10.0]]


def test_the_caption_names_the_kind_of_scaling_of_each_variant(runs: Path) -> None:
    """It named none where the batches of variants differ."""
    caption = table(_of_batches(runs, [1, 2])).caption
    assert "Strong scaling: global batch 64 (base); global batch 128 (wide)." in caption
    assert "Weak scaling: batch 32 per worker (weak)." in caption


def test_nothing_is_called_scaling_that_has_one_number_of_ranks(runs: Path) -> None:
    caption = table(_of_batches(runs, [2])).caption
    assert "caling" not in caption
    assert "Global batch 64 (base); global batch 128 (wide). Batch 32 per worker (weak)." in caption


def _of_batches(runs: Path, nodes: list[int]) -> Report:
    """The report of a sweep whose variants differ in their batches."""
    recorded = {}
    for count in nodes:
        recorded["base", count] = [Recorded()]
        recorded["wide", count] = [Recorded(samples=128)]
        recorded["weak", count] = [Recorded(scaling="weak", samples=32 * count)]
        recorded["odd", count] = [Recorded(samples=None)]
    variants = ["wide:args+=--global-batch 128", "weak:args+=--batch-per-worker 32", "odd:args+=--odd"]
    record_sweep(runs, SPEC, StudyOptions(nodes, variants, repeats=1), recorded)
    return gather([], runs, NOW)


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
    assert not any(curve.kind == figures.IDEAL for chart in charts.charts(report) for curve in chart.curves)


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
        ([(1, Recorded(context={"data_fingerprint": "synthetic-0"}))], "synthetic data: only times are meaningful"),
        ([(1, Recorded(by_arrival=True))], "timed by arrival of lines"),
        ([(2, Recorded(context={"allreduce": False}))], "without allreduce: this is not training"),
        ([(1, Recorded(state="failed"))], "run-0: failed"),
        ([(1, Recorded(iterations=10))], "run-0: no rate from 10 iterations: 10 warm-up"),
    ],
)
def test_rows_with_caveats_are_flagged(runs: Path, recorded: list[tuple[int, Recorded]], flag: str) -> None:
    report = over_nodes(runs, *recorded)
    assert flag in [note for _, note in table(report).notes]
    assert flag in report.rows[-1].flags
    by_arrival = "arrival" in flag
    assert any("arrival of one line" in paragraph for paragraph in report.method) == by_arrival


def test_conditions_that_differ_have_their_variants_or_their_number(runs: Path) -> None:
    """They were those of the first run alone, such as the one GPU of a study of two kinds of node."""
    machine = {**work_of(SPEC)["machine"], "cpu": "Other CPU"}
    other = Recorded(work={"machine": machine, "versions": {}}, context={"hosts": ["c"], "versions": {}})
    recorded = [(1, Recorded(context={"hosts": ["a"]})), (2, Recorded(context={"hosts": ["b"]})), (1, other)]
    conditions = dict(over_nodes(runs, *recorded, force=True).conditions)
    assert conditions["Machine"] == ("Test CPU, 8 cores, 32 GiB (digits A); Other CPU, 8 cores, 32 GiB (digits B)")
    assert conditions["Versions"] == "framework 1.0, open_mpi 5.0.11 (digits A); not recorded (digits B)"
    assert conditions["Hosts"] == "a (and 2 more)"
    assert conditions["System"] == "Linux 6"


def test_a_clean_row_has_no_flags_and_its_table_no_notes(runs: Path) -> None:
    report = over_nodes(runs, (1, Recorded(10.0)), (1, Recorded(10.4)), (2, Recorded(20.9)))
    assert table(report).notes == []
    assert "Notes" not in table(report).header


def test_the_failure_that_ends_a_run_is_no_restart(runs: Path) -> None:
    spec = SPEC.model_copy(update={"limits": Limits(failures=1)})
    paths = record(runs, "run-1", spec, Recorded(state="running"))
    with paths.events.open("a") as file:
        for event in (
            {"event": "restarted", "failures": 1, "interruptions": 0},
            {"event": "failed", "failures": 2, "interruptions": 0},
        ):
            file.write(json.dumps({"t": START + 9, **event}) + "\n")
    report = gather(["run-1"], runs, NOW, False)
    assert report.rows[0].failures == 1
    assert "Restarts: 1 failure." in table(report).caption


def test_interruptions_are_counted_and_their_iterations_only_once(runs: Path) -> None:
    row = only(over_nodes(runs, (1, Recorded(iterations=120, interrupted_at=(50, 90)))))
    rates = row.runs[0].training.rates
    assert row.interruptions == 2
    assert rates is not None
    assert rates.excluded["repeated after a restart"] == 20
    assert rates.iterations + rates.excluded["warm-up"] == 120


OTHER_MACHINE = {"cpu": "Other CPU", "cores": 8, "memory_gib": 32, "gpus": [], "system": "Linux 6"}


@pytest.mark.parametrize(
    ("first", "other", "difference"),
    [
        ({"context": {"data_fingerprint": "one"}}, {"context": {"data_fingerprint": "2"}}, "data_fingerprint: one, 2"),
        ({}, {"work": {"args": ["--fast"]}}, "args: --global-batch 64, --fast"),
        ({}, {"work": {"machine": OTHER_MACHINE}}, "machine.cpu: Test CPU, Other CPU"),
    ],
)
def test_runs_of_different_work_are_refused_in_one_line_for_each_difference(
    runs: Path, first: dict[str, Any], other: dict[str, Any], difference: str
) -> None:
    with pytest.raises(InputError) as refused:
        over_nodes(runs, (1, Recorded(**first)), (2, Recorded(**other)), (4, Recorded(**other)))
    (problem,) = refused.value.problems
    assert str(problem).startswith(f"runs: run-1, run-2 measured different work than run-0 ({difference}): ")
    assert "force=True" in str(problem)


def test_forced_runs_of_different_work_stand_in_lines_of_their_own_and_are_marked(runs: Path) -> None:
    other = Recorded(20.0, work={"args": ["--fast"]})
    report = over_nodes(runs, (1, Recorded()), (2, other), force=True)
    assert [row.line.variant for row in report.rows] == ["digits A", "digits B"]
    assert [row.efficiency for row in report.rows] == [None, None]
    assert report.rows[1].flags == ("different work",)
    assert report.warnings[0] == "run-1 measured different work than run-0 (args: --global-batch 64, --fast)"


def test_variants_of_a_sweep_may_differ_in_what_they_declare_and_in_nothing_else(runs: Path) -> None:
    parameters = StudyOptions([1], ["fast:args+=--fast"], repeats=1)
    unlike = Recorded(context={"data_fingerprint": "two"})
    base = Recorded(context={"data_fingerprint": "one"})
    record_sweep(runs, SPEC, parameters, {("base", 1): [base], ("fast", 1): [unlike]})
    with pytest.raises(InputError, match="data_fingerprint"):
        gather(["sweep-1"], runs, NOW)
    assert len(gather(["sweep-1"], runs, NOW, force=True).rows) == 2


def test_an_unfinished_sweep_is_reported_with_what_is_missing(runs: Path) -> None:
    record_sweep(
        runs, SPEC, StudyOptions([1, 2], repeats=6), {("base", 1): [Recorded()] * 6, ("base", 2): [Recorded()]}
    )
    report = gather([], runs, NOW)
    assert [len(row.runs) for row in report.rows] == [6, 1]
    assert len(report.warnings) == 4
    assert re.fullmatch(r"Trial \d \(2 nodes, repeat 2 of 6\) has not run yet\.", report.warnings[0])
    assert report.warnings[-1] == "2 more trials have not run yet."


def test_parallel_reading_gives_the_same_report(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = sweep_report(runs).to_json()
    monkeypatch.setattr(gathering, "_PARALLEL_FROM", 0)
    assert gather(["sweep-1"], runs, NOW).to_json() == alone


def test_a_script_without_a_main_guard_reports_a_large_sweep_whatever_starts_processes(runs: Path) -> None:
    """As on macOS, and since Python 3.14 on Linux, processes of multiprocessing import their parent's script."""
    record_sweep(runs, SPEC, StudyOptions([1], repeats=2), {("base", 1): [Recorded()] * 2})
    alone = gather(["sweep-1"], runs, NOW).to_json()
    script = runs.parent / "script.py"
    script.write_text(
        "import multiprocessing\n"
        "multiprocessing.set_start_method('spawn', force=True)\n"
        "import json, sys\n"
        "from datetime import UTC, datetime\n"
        "from pathlib import Path\n"
        "from spotmpi.report import gather\n"
        "gather._PARALLEL_FROM = 0\n"
        "now = datetime.fromtimestamp(float(sys.argv[2]), UTC)\n"
        "print(json.dumps(gather.gather(['sweep-1'], Path(sys.argv[1]), now).to_json()))\n"
    )
    words = [sys.executable, str(script), str(runs), str(NOW.timestamp())]
    process = subprocess.run(words, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == json.loads(json.dumps(alone))


def test_a_run_that_was_cleaned_away_is_missing_from_its_sweep_and_the_report_says_so(runs: Path) -> None:
    record_sweep(runs, SPEC, StudyOptions([1], repeats=2), {("base", 1): [Recorded()] * 2})
    shutil.rmtree(runs / "run-base-1-2")
    report = gather(["sweep-1"], runs, NOW)
    assert len(only(report).runs) == 1
    assert report.warnings[0].endswith("the folder of its run run-base-1-2 has been removed.")


def test_ids_that_cannot_be_reported_are_refused_with_the_reason(runs: Path) -> None:
    with pytest.raises(UnknownRun, match=r"^runs = .*: nothing is recorded there"):
        gather([], runs, NOW)
    record_sweep(runs, SPEC, StudyOptions([1], repeats=1), {("base", 1): []})
    record(runs, "run-0", SPEC, Recorded())
    with pytest.raises(UnknownRun, match=r"no such run or sweep in .*; sweeps: sweep-1; `spotmpi list`"):
        gather(["nope"], runs, NOW)
    with pytest.raises(InputError, match="no trial has succeeded yet"):
        gather(["sweep-1"], runs, NOW)
    with pytest.raises(InputError, match="reported alone"):
        gather(["sweep-1", "run-0"], runs, NOW)


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


def test_a_run_on_an_unknown_machine_is_reported_with_what_its_program_reported(runs: Path) -> None:
    data = dict.fromkeys(("files", "bytes", "listing", "state", "content"))
    other = {"machine": None, "data": {"path": "/data/voc", **data}}
    facts = dict(over_nodes(runs, (1, Recorded(work=other, context={"hosts": ["pod-0"]}))).conditions)
    assert (facts["Hosts"], facts["Data"]) == ("pod-0", "/data/voc")
    assert "Machine" not in facts


def test_an_abbreviated_id_that_a_sweep_shares_with_other_runs_is_refused(runs: Path) -> None:
    record_sweep(runs, SPEC, StudyOptions([1], repeats=1), {("base", 1): [Recorded()]})
    (runs / "sweeps" / "sweep-1").rename(runs / "sweeps" / "run-0")
    assert ("Sweep", "run-0") in gather(["ru"], runs, NOW).conditions, "its own runs have ids like its own"
    record(runs, "run-22", SPEC, Recorded())
    with pytest.raises(UnknownRun, match="matches sweep run-0 and runs, such as run-22; write more of the id"):
        gather(["ru"], runs, NOW)
    assert ("Sweep", "run-0") in gather(["run-0"], runs, NOW).conditions
    assert gather(["run-22"], runs, NOW).commands[0].startswith("spotmpi run ")


def test_more_kinds_of_work_than_letters_have_two(runs: Path) -> None:
    ids = [f"run-{at:02}" for at in range(28)]
    for at, run in enumerate(ids):
        record(runs, run, SPEC, Recorded(work={"args": [str(at)]}))
    lines = gather(ids, runs, NOW, force=True).lines
    assert [line.variant for line in lines[24:]] == ["digits Y", "digits Z", "digits AA", "digits AB"]


@pytest.mark.parametrize(
    ("sizes", "nodes", "note"), [([2], 2, None), ([2, 4], 4, "worked on 2 and 4 nodes in turn"), ([], 4, None)]
)
def test_a_run_of_several_sizes_counts_the_nodes_on_which_it_worked(
    runs: Path, sizes: list[int], nodes: int, note: str | None
) -> None:
    """It was reported as one of the most nodes that it may have, with the efficiency of so many."""
    paths = record(runs, "run-1", SPEC.model_copy(update={"nodes": [2, 4]}), Recorded())
    for number, size in enumerate([*sizes, 1], 1):
        folder = paths.folder / "attempts" / str(number)
        folder.mkdir(parents=True)
        world = {"members": [str(at) for at in range(size)], "ranks": 1, "size": size, "rate": None}
        last = None if number > len(sizes) else 10  # the last one has ended before its first iteration
        attempt = {"cause": "interruption", "started": 1.0, "ended": 2.0, "last_iteration": last, "world": world}
        (folder / "node-0.json").write_text(json.dumps(attempt))
    (row,) = gather(["run-1"], runs, NOW).rows
    assert row.nodes == nodes
    assert [flag.partition(":")[0] for flag in row.flags if "in turn" in flag] == ([note] if note else [])
