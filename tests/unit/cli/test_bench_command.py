import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import spotmpi
from spotmpi.agent import record
from spotmpi.core.errors import InputError
from spotmpi.study.study import StudyOptions
from spotmpi.study.sweep import load_sweep, sweep_folders
from tests.unit.conftest import InProcess

SCRIPT = """
import sys, time
seconds, fails = float(sys.argv[1]), "--fail" in sys.argv
for iteration in range(1, 41):
    time.sleep(seconds)
    print("step %d, loss is %.3f" % (iteration, 1 / iteration), flush=True)
    if fails and iteration == 5:
        sys.exit("a bad batch")
"""

Command = Callable[..., subprocess.CompletedProcess[str]]


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
where = "first"
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


def arguments(*words: str) -> list[str]:
    return [sys.executable, "-c", "from spotmpi.cli.main import main; main()", *words]


@pytest.fixture
def cli(in_process: InProcess) -> Command:
    return lambda *words: subprocess.CompletedProcess(words, *in_process(*words))


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_sweep_of_a_foreign_program_ends_in_a_table_and_a_page(spec: Path, cli: Command) -> None:
    result = cli("bench", str(spec), "--nodes", "1,2", "--repeats", "1")
    assert result.returncode == 0, result.stderr
    head = next(line for line in result.stdout.splitlines() if "Iterations/s" in line)
    assert "Efficiency" in head
    assert "timed by arrival of lines" in result.stdout
    page = Path(result.stdout.splitlines()[-1].removeprefix("report: "))
    assert page.is_file()
    assert "Loss over time" in page.read_text()
    assert "trial 2 of 2" in result.stderr

    message = json.loads(cli("report", "--json").stdout)
    assert [row["nodes"] for row in message["rows"]] == [1, 2]
    assert all(20 < row["iterations_per_second"] < 200 for row in message["rows"])
    assert message["rows"][0]["loss"] == 0.025


def test_a_dry_run_lists_the_trials_in_their_order_and_leaves_nothing(spec: Path, cli: Command) -> None:
    planned = cli("bench", str(spec), "--nodes", "1,2", "--variant", 'slow:args=["0.01"]', "--dry-run", "--json")
    data = json.loads(planned.stdout)
    assert len(data["trials"]) == 12
    assert [trial["number"] for trial in data["trials"]] == list(range(1, 13))
    assert len(cli("bench", str(spec), "--nodes", "1,2", "--dry-run").stdout.splitlines()) == 6
    assert not (spec.parent / "runs").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nodes", "1,x"], "--nodes"),
        (["--nodes", "0"], "must be distinct and at least 1"),
        (["--repeats", "0"], "--repeats = 0"),
        (["--variant", "same:slots=1"], "changes nothing"),
        (["--variant", "a:slot=2"], "did you mean slots?"),
        (["--variant", "a:slots=2"], 'launcher "none" starts one process per node'),
    ],
)
def test_wrong_input_ends_with_2_and_one_line_before_anything_starts(
    spec: Path, cli: Command, options: list[str], message: str
) -> None:
    result = cli("bench", str(spec), *options)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (spec.parent / "runs").exists()


def test_a_trial_that_keeps_failing_is_missing_from_the_report_and_the_exit_code_says_so(
    spec: Path, cli: Command
) -> None:
    options = ["--repeats", "1", "--retries", "1", "--variant", "bad:args+=--fail"]
    result = cli("bench", str(spec), *options)
    assert result.returncode == 1
    assert "failed (try 2 of 2)" in result.stderr
    assert "a bad batch" in result.stderr
    (folder,) = sweep_folders(spec.parent / "runs")
    states = {trial.variant: (trial.state, len(trial.runs)) for trial in load_sweep(folder).trials}
    assert states == {"base": ("succeeded", 1), "bad": ("failed", 2)}
    assert "failed 2 times and is missing" in (folder / "report" / "report.md").read_text()


def test_code_that_changes_during_a_sweep_is_marked_in_its_report_and_refused_afterwards(
    spec: Path, cli: Command
) -> None:
    def edit(text: str) -> None:
        if "trial 2" in text:
            (spec.parent / "train me.py").write_text(SCRIPT + "# edited\n")

    sweep = spotmpi.bench(spec, StudyOptions([1], repeats=2), say=edit)
    refused = cli("report", sweep.id)
    assert refused.returncode == 2
    assert "different work" in refused.stderr
    forced = cli("report", sweep.id, "--force")
    assert forced.returncode == 0
    assert "different work" in forced.stdout


def test_ctrl_c_stops_the_trial_and_the_same_command_continues(spec: Path, cli: Command) -> None:
    words = ["bench", str(spec), "--repeats", "2", "--set", 'args=["0.02"]']
    running = subprocess.Popen(arguments(*words), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: any("step 3" in path.read_text() for path in (spec.parent / "runs").glob("*/logs/1/node-0.log")))
    running.send_signal(signal.SIGINT)
    _, message = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "the same command continues it" in message

    result = cli(*words)
    assert result.returncode == 0, result.stderr
    assert "continuing sweep" in result.stderr
    (folder,) = sweep_folders(spec.parent / "runs")
    trials = load_sweep(folder).trials
    assert [(trial.state, len(trial.runs)) for trial in trials] == [("succeeded", 2), ("succeeded", 1)]


def test_a_trial_outlives_the_terminal_and_is_taken_up_by_the_same_command(spec: Path, cli: Command) -> None:
    words = ["bench", str(spec), "--repeats", "1", "--set", 'args=["0.03"]']
    running = subprocess.Popen(arguments(*words), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_for(lambda: any("step 3" in path.read_text() for path in (spec.parent / "runs").glob("*/logs/1/node-0.log")))
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    result = cli(*words)
    assert result.returncode == 0, result.stderr
    assert "resuming run" in result.stderr
    (folder,) = sweep_folders(spec.parent / "runs")
    assert [len(trial.runs) for trial in load_sweep(folder).trials] == [1]


def test_bench_and_report_are_functions_with_the_same_result(spec: Path) -> None:
    output: list[str] = []
    sweep = spotmpi.bench(spec, StudyOptions([1], repeats=2), say=output.append)
    assert [trial.state for trial in sweep.trials] == ["succeeded"] * 2
    report = spotmpi.make_report([sweep.id])
    assert len(report.rows) == 1
    assert report.rows[0].iterations_per_second is not None
    with pytest.raises(InputError, match="changes nothing"):
        spotmpi.plan_bench(spec, StudyOptions([1], ["x:slots=1"]))


def test_a_report_goes_to_the_given_folder_and_a_read_only_one_is_refused_with_a_remedy(
    spec: Path, tmp_path: Path, cli: Command
) -> None:
    state = spotmpi.run(spec)
    assert state.state == record.SUCCEEDED
    assert cli("report", state.id[:-2], "--out", str(tmp_path / "out")).returncode == 0
    assert (tmp_path / "out" / "report.png").is_file()
    (tmp_path / "file").write_text("")
    refused = cli("report", state.id, "--out", str(tmp_path / "file"))
    assert refused.returncode == 1
    assert "--out" in refused.stderr


def test_runs_of_different_work_end_with_2_unless_forced(spec: Path, cli: Command) -> None:
    first, other = spotmpi.run(spec).id, spotmpi.run(spec, ['args=["0.01"]']).id
    refused = cli("report", first, other)
    assert refused.returncode == 2
    assert "args: 0.005, 0.01" in refused.stderr
    forced = cli("report", first, other, "--force")
    assert forced.returncode == 0
    assert "warning:" in forced.stdout
