"""`spotmpi bench` and `spotmpi report`, as a user of a foreign program meets them."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

import spotmpi
from spotmpi.runs import reader
from spotmpi.study.study import StudyOptions
from spotmpi.study.sweep import load_sweep, sweep_folders
from tests.command_line import invoke, start_process
from tests.contract.processes import wait_until

SCRIPT = """
import sys, time
for iteration in range(1, 41):
    time.sleep(float(sys.argv[1]))
    print("step %d, loss is %.3f" % (iteration, 1 / iteration), flush=True)
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A foreign program that prints its own way, in a folder with a hostile name."""
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    (folder / "train me.py").write_text(SCRIPT)
    values = f"""
name = "foreign"
command = [{json.dumps(sys.executable)}, {json.dumps(str(folder / "train me.py"))}]
args = ["0.005"]
launcher = "none"
run_on = "first"
[metrics]
pattern = 'step (?P<iteration>\\d+), loss is (?P<loss>[\\d.]+)'
samples_per_iteration = 8
[limits]
failures = 0
"""
    (folder / "spec.toml").write_text(values)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SPOTMPI_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPOTMPI_RUNS", raising=False)
    return folder / "spec.toml"


def test_a_sweep_of_a_foreign_program_ends_in_a_table_and_a_page_or_another_folder(spec: Path, tmp_path: Path) -> None:
    result = invoke("bench", str(spec), "--nodes", "1,2", "--repeats", "1")
    assert result.returncode == 0, result.stderr
    head = next(line for line in result.stdout.splitlines() if "Iterations/s" in line)
    assert "Efficiency" in head
    assert "timed by arrival of lines" in result.stdout
    page = Path(result.stdout.splitlines()[-1].removeprefix("report: "))
    assert page.is_file()
    assert "Loss over time" in page.read_text()
    assert "trial 2 of 2" in result.stderr

    message = json.loads(invoke("report", "--json").stdout)
    assert [row["nodes"] for row in message["rows"]] == [1, 2]
    # About 50, but for what else the machine does; another unit would be a thousand times off.
    assert all(2 < row["iterations_per_second"] < 2000 for row in message["rows"])
    assert message["rows"][0]["loss"] == 0.025

    run, other = (each.id for each in reader.every(Path("runs")))
    enough = next(run[:length] for length in range(1, len(run) + 1) if not other.startswith(run[:length]))
    assert invoke("report", enough, "--out", str(tmp_path / "out")).returncode == 0
    assert (tmp_path / "out" / "report.png").is_file()
    refused = invoke("report", run, "--out", "spec.toml")
    assert refused.returncode == 2
    assert "--out" in refused.stderr


def test_a_program_that_prints_progress_in_its_own_way_needs_no_pattern(spec: Path) -> None:
    text = spec.read_text()
    spec.write_text(text.replace(next(line for line in text.splitlines() if line.startswith("pattern")), ""))
    sweep = spotmpi.bench(spec, StudyOptions([1], repeats=1))
    (row,) = json.loads(invoke("report", sweep.id, "--json").stdout)["rows"]
    assert 2 < row["iterations_per_second"] < 2000 and row["loss"] == 0.025
    said = invoke("logs", sweep.trials[0].runs[0]).stderr
    line = "step 3, loss is 0.333"
    assert f"iterations are read from numbers of steps: {line} (metrics.pattern in the spec reads other lines)" in said


def test_a_sweep_ends_with_its_first_trial_where_that_reports_nothing_and_says_what_helps(spec: Path) -> None:
    spec.with_name("train me.py").write_text("print('trained')")
    words = ["bench", str(spec), "--nodes", "1,2", "--repeats", "2"]
    result = invoke(*words)
    assert result.returncode == 1
    assert "trial 1, run " in result.stderr and "metrics.pattern in the spec" in result.stderr
    assert len(result.stderr.splitlines()[-1]) > 100 and '{"spotmpi": "metric", "iteration": 12' in result.stderr
    (folder,) = sweep_folders(Path("runs"))
    assert [trial.state for trial in load_sweep(folder).trials] == ["failed"] + ["pending"] * 3

    (run,) = [state.id for state in reader.every(Path("runs"))]
    assert "no iterations reported; set metrics.pattern" in invoke("report", run).stdout.replace("\n", " ")


def test_a_dry_run_lists_the_trials_in_their_order_and_leaves_nothing(spec: Path) -> None:
    words = ["bench", str(spec), "--nodes", "1,2", "--dry-run"]
    planned = json.loads(invoke(*words, "--variant", 'slow:args=["0.01"]', "--json").stdout)
    assert [trial["number"] for trial in planned["trials"]] == list(range(1, 13))
    assert len(invoke(*words).stdout.splitlines()) == 6
    assert not Path("runs").exists()


def test_code_that_changes_during_a_sweep_is_marked_in_its_report_and_refused_afterwards(spec: Path) -> None:
    def edit(text: str) -> None:
        if "trial 2" in text:
            (spec.parent / "train me.py").write_text(SCRIPT + "# edited\n")

    sweep = spotmpi.bench(spec, StudyOptions([1], repeats=2), echo=edit)
    refused = invoke("report", sweep.id)
    assert refused.returncode == 2
    assert "different work" in refused.stderr
    forced = invoke("report", sweep.id, "--force")
    assert forced.returncode == 0
    assert "different work" in forced.stdout


def wait_for_step_3() -> None:
    wait_until(lambda: any("step 3" in path.read_text() for path in Path("runs").glob("*/logs/1/node-0.log")))


def test_ctrl_c_stops_the_trial_and_the_same_command_continues(spec: Path) -> None:
    words = ["bench", str(spec), "--repeats", "2", "--set", 'args=["0.02"]']
    running = start_process(*words)
    wait_for_step_3()
    running.send_signal(signal.SIGINT)
    _, message = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "the same command continues it" in message

    result = invoke(*words)
    assert result.returncode == 0, result.stderr
    assert "continuing sweep" in result.stderr
    (folder,) = sweep_folders(Path("runs"))
    trials = load_sweep(folder).trials
    assert [(trial.state, len(trial.runs)) for trial in trials] == [("succeeded", 2), ("succeeded", 1)]


def test_a_trial_outlives_the_terminal_and_is_taken_up_by_the_same_command(spec: Path) -> None:
    words = ["bench", str(spec), "--repeats", "1", "--set", 'args=["0.03"]']
    running = start_process(*words)
    wait_for_step_3()
    running.kill()
    running.communicate()
    result = invoke(*words)
    assert result.returncode == 0, result.stderr
    assert "resuming run" in result.stderr
    (folder,) = sweep_folders(Path("runs"))
    assert [len(trial.runs) for trial in load_sweep(folder).trials] == [1]
