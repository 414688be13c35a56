"""The README's study under a real mpirun, with fewer repeats and iterations."""

import json
import subprocess
from pathlib import Path

import pytest

from spotmpi.core import names
from spotmpi.runs import reader
from spotmpi.study.study import BASELINE, MEASURED, SUCCEEDED, WITHOUT_ALLREDUCE
from spotmpi.study.sweep import load_sweep, sweep_folders
from tests.command_line import SPOTMPI

pytestmark = [
    pytest.mark.images,
    pytest.mark.smoke,
    pytest.mark.nightly("the README's own study goes to its page by day; ./scripts/test runs this one"),
    pytest.mark.timeout(900),
]

STUDY = names.SOURCE / "studies" / "cpu.toml"


def test_the_cpu_study_ends_in_a_report_of_all_its_parts(tmp_path: Path) -> None:
    shorter = 'args=["--global-batch", "64", "--iterations", "60"]'
    words = [str(STUDY), "--repeats", "1", "--set", shorter, "--runs", str(tmp_path / "runs"), "--json"]
    result = subprocess.run([SPOTMPI, "bench", *words], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "estimate: 8 trials" in result.stderr

    (folder,) = sweep_folders(tmp_path / "runs")
    trials = load_sweep(folder).trials
    assert [trial.state for trial in trials] == [SUCCEEDED] * 8
    assert [sum(trial.role == role for trial in trials) for role in (MEASURED, WITHOUT_ALLREDUCE, BASELINE)] == [
        4,
        2,
        2,
    ]
    report = json.loads(result.stdout)
    assert {(row["nodes"], row["trials"]) for row in report["rows"]} == {(1, 1), (2, 1)}
    titles = [section["title"] for section in report["sections"]]
    assert titles == ["Time breakdown", "Effect of each parameter", "Attempts and interruptions"]
    shares = report["sections"][0]["rows"]
    assert all(row["Input"].endswith("%") and row["Communication"].endswith("%") for row in shares)
    assert [row["Slowest rank"] == "-" for row in shares] == [row["Nodes"] == "1" for row in shares]

    without_allreduce = next(trial for trial in trials if trial.role == WITHOUT_ALLREDUCE and trial.nodes == 2)
    lines = list(reader.lines(tmp_path / "runs" / without_allreduce.runs[-1] / "metrics.jsonl"))
    assert lines[0]["allreduce"] is False
    assert not [line for line in lines if line["kind"] == "checkpoint"]
