"""spotmpi as its users have it: installed from a wheel, in a folder that knows no checkout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import spotmpi
from spotmpi.images.build import Build
from spotmpi.runs import reader
from tests.package.conftest import Installed

SCRIPT = """\
import pathlib, sys, time
import json  # of the standard library: nothing of the command line's environment is needed
for step in range(1, 4):
    print(f"step {step} loss {1 / step}", flush=True)
print("prefix", sys.prefix)
"""

# What scripts print that know nothing of spotmpi: words, the Trainer of Hugging Face, a bar of tqdm.
PRINTED = {
    "words": "print(f'step {step} loss {1 / step:.4f}', flush=True)",
    "trainer": "print({'loss': 1 / step, 'grad_norm': 0.5, 'epoch': step / 10}, flush=True)",
    "tqdm": "sys.stderr.write(f'\\rfit: {step * 2:3d}%|##| {step}/50 [00:01<00:01, 33.0it/s, loss={1 / step:.3f}]')",
}

pytestmark = [pytest.mark.images, pytest.mark.smoke, pytest.mark.timeout(900)]


def test_it_says_its_version_and_lists_its_commands(installed: Installed) -> None:
    assert installed.spotmpi("--version").stdout == f"spotmpi {spotmpi.__version__}\n"
    module = subprocess.run(
        [installed.environment / "bin" / "python", "-m", "spotmpi", "run", "none.toml"],
        cwd=installed.folder,
        env=installed.variables(),
        capture_output=True,
        text=True,
    )
    assert module.returncode == 2 and module.stderr.startswith("spotmpi: spec = 'none.toml': no such file"), module
    help_text = installed.spotmpi("--help")
    assert help_text.returncode == 0 and "bench" in help_text.stdout


def test_a_script_of_the_users_own_runs_by_a_spec_that_init_writes(installed: Installed) -> None:
    folder = installed.folder / "own"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)

    assert installed.spotmpi("init", folder=folder).stdout == "job.toml\n"
    result = installed.spotmpi("run", "job.toml", "--set", "metrics.pattern=step (?P<iteration>\\d+)", folder=folder)

    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[2] == "step 3 loss 0.3333333333333333"
    (run,) = reader.every(folder / "runs")
    assert json.loads(run.summary.read_text())["work"]["spotmpi"] == spotmpi.__version__
    assert sum(1 for _ in reader.lines(run.metrics)) == 3


@pytest.mark.parametrize("form", PRINTED)
def test_a_script_of_the_users_own_is_measured_by_what_it_prints(installed: Installed, form: str) -> None:
    folder = installed.folder / form
    folder.mkdir()
    text = f"import sys, time\nfor step in range(1, 51):\n    time.sleep(0.02)\n    {PRINTED[form]}\n"
    (folder / "train.py").write_text(text)

    assert installed.spotmpi("init", folder=folder).stdout == "job.toml\n"
    bench = installed.spotmpi("bench", "job.toml", "--repeats", "1", folder=folder)
    report = installed.spotmpi("report", "--json", folder=folder)

    assert bench.returncode == 0 and "timed by arrival of lines" in bench.stdout, bench
    (row,) = json.loads(report.stdout)["rows"]
    assert row["nodes"] == 1 and 5 < row["iterations_per_second"] < 60 and round(row["loss"], 3) == 0.02, row


def test_digits_trains_under_mpirun_and_gets_a_report(installed: Installed) -> None:
    folder = installed.folder / "digits"
    folder.mkdir()

    assert installed.spotmpi("init", "--example", "digits", folder=folder).stdout == "digits.toml\n"
    args = 'args=["--global-batch", "64", "--iterations", "30"]'
    result = installed.spotmpi("bench", "digits.toml", "--nodes", "1,2", "--repeats", "1", "--set", args, folder=folder)

    assert result.returncode == 0, result.stderr
    assert list(folder.glob("runs/sweeps/*/report/report.html"))
    plan = json.loads(next(folder.glob("runs/*/plan.yaml")).read_text())
    source = Path(plan["environment"]["PYTHONPATH"])
    assert [path.name for path in source.iterdir()] == ["spotmpi"]  # and not all of site-packages
    assert plan["work"]["code"]["commit"] is None


def test_an_unknown_stack_names_the_way_to_a_project(installed: Installed, tmp_path: Path) -> None:
    result = installed.spotmpi("doctor", "lab", folder=tmp_path)

    assert result.returncode == 2 and "`spotmpi init --environment NAME` writes one" in result.stderr


def test_images_are_those_of_the_checkout(installed: Installed) -> None:
    code = "from spotmpi.images.build import Build; print(Build('chainermn').tag, Build('pytorch').tag)"
    python = str(installed.environment / "bin" / "python")
    result = subprocess.run(
        [python, "-c", code], cwd=installed.folder, env=installed.variables(), capture_output=True, text=True
    )
    assert result.stdout.split() == [Build("chainermn").tag, Build("pytorch").tag], result.stderr


def test_the_environment_is_not_this_one(installed: Installed) -> None:
    assert not installed.environment.is_relative_to(sys.prefix)
    assert not list(installed.environment.rglob("pulumi_aws"))
