import dataclasses
import errno
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from spotmpi.backends.targets import Target
from spotmpi.core.errors import InputError, RunInUse, SpotmpiError, UnknownRun
from spotmpi.runs import fingerprint
from spotmpi.spec.job import JobSpec
from spotmpi.study import execution
from spotmpi.study.parameters import read_variants
from spotmpi.study.study import StudyOptions, Trial, grid_study
from spotmpi.study.sweep import Sweep, find_sweep, load_sweep, unfinished_sweep
from tests.transient_errors import TransientErrors
from tests.unit.study.studies import FakeRunner, quiet, states

SPEC = JobSpec(name="it's a test", command=["train"], launcher="none", args=["--a", "1"])


def open_sweep(
    runs: Path, parameters: StudyOptions, name: str = "sweep-1", spec: JobSpec = SPEC, messages: list[str] | None = None
) -> Sweep:
    echo = quiet if messages is None else messages.append
    return execution.open_sweep(grid_study(spec, parameters), Target("local", runs), name, parameters.fresh, echo)


def test_the_order_is_the_seeds_and_nothing_elses() -> None:
    one, same, other = (grid_study(SPEC, StudyOptions(range(1, 9), seed=seed)).trials() for seed in (1, 1, 2))
    assert one == same
    assert [t.nodes for t in one] != [t.nodes for t in other]


def test_a_trial_runs_its_variants_spec_on_its_nodes() -> None:
    study = grid_study(SPEC, StudyOptions([3], ["b:args+=--x 'y z',slots=2"]))
    spec = study.spec_of(next(trial for trial in study.trials() if trial.variant == "b"))
    assert (spec.nodes, spec.slots, spec.args) == (3, 2, ["--a", "1", "--x", "y z"])
    assert study.variant("b").keys == ("args", "slots")


def test_a_value_with_commas_stays_whole_inside_brackets_and_quotes() -> None:
    (base, lists, text), problems = read_variants(['l:args=["a", "b"],slots=2', 't:env.X="1,2",env.Y=z'], SPEC)
    assert (base.spec, lists.spec.args, lists.spec.slots) == (SPEC, ["a", "b"], 2)
    assert text.spec.env == {"X": "1,2", "Y": "z"}
    assert problems == []


def test_a_value_ends_at_a_comma_behind_escaped_and_unpaired_quotes() -> None:
    texts = [r'escaped:env.X="a\"b,c",slots=2', "unpaired:env.X=it's,slots=2", r'list:args=["a\"]","b,c"],slots=2']
    (_, *variants), problems = read_variants(texts, SPEC)
    assert [each.spec.slots for each in variants] == [2, 2, 2]
    assert [each.spec.env.get("X") for each in variants] == ['a"b,c', "it's", None]
    assert variants[-1].spec.args == ['a"]', "b,c"]
    assert problems == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("noname", "write it as name:key=value"),
        ("empty:", "write it as name:key=value"),
        (":slots=2", "its name ''"),
        ("it's bad:slots=2", "may hold letters"),
        ("x:slots", "sets nothing"),
        ("x:slots=0", "slots"),
        ("x:slot=2", "did you mean slots?"),
        ("x:nodes=2", "varied with nodes"),
        ("x:env+=A", "env is not a list: += appends to lists only"),
        ("x:args+='open", "No closing quotation"),
        ("x:slots=1", "changes nothing that is measured"),
        ("x:limits.failures=9", "changes nothing that is measured"),
        ("base:slots=2", "the spec itself has this name"),
    ],
)
def test_a_wrong_variant_is_refused_with_its_text_and_a_remedy(text: str, message: str) -> None:
    (base,), (problem,) = read_variants([text], SPEC)
    assert base.spec == SPEC
    assert message in str(problem)
    assert problem.field.startswith("variants")


def test_two_variants_of_one_name_or_of_one_meaning_are_refused_at_once() -> None:
    valid, problems = read_variants(["a:slots=2", "a:slots=3", "b:slots=2"], SPEC)
    assert [variant.name for variant in valid] == ["base", "a"]
    assert [problem.remedy for problem in problems] == [
        "two variants have this name; choose another",
        "is the same as a; leave it out or change another key",
    ]


@pytest.mark.parametrize("nodes", [[1, 1], [0]])
def test_all_problems_of_the_parameters_come_at_once(nodes: list[int]) -> None:
    with pytest.raises(InputError) as refused:
        grid_study(SPEC, StudyOptions(nodes, ["x:slots=1"], repeats=0, retries=-1))
    assert [problem.field for problem in refused.value.problems] == ["nodes", "repeats", "retries", "variants"]


def test_problems_of_any_trial_are_reported_before_the_first_one_starts() -> None:
    runner = FakeRunner()
    runner.invalid = lambda spec: spec.nodes * spec.slots > 4
    study = grid_study(SPEC, StudyOptions([1, 2, 4], ["b:slots=2"]))
    with pytest.raises(InputError, match="slots = 2"):
        execution.require_valid(study, runner)
    execution.require_valid(grid_study(SPEC, StudyOptions([1, 2, 4])), runner)


def test_a_sweep_runs_every_trial_once_notes_its_run_and_is_not_continued_once_finished(tmp_path: Path) -> None:
    parameters = StudyOptions([1, 2], repeats=2)
    sweep, runner = open_sweep(tmp_path, parameters), FakeRunner()
    execution.run_sweep(sweep, runner, quiet)
    recorded = load_sweep(sweep.folder)
    assert [(t.runs[0], t.nodes) for t in recorded.trials] == runner.started
    assert states(sweep) == ["succeeded"] * 4
    assert recorded.finished
    assert open_sweep(tmp_path, parameters, "sweep-2").id == "sweep-2"


def test_an_interrupted_sweep_continues(tmp_path: Path) -> None:
    parameters = StudyOptions([1, 2], repeats=2)
    sweep, runner = open_sweep(tmp_path, parameters), FakeRunner({3: "power cut"})
    with pytest.raises(KeyboardInterrupt):
        execution.run_sweep(sweep, runner, quiet)
    assert states(sweep) == ["succeeded", "succeeded", "running", "pending"]
    messages: list[str] = []
    again = open_sweep(tmp_path, parameters, "sweep-2", messages=messages)
    assert again.id == sweep.id
    assert messages == ["continuing sweep sweep-1: 2 of 4 trials done (StudyOptions(fresh=True) starts over)"]
    runner.states["run-3"] = "succeeded"  # its agent outlived our terminal
    execution.run_sweep(again, runner, quiet)
    assert [t.runs for t in load_sweep(sweep.folder).trials] == [("run-1",), ("run-2",), ("run-3",), ("run-4",)]
    assert states(sweep) == ["succeeded"] * 4


def test_a_stopped_trial_stops_the_sweep_which_continues_later(tmp_path: Path) -> None:
    parameters = StudyOptions([1, 2], repeats=1)
    sweep, runner = open_sweep(tmp_path, parameters), FakeRunner({1: "stopped"})
    with pytest.raises(execution.SweepStopped, match="run-1 was stopped") as stopped:
        execution.run_sweep(sweep, runner, quiet)
    assert stopped.value.exit_code == 130
    assert states(sweep) == ["pending", "pending"]
    execution.run_sweep(open_sweep(tmp_path, parameters), runner, quiet)
    assert states(sweep) == ["succeeded", "succeeded"]


@pytest.mark.parametrize(
    ("outcomes", "later", "expected"),
    [
        ({1: "failed", 2: "failed"}, None, Trial(1, "base", 1, 1, "failed", ("run-1", "run-2"), 2, "it failed")),
        ({1: "lost"}, None, Trial(1, "base", 1, 1, "succeeded", ("run-1", "run-2"), 1)),
        ({1: "power cut"}, "lost", Trial(1, "base", 1, 1, "succeeded", ("run-1", "run-2"))),
        ({1: "power cut"}, "stopped", Trial(1, "base", 1, 1, "succeeded", ("run-1", "run-2"))),
        ({1: "power cut"}, "never started", Trial(1, "base", 1, 1, "succeeded", ("run-2",))),
        (
            {1: "failed", 2: "power cut"},
            "failed",
            Trial(1, "base", 1, 1, "failed", ("run-1", "run-2"), 2, "it failed"),
        ),
    ],
)
def test_a_failed_trial_is_retried_and_one_that_was_lost_unobserved_or_never_started_does_not_count_as_failed(
    tmp_path: Path, outcomes: dict[int, str], later: str | None, expected: Trial
) -> None:
    """*later* is the state of the interrupted run when the same command continues the sweep."""
    sweep, runner = open_sweep(tmp_path, StudyOptions([1], repeats=1, retries=1)), FakeRunner(outcomes)
    messages: list[str] = []
    if later:
        with pytest.raises(KeyboardInterrupt):
            execution.run_sweep(sweep, runner, quiet, runner.clock)
        interrupted, _ = runner.started[-1]
        if later == "never started":
            del runner.states[interrupted]
        else:
            runner.states[interrupted] = later
    execution.run_sweep(sweep, runner, messages.append, runner.clock)
    assert load_sweep(sweep.folder).trials == [expected]
    assert ("trial 1 failed (try 2 of 2): it failed" in messages) == (expected.state == "failed")
    assert len(runner.started) == 2


@pytest.mark.parametrize("change", [{"seed": 2}, {"repeats": 3}, {"nodes": [1, 2, 4]}, {"fresh": True}])
def test_another_design_is_another_sweep(tmp_path: Path, change: dict[str, Any]) -> None:
    parameters = StudyOptions([1, 2], repeats=2)
    open_sweep(tmp_path, parameters)
    assert open_sweep(tmp_path, dataclasses.replace(parameters, **change), "sweep-2").id == "sweep-2"


def test_a_sweep_is_not_continued_with_other_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("1")
    spec = SPEC.model_copy(update={"command": ["python3", str(script)]})
    open_sweep(tmp_path, StudyOptions([1]), spec=spec)
    script.write_text("2")
    messages: list[str] = []
    assert open_sweep(tmp_path, StudyOptions([1]), "sweep-2", spec, messages).id == "sweep-2"
    assert "measured different work" in messages[0]


def test_a_new_sweep_names_the_file_of_the_code_that_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, messages = tmp_path / "code", list[str]()
    code.mkdir()
    (code / "train.py").write_text("1")
    os.utime(code / "train.py", (1000, 1000))
    spec = SPEC.model_copy(update={"code": str(code)})
    before = open_sweep(tmp_path, StudyOptions([1]), spec=spec).created
    (code / "bench.log").write_text("continuing")
    os.utime(code / "bench.log", (before + 1, before + 1))
    open_sweep(tmp_path, StudyOptions([1]), "sweep-2", spec, messages)
    assert messages[0].endswith("; changed since: bench.log, which .gitignore may leave out")
    (code / "bench.log").unlink()
    open_sweep(tmp_path, StudyOptions([1]), "sweep-3", spec, messages)
    assert messages[1].endswith(")"), "a file that was removed has no time"
    os.utime(code / "train.py", (before + 1000, before + 1000))
    monkeypatch.setattr(fingerprint, "describe_machine", lambda: {"cpu": "another"})
    open_sweep(tmp_path, StudyOptions([1]), "sweep-4", spec, messages)
    assert messages[2].endswith(")") and "machine" in messages[2], "its content is the same"


def test_a_sweep_at_another_place_is_another_sweep_and_its_command_names_the_place(tmp_path: Path) -> None:
    study = grid_study(SPEC, StudyOptions([1]))
    local = execution.open_sweep(study, Target("local", tmp_path), "here", False, quiet)
    remote = execution.open_sweep(study, Target("kubernetes/team", tmp_path), "there", False, quiet)
    assert (local.id, remote.id) == ("here", "there")
    assert remote.command.endswith("--seed 1 --on kubernetes/team")
    assert execution.open_sweep(study, Target("kubernetes/team", tmp_path), "x", False, quiet) == remote


def test_two_processes_never_carry_out_one_sweep(tmp_path: Path) -> None:
    sweep = open_sweep(tmp_path, StudyOptions([1], repeats=1))
    with sweep.lock(), pytest.raises(RunInUse, match="another process"):
        execution.run_sweep(load_sweep(sweep.folder), FakeRunner(), quiet)
    assert states(sweep) == ["pending"]


def test_a_record_reads_back_as_it_was_and_names_the_command_that_repeats_it(tmp_path: Path) -> None:
    parameters = StudyOptions([2, 1], ["b:args+=--x 'y z',slots=2"], repeats=2, seed=7, retries=5)
    sweep = open_sweep(tmp_path / "a b", parameters)
    again = find_sweep("sweep", tmp_path / "a b")
    assert again == sweep
    assert again.work == json.loads(json.dumps(fingerprint.identify(SPEC)))
    assert shlex.split(again.command) == [
        *("spotmpi", "bench", f"{tmp_path}/a b/sweeps/sweep-1/spec.toml", "--nodes", "2,1", "--repeats", "2"),
        *("--seed", "7", "--retries", "5", "--variant", "b:args+=--x 'y z',slots=2"),
    ]


def test_a_damaged_record_is_reported_with_its_folder_and_hides_no_other(tmp_path: Path) -> None:
    damaged = open_sweep(tmp_path, StudyOptions([1]))
    (damaged.folder / "sweep.json").write_text("{")
    (damaged.folder / "spec.toml").unlink()
    with pytest.raises(InputError, match=r"cannot read its sweep\.json"):
        find_sweep("sweep-1", tmp_path)
    open_sweep(tmp_path, StudyOptions([1, 2]), "other")
    assert unfinished_sweep(tmp_path, grid_study(SPEC, StudyOptions([1, 2])), "local") is not None


@pytest.mark.parametrize("call", ["stat", "open", "list"])
def test_a_disk_that_fails_for_a_moment_begins_no_sweep_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """All of its trials would be paid for again, or its folder removed."""
    sweep = open_sweep(tmp_path, StudyOptions([1, 2]))
    study = grid_study(SPEC, StudyOptions([1, 2]))
    place = sweep.folder.parent if call == "list" else sweep.folder / "sweep.json"
    TransientErrors(monkeypatch.setattr).add(call, str(place), errno.EIO)
    with pytest.raises((SpotmpiError, OSError)) as failed:
        unfinished_sweep(tmp_path, study, "local")
    assert "Input/output error" in str(failed.value) and not isinstance(failed.value, InputError)
    assert unfinished_sweep(tmp_path, study, "local") is not None


def test_a_folder_that_cannot_be_written_is_reported_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpotmpiError, match=r"cannot record the sweep in .*: Not a directory; use on=Target"):
        open_sweep(tmp_path / "file" / "runs", StudyOptions([1]))


def test_an_ambiguous_or_unknown_sweep_is_refused(tmp_path: Path) -> None:
    open_sweep(tmp_path, StudyOptions([1]), "sweep-1")
    open_sweep(tmp_path, StudyOptions([2]), "sweep-2")
    with pytest.raises(UnknownRun, match="is ambiguous: sweep-1, sweep-2; write more of the id"):
        find_sweep("sweep", tmp_path)
    with pytest.raises(UnknownRun, match="no such sweep"):
        find_sweep("other", tmp_path)
