"""A study that is carried out: its limits, its failures, its record and its report."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from spotmpi.backends.targets import Target
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.core.price import Price
from spotmpi.report.gather import gather
from spotmpi.runs.reader import RunState
from spotmpi.study import execution, study_file
from spotmpi.study.study import Budget, Study, Trial
from spotmpi.study.sweep import Sweep, load_sweep
from tests.command_line import invoke
from tests.unit.report.recorded_runs import NOW
from tests.unit.study.studies import FakeRunner, carry_out, quiet, states, study_of


def open_study(folder: Path, study: Study, name: str = "study-1") -> Sweep:
    return execution.open_sweep(study, Target("local", folder), name, False, quiet)


def test_the_estimate_names_unknown_durations_and_exceeded_limits() -> None:
    trials = [Trial(number, "base", 2, number) for number in range(1, 11)]
    assert "unknown duration" in Budget().estimate(trials)
    price = Price(3.6, "us-east-1 spot, 2026-11-21")
    assert Budget(trial_seconds=30, price=price).estimate(trials) == "10 trials, about 5 min and $0.60"
    tight = Budget(120, 0.1, 30, price).estimate(trials)
    assert tight.endswith("; exceeds limits.time = '2m' and limits.money = 0.1, where it will stop")
    some = Budget(trial_seconds=30, prices={("base", 2): price}).estimate([*trials, Trial(12, "other", 2, 1)])
    assert some == "11 trials, about 6 min and at least $0.60", "the price of the other variant is not known"
    micro_benchmark = Trial(11, "base", 2, 0, "succeeded", role="allreduce", seconds=2.0)
    assert "about 5 min" in Budget(trial_seconds=30).estimate([*trials, micro_benchmark]), (
        "a micro-benchmark is not training"
    )


def test_a_study_stops_at_its_money_limit_and_continues_with_a_higher_one(tmp_path: Path) -> None:
    def limited(money: float) -> Study:
        price = {"node_hour": 60.0, "source": "a dollar a minute"}
        return study_of({"nodes": [1]}, repeats=5, price=price, limits={"money": money, "trial": "60s"})

    sweep, messages = open_study(tmp_path, limited(2.5)), list[str]()
    carry_out(sweep, FakeRunner(seconds=60), messages.append)
    assert messages[0].startswith("estimate: 5 trials, about 5 min and $5.00; exceeds limits.money = 2.5")
    assert states(sweep) == ["succeeded"] * 2 + ["pending"] * 3
    saved = load_sweep(sweep.folder)
    assert saved.limit_reached == "limits.money = 2.5 reached: $2.00 spent, the next trial costs $1.00"
    again = open_study(tmp_path, limited(10.0), "another")
    assert again.id == sweep.id
    carry_out(again, FakeRunner(seconds=60))
    assert states(again) == ["succeeded"] * 5
    assert load_sweep(sweep.folder).limit_reached is None


def test_a_time_limit_counts_failed_tries_too(tmp_path: Path) -> None:
    limits = {"time": "3m", "trial": "60s"}
    sweep = open_study(tmp_path, study_of({"nodes": [1]}, repeats=3, limits=limits))
    carry_out(sweep, FakeRunner({1: "failed", 2: "failed"}, seconds=60))
    assert states(sweep) == ["succeeded", "pending", "pending"]


def test_a_limit_holds_between_two_tries_of_a_trial(tmp_path: Path) -> None:
    """All of the tries that `retries` allows began, however much the failed ones had cost."""
    limits = {"time": "3m", "trial": "60s"}
    sweep = open_study(tmp_path, study_of({"nodes": [1]}, repeats=2, retries=9, limits=limits))
    runner = FakeRunner(dict.fromkeys(range(1, 9), "failed"), seconds=60)
    carry_out(sweep, runner)
    assert (len(runner.started), states(sweep)) == (3, ["pending", "pending"])
    assert load_sweep(sweep.folder).trials[0].failures == 3


def test_the_result_of_a_trial_that_was_running_is_taken_though_a_limit_is_reached(tmp_path: Path) -> None:
    """Nobody looked at its run any more, which may have ended long ago, or still cost money."""
    limits = {"time": "90s", "trial": "60s"}
    sweep = open_study(tmp_path, study_of({"nodes": [1]}, repeats=3, limits=limits))
    runner = FakeRunner({2: "power cut"}, seconds=60)
    with pytest.raises(KeyboardInterrupt):
        carry_out(replaced_limit(sweep, 1000.0), runner)
    runner.states["run-2"] = "succeeded"
    carry_out(sweep, runner)
    assert states(sweep) == ["succeeded", "succeeded", "pending"]


def test_a_limit_that_the_next_trial_would_exceed_says_how_long_that_takes(tmp_path: Path) -> None:
    """It said "reached: 60 s spent" of a limit of 90 s."""
    limits = {"time": "90s", "trial": "60s"}
    sweep = open_study(tmp_path, study_of({"nodes": [1]}, repeats=3, limits=limits))
    carry_out(sweep, FakeRunner(seconds=60))
    assert sweep.limit_reached == "limits.time = '90s' reached: 60 s spent, the next trial takes 60 s"


def replaced_limit(sweep: Sweep, seconds: float) -> Sweep:
    """The same sweep with another limit of its time, as after a change of the study file."""
    study = replace(sweep.study, budget=replace(sweep.study.budget, time_limit=seconds))
    return replace(sweep, study=study)


def test_a_trial_that_was_stopped_after_its_sweep_costs_what_it_took(tmp_path: Path) -> None:
    sweep, runner = open_study(tmp_path, study_of({"nodes": [1]}, repeats=1)), FakeRunner({1: "power cut"}, seconds=60)
    with pytest.raises(KeyboardInterrupt):
        carry_out(sweep, runner)
    runner.states["run-1"] = "stopped"
    carry_out(sweep, runner)
    assert [trial.seconds for trial in load_sweep(sweep.folder).trials] == [120]


def test_a_trial_that_nobody_followed_took_what_its_agents_measured(tmp_path: Path) -> None:
    """As where the machine of the sweep slept while its runs went on in a cluster."""

    class Followed(FakeRunner):
        def state(self, run: str) -> RunState:
            (tmp_path / run).mkdir(exist_ok=True)
            attempts = [{"attempt": 1, "elapsed": 500.0}, {"attempt": 2, "elapsed": 100.0}, {"attempt": 3}]
            (tmp_path / run / "summary.json").write_text(json.dumps({"id": run, "attempts": attempts}))
            return replace(super().state(run), folder=str(tmp_path / run))

    sweep = open_study(tmp_path, study_of({"nodes": [1]}, repeats=1))
    carry_out(sweep, Followed(seconds=60))
    assert [trial.seconds for trial in load_sweep(sweep.folder).trials] == [600]


def test_a_trial_that_another_try_cannot_help_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the folder of the runner's runs
    Path("metrics.jsonl").write_text('{"t": 1.0, "kind": "fatal", "reason": "no GPU"}\n')
    sweep, messages = open_study(tmp_path, study_of({"nodes": [1]}, repeats=1)), list[str]()
    execution.run_sweep(sweep, FakeRunner({1: "failed"}), messages.append)
    assert (states(sweep), messages[-1]) == (["failed"], "trial 1 failed (another try cannot help): it failed")
    with pytest.raises(InputError, match="no trial has succeeded; the last one failed: it failed"):
        gather([], tmp_path, NOW)


def test_a_training_that_reports_nothing_ends_a_study_only_where_none_has_reported_before(tmp_path: Path) -> None:
    runner = FakeRunner()
    runner.iteration = None
    sweep = open_study(tmp_path, study_of({"nodes": [1]}, repeats=3))
    with pytest.raises(SpotmpiError, match=r"trial 1, run run-1, reported no iteration.*metrics\.pattern"):
        execution.run_sweep(sweep, runner, quiet)
    assert states(sweep)[:2] == ["failed", "pending"] and len(runner.started) == 1
    assert sweep.trials[0].failures == 1, "bench names how often it failed"

    runner.iteration = 40
    execution.run_sweep(sweep, runner, lambda text: setattr(runner, "iteration", None if "trial 3" in text else 40))
    assert set(states(sweep)[1:]) == {"succeeded"}


def test_a_study_reads_back_from_its_record_and_from_its_study_file(tmp_path: Path) -> None:
    parameters = {"nodes": [1, 2], "mine": {"a": ["env.X=1"], "b": ["slots=2"]}}
    budget: dict[str, Any] = {
        "limits": {"time": "1h", "trial": "1m"},
        "price": {"node_hour": 0.5, "source": "list price"},
    }
    study = study_of(parameters, repeats=2, baseline=True, **budget)
    sweep = open_study(tmp_path, study)
    assert load_sweep(sweep.folder) == sweep
    again = study_file.load(sweep.folder / "study.toml")
    assert (again, again.budget) == (study, study.budget)
    assert sweep.command == f"spotmpi bench {sweep.folder}/study.toml"


TRAIN = """
import json, sys, time
print(json.dumps({"spotmpi": "context", "samples_per_iteration": 8, "total_iterations": 60}), flush=True)
for last in range(10, 61, 10):
    time.sleep(0.01)
    seconds = [float(sys.argv[1])] * 10
    print(json.dumps({"spotmpi": "metric", "iteration": last, "seconds": seconds, "loss": 1 / last}), flush=True)
    if "--fail" in sys.argv:
        sys.exit("a bad batch")
"""


def test_a_study_of_a_plain_command_runs_here_and_ends_in_a_report(runs: Path) -> None:
    command = [sys.executable, "-c", TRAIN]
    values = {
        "spec": {"name": "tiny", "command": command, "launcher": "none", "run_on": "first", "limits": {"failures": 0}},
        "parameters": {"speed": {"slow": ["args+=0.02"], "fast": ["args+=0.01"], "bad": ["args+=0.01 --fail"]}},
        "repeats": 2,
        "baseline": True,
        "limits": {"time": "10m", "trial": "2s"},
    }
    Path("study.toml").write_text(tomli_w.dumps(values))
    code, out, messages = invoke("bench", "study.toml", "--json")
    assert code == 1  # the bad value is missing, and the study went on without it
    assert "estimate: 8 trials, about 16 s" in messages
    assert all(text in messages for text in ("failed (try 3 of 3)", "failed 3 times (", "a bad batch"))
    rates = {row["variant"]: row["iterations_per_second"] for row in json.loads(out)["rows"]}
    assert rates == {"slow": pytest.approx(50.0), "fast": pytest.approx(100.0)}
    report = gather([], runs, NOW)
    assert sum("failed 3 times and is missing" in warning for warning in report.warnings) == 2
    assert report.commands[0].startswith("spotmpi bench runs/sweeps/tiny-")
