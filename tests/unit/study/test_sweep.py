import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi.core.errors import InputError, RunInUse, UnknownRun
from spotmpi.runs import fingerprint
from spotmpi.spec import variants
from spotmpi.spec.job import JobSpec
from spotmpi.study import execution, sweep
from spotmpi.study.design import Factors, crossed
from spotmpi.study.sweep import Sweep
from tests.unit.study.fake_runner import FakeRunner, quiet, states

SPEC = JobSpec(name="it's a test", command=["train"], launcher="none", args=["--a", "1"])


def open_sweep(
    runs: Path, factors: Factors, name: str = "sweep-1", spec: JobSpec = SPEC, said: list[str] | None = None
) -> Sweep:
    say = quiet if said is None else said.append
    return execution.open_sweep(crossed(spec, factors), execution.Recording(runs, name), factors.fresh, say)


def test_each_repeat_goes_through_all_combinations_in_an_order_of_its_own() -> None:
    trials = crossed(SPEC, Factors([1, 2, 3, 4], ["b:args+=--x"], repeats=4)).trials()
    assert [trial.number for trial in trials] == list(range(1, 33))
    blocks = [[(t.variant, t.nodes) for t in trials if t.repeat == repeat] for repeat in (1, 2, 3, 4)]
    for block in blocks:
        assert sorted(block) == [(variant, nodes) for variant in ("b", "base") for nodes in (1, 2, 3, 4)]
    assert len({tuple(block) for block in blocks}) == 4
    assert [t.repeat for t in trials] == sorted(t.repeat for t in trials)


def test_the_order_is_the_seeds_and_nothing_elses() -> None:
    one, same, other = (crossed(SPEC, Factors(range(1, 9), seed=seed)).trials() for seed in (1, 1, 2))
    assert one == same
    assert [t.nodes for t in one] != [t.nodes for t in other]


def test_a_trial_runs_its_variants_spec_on_its_nodes() -> None:
    design = crossed(SPEC, Factors([3], ["b:args+=--x 'y z',slots=2"]))
    spec = design.spec_of(next(trial for trial in design.trials() if trial.variant == "b"))
    assert (spec.nodes, spec.slots, spec.args) == (3, 2, ["--a", "1", "--x", "y z"])
    assert design.variant("b").keys == ("args", "slots")


def test_a_value_with_commas_stays_whole_inside_brackets_and_quotes() -> None:
    base, lists, text = variants.read(['l:args=["a", "b"],slots=2', 't:env.X="1,2",env.Y=z'], SPEC)
    assert (base.spec, lists.spec.args, lists.spec.slots) == (SPEC, ["a", "b"], 2)
    assert text.spec.env == {"X": "1,2", "Y": "z"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("noname", "write it as name:key=value"),
        ("empty:", "write it as name:key=value"),
        (":slots=2", "its name ''"),
        ("it's bad:slots=2", "may hold letters"),
        ("x:slots", "sets nothing"),
        ("x:slots=0", "slots"),
        ("x:slot=2", "did you mean slots?"),
        ("x:nodes=2", "--nodes"),
        ("x:env+=A", "only args can be added to"),
        ("x:args+='open", "No closing quotation"),
        ("x:slots=1", "changes nothing that is measured"),
        ("x:limits.failures=9", "changes nothing that is measured"),
        ("base:slots=2", "the spec itself goes by that name"),
    ],
)
def test_a_wrong_variant_is_refused_with_its_text_and_a_remedy(text: str, told: str) -> None:
    with pytest.raises(InputError) as refused:
        variants.read([text], SPEC)
    assert told in str(refused.value)
    assert "--variant" in str(refused.value)


def test_two_variants_of_one_name_or_of_one_meaning_are_refused_at_once() -> None:
    with pytest.raises(InputError) as refused:
        variants.read(["a:slots=2", "a:slots=3", "b:slots=2"], SPEC)
    assert [problem.remedy for problem in refused.value.problems] == [
        "two variants have this name; give it another",
        "is the same as a; leave it out or change another key",
    ]


def test_all_problems_of_the_factors_come_at_once() -> None:
    with pytest.raises(InputError) as refused:
        crossed(SPEC, Factors([1, 1], ["x:slots=1"], repeats=0, retries=-1))
    assert [problem.field for problem in refused.value.problems] == [
        "--nodes",
        "--repeats",
        "--retries",
        "--variant",
    ]


def test_what_keeps_any_trial_from_running_is_told_before_the_first_one_starts() -> None:
    runner = FakeRunner()
    runner.invalid = lambda spec: spec.nodes * spec.slots > 4
    design = crossed(SPEC, Factors([1, 2, 4], ["b:slots=2"]))
    with pytest.raises(InputError, match="slots = 2"):
        execution.require_valid(design, runner)
    execution.require_valid(crossed(SPEC, Factors([1, 2, 4])), runner)


def test_a_sweep_runs_every_trial_once_and_notes_its_run(tmp_path: Path) -> None:
    it, runner = open_sweep(tmp_path, Factors([1, 2], repeats=2)), FakeRunner()
    execution.carry_out(it, runner, quiet)
    recorded = sweep.load(it.folder)
    assert [(t.runs[0], t.nodes) for t in recorded.trials] == runner.started
    assert states(it) == ["succeeded"] * 4
    assert recorded.over


def test_a_broken_off_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    factors = Factors([1, 2], repeats=2)
    it, runner = open_sweep(tmp_path, factors), FakeRunner({3: ["power cut"]})
    with pytest.raises(KeyboardInterrupt):
        execution.carry_out(it, runner, quiet)
    assert states(it) == ["succeeded", "succeeded", "running", "pending"]
    said: list[str] = []
    again = open_sweep(tmp_path, factors, "sweep-2", said=said)
    assert again.id == it.id
    assert said == ["continuing sweep sweep-1: 2 of 4 trials are done (--new starts over)"]
    runner.known["run-3"] = "succeeded"  # its supervisor outlived our terminal
    execution.carry_out(again, runner, quiet)
    assert [t.runs for t in sweep.load(it.folder).trials] == [("run-1",), ("run-2",), ("run-3",), ("run-4",)]
    assert states(it) == ["succeeded"] * 4


@pytest.mark.parametrize("became", ["lost", "stopped"])
def test_a_trial_that_came_to_nothing_while_nobody_watched_is_run_anew_and_not_counted_as_failed(
    tmp_path: Path, became: str
) -> None:
    it, runner = open_sweep(tmp_path, Factors([1], repeats=1)), FakeRunner({1: ["power cut"]})
    with pytest.raises(KeyboardInterrupt):
        execution.carry_out(it, runner, quiet)
    runner.known["run-1"] = became
    execution.carry_out(it, runner, quiet)
    trial = sweep.load(it.folder).trials[0]
    assert (trial.state, trial.runs, trial.failures) == ("succeeded", ("run-1", "run-2"), 0)


def test_a_trial_noted_but_never_started_is_run_under_a_new_id(tmp_path: Path) -> None:
    it, runner = open_sweep(tmp_path, Factors([1], repeats=1)), FakeRunner({1: ["power cut"]})
    with pytest.raises(KeyboardInterrupt):
        execution.carry_out(it, runner, quiet)
    runner.known.clear()
    execution.carry_out(it, runner, quiet)
    assert sweep.load(it.folder).trials[0].runs == ("run-2",)


def test_a_stopped_trial_stops_the_sweep_which_goes_on_later(tmp_path: Path) -> None:
    factors = Factors([1, 2], repeats=1)
    it, runner = open_sweep(tmp_path, factors), FakeRunner({1: ["stopped"]})
    with pytest.raises(execution.Stopped, match="run-1 was stopped") as stopped:
        execution.carry_out(it, runner, quiet)
    assert stopped.value.exit_code == 130
    assert states(it) == ["pending", "pending"]
    execution.carry_out(open_sweep(tmp_path, factors), runner, quiet)
    assert states(it) == ["succeeded", "succeeded"]


def test_a_failed_trial_is_tried_again_and_then_marked_while_the_sweep_goes_on(tmp_path: Path) -> None:
    it = open_sweep(tmp_path, Factors([1, 2], repeats=1, retries=1))
    runner, said = FakeRunner({1: ["failed"], 2: ["failed"]}), list[str]()
    execution.carry_out(it, runner, said.append)
    first, second = sweep.load(it.folder).trials
    assert (first.state, first.failures, first.runs, first.reason) == ("failed", 2, ("run-1", "run-2"), "it failed")
    assert second.state == "succeeded"
    assert "trial 1 failed (try 2 of 2): it failed" in said


def test_a_trial_that_fails_once_succeeds_with_its_second_run(tmp_path: Path) -> None:
    it = open_sweep(tmp_path, Factors([1], repeats=1))
    execution.carry_out(it, FakeRunner({1: ["lost"]}), quiet)
    trial = sweep.load(it.folder).trials[0]
    assert (trial.state, trial.failures, trial.runs, trial.reason) == ("succeeded", 1, ("run-1", "run-2"), None)
    assert execution.paths_of(trial, tmp_path) is not None


def test_failures_are_remembered_over_a_break(tmp_path: Path) -> None:
    it = open_sweep(tmp_path, Factors([1], repeats=1, retries=1))
    runner = FakeRunner({1: ["failed"], 2: ["power cut"]})
    with pytest.raises(KeyboardInterrupt):
        execution.carry_out(it, runner, quiet)
    runner.known["run-2"] = "failed"
    execution.carry_out(it, runner, quiet)
    assert sweep.load(it.folder).trials[0].failures == 2
    assert states(it) == ["failed"]
    assert len(runner.started) == 2


@pytest.mark.parametrize("change", [{"seed": 2}, {"repeats": 3}, {"nodes": [1, 2, 4]}, {"fresh": True}])
def test_another_design_is_another_sweep(tmp_path: Path, change: dict[str, Any]) -> None:
    factors = Factors([1, 2], repeats=2)
    open_sweep(tmp_path, factors)
    assert open_sweep(tmp_path, dataclasses.replace(factors, **change), "sweep-2").id == "sweep-2"


def test_a_sweep_is_not_continued_with_other_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("1")
    spec = SPEC.model_copy(update={"command": ["python3", str(script)]})
    open_sweep(tmp_path, Factors([1]), spec=spec)
    script.write_text("2")
    said: list[str] = []
    assert open_sweep(tmp_path, Factors([1]), "sweep-2", spec, said).id == "sweep-2"
    assert "of different work" in said[0]


def test_a_sweep_at_another_place_is_another_sweep_and_its_command_names_the_place(tmp_path: Path) -> None:
    design = crossed(SPEC, Factors([1]))
    here = execution.open_sweep(design, execution.Recording(tmp_path, "here"), False, quiet)
    there = execution.open_sweep(design, execution.Recording(tmp_path, "there", "kubernetes/team"), False, quiet)
    assert (here.id, there.id) == ("here", "there")
    assert there.command.endswith("--seed 1 --on kubernetes/team")
    assert execution.open_sweep(design, execution.Recording(tmp_path, "x", "kubernetes/team"), False, quiet) == there


def test_a_finished_sweep_is_left_alone_by_the_same_command(tmp_path: Path) -> None:
    it = open_sweep(tmp_path, Factors([1], repeats=1))
    execution.carry_out(it, FakeRunner(), quiet)
    assert open_sweep(tmp_path, Factors([1], repeats=1), "sweep-2").id == "sweep-2"


def test_two_processes_never_carry_out_one_sweep(tmp_path: Path) -> None:
    it = open_sweep(tmp_path, Factors([1], repeats=1))
    with it.held(), pytest.raises(RunInUse, match="another process"):
        execution.carry_out(sweep.load(it.folder), FakeRunner(), quiet)
    assert states(it) == ["pending"]


def test_the_record_names_the_command_that_repeats_it(tmp_path: Path) -> None:
    it = open_sweep(tmp_path / "a b", Factors([1, 2], ["b:args+=--x"], repeats=2, seed=7))
    assert it.command == (
        f"spotmpi bench '{tmp_path}/a b/sweeps/sweep-1/spec.toml' --nodes 1,2 --repeats 2 --seed 7 "
        "--variant b:args+=--x"
    )


def test_a_record_reads_back_as_it_was(tmp_path: Path) -> None:
    it = open_sweep(tmp_path, Factors([2, 1], ["b:args+=--x 'y z',slots=2"], repeats=2, seed=7, retries=5))
    again = sweep.find("sweep", tmp_path)
    assert again == it
    assert again.work == json.loads(json.dumps(fingerprint.identify(SPEC)))


def test_a_damaged_record_is_told_with_its_folder_and_hides_no_other(tmp_path: Path) -> None:
    damaged = open_sweep(tmp_path, Factors([1]))
    (damaged.folder / "sweep.json").write_text("{")
    with pytest.raises(InputError, match=r"sweep\.json cannot be read"):
        sweep.find("sweep-1", tmp_path)
    open_sweep(tmp_path, Factors([1, 2]), "other")
    assert sweep.unfinished(tmp_path, crossed(SPEC, Factors([1, 2])), sweep.LOCAL) is not None


def test_an_ambiguous_or_unknown_sweep_is_refused(tmp_path: Path) -> None:
    open_sweep(tmp_path, Factors([1]), "sweep-1")
    open_sweep(tmp_path, Factors([2]), "sweep-2")
    with pytest.raises(UnknownRun, match="fits several sweeps: sweep-1, sweep-2"):
        sweep.find("sweep", tmp_path)
    with pytest.raises(UnknownRun, match="no such sweep"):
        sweep.find("other", tmp_path)
