"""The batch script and the plan of a run on Slurm: whole texts against golden files."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spotmpi.agent import slurm as agent
from spotmpi.plan.agent_plan import AgentInputs
from spotmpi.plan.slurm import SlurmTarget, options_in, own_folder, script, slurm_plan
from spotmpi.spec.source import from_values

Golden = Callable[[str, str], None]
HERE = SlurmTarget(
    folder="/home/me/runs/digits-1",
    start="/home/me/work",
    python="/home/me/.venv/bin/python",
    partition="spot",
    image_bin="/home/me/.cache/spotmpi/images/chainermn-1/bin",
    path="/usr/bin:/bin",
)
BY_SSH = SlurmTarget("/home/me/spotmpi/runs/train-1", "/home/me", "python3", host="me@login")
DIGITS: dict[str, Any] = {
    "image": "chainermn",
    "program": "digits",
    "nodes": 4,
    "slots": 2,
    "resources": {"cpu": 1.5, "memory": "1.5Gi", "gpu": 1},
    "limits": {"run": "2h"},
    "mpi": {"args": ["--mca", "coll", "^hcoll"]},
    "data": {"path": "/data/digits", "stage": "node"},
}
TRAIN: dict[str, Any] = {
    "command": ["python3", "train.py"],
    "launcher": "torchrun",
    "nodes": 2,
    "data": "voc",
    "checkpoint": {"grace": "90s", "path": "/scratch/checkpoints", "memory": "1"},
    "slurm": {"args": ["--account=lab", "--comment=a \"b\" 'c'"], "setup": ["module load cuda/12.4"]},
}
CASES = {"digits": (DIGITS, HERE), "train-by-ssh": (TRAIN, BY_SSH)}


@pytest.mark.parametrize("name", CASES)
def test_a_plan_equals_its_golden_files(name: str, golden: Golden) -> None:
    values, target = CASES[name]
    plan = slurm_plan(from_values(values), Path(target.folder).name, target, AgentInputs({}, {}), "me")
    golden(f"slurm-{name}.sh", plan["script"])
    golden(f"slurm-{name}.json", json.dumps({**plan, "script": ""}, indent=1) + "\n")


def text(folder: str = "/runs/r-1", **values: Any) -> str:
    return script(from_values({"command": ["x"], **values}), "r-1", replace(BY_SSH, folder=folder))


@pytest.mark.parametrize("folder", ["/runs/with space", "/runs/50%j", "/runs/it's", '/runs/"quoted"', "/runs/$HOME"])
def test_the_shell_takes_any_folder(folder: str, tmp_path: Path) -> None:
    folder = f"{tmp_path}{folder}"
    own = Path(own_folder(replace(BY_SSH, folder=folder)))
    own.mkdir(parents=True)
    (own / agent.STARTS).touch()
    double = '#!/bin/sh\nrm unstarted\necho 0 > exit-code\nfor last; do :; done\nprintf %s "$last" > seen\n'
    (tmp_path / "srun").write_text(double)
    (tmp_path / "srun").chmod(0o755)

    done = subprocess.run(
        ["bash"], input=text(folder, slurm={"setup": ["cd /"]}), text=True, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}
    )

    assert done.returncode == 0
    assert (own / "seen").read_text() == folder


def test_setup_has_the_functions_of_a_terminal(tmp_path: Path) -> None:
    """`module` is one, which its packages export from bash (Environment Modules, Lmod); dash drops it."""
    batch = Batch(tmp_path, "rm unstarted; echo 0 > exit-code")
    module = {"BASH_FUNC_module%%": '() { echo "$@" > "$HOME"; }', "HOME": str(tmp_path / "called")}

    assert batch.run("module load cuda/12.4", **module) == 0
    assert (tmp_path / "called").read_text() == "load cuda/12.4\n"


@pytest.mark.parametrize(
    ("setup", "failed", "code"),
    [
        (["echo a", "no-such-program 'a b'", "echo b"], "no-such-program 'a b'", 127),
        (["if true; then", "  (exit 7)", "fi"], "( exit 7 )", 7),
    ],
)
def test_a_line_of_setup_that_fails_ends_the_job_and_is_named(
    tmp_path: Path, setup: list[str], failed: str, code: int
) -> None:
    """The program would fail later, and nobody sees job.log."""
    batch = Batch(tmp_path, "exit 9")

    assert batch.run(*setup) == code
    log = tmp_path / agent.FOLDER / agent.OUTPUT
    last = batch.errors.splitlines()[-1]
    assert last == f"slurm.setup: {failed} ended with exit code {code}; its output is in {log}"
    assert not (tmp_path / agent.FOLDER / "log").exists(), "no agent was started"


def test_ranks_on_slurm_are_no_forks() -> None:
    """They would be in the step of the agent, without the GPUs and cores of mpirun's."""
    plan = slurm_plan(from_values({**TRAIN, "preload": ["torch"]}), "train-1", BY_SSH, AgentInputs({}, {}), "me")
    assert "preload has no effect on Slurm: each rank imports its modules itself" in plan["notes"]
    assert "preload" not in plan["agents"]


def test_percent_signs_are_no_patterns_of_sbatch() -> None:
    assert "--output=/runs/50%%j/slurm/job.log" in text("/runs/50%j")


@pytest.mark.parametrize(("memory", "megabytes"), [("1Gi", 2048), ("512Mi", 1024), ("100Ki", 1), ("1.5Gi", 3072)])
def test_memory_is_that_of_all_slots_rounded_up(memory: str, megabytes: int) -> None:
    assert f"--mem={megabytes}M\n" in text(slots=2, resources={"memory": memory})


def test_the_users_options_come_last_and_override_ours() -> None:
    options = [
        line for line in text(limits={"run": "1h"}, slurm={"args": ["--time=5"]}).splitlines() if "#SBATCH" in line
    ]
    assert options[-1] == "#SBATCH --time=5" and "#SBATCH --time=61" in options


@given(st.lists(st.text(st.characters(exclude_categories=("C", "Z")), min_size=1), max_size=3))
@example(["--comment=a \"b\" 'c' \\d\\", "-t 10"])
def test_options_are_arguments_of_sbatch_too_which_no_variable_overrides(arguments: list[str]) -> None:
    options = options_in(text(slurm={"args": arguments, "setup": ["#SBATCH --time=1"]}))
    assert options[:2] == ["--job-name=r-1", "--nodes=1"]
    assert options[len(options) - len(arguments) :] == arguments


class Batch:
    """A batch script with doubles of srun and its agents: each start does what the test says, then ends.

    scontrol, which asks slurmctld, fails once for each byte of the file `down`.
    """

    def __init__(self, folder: Path, *starts: str) -> None:
        self.own = folder / agent.FOLDER
        self.own.mkdir()
        (self.own / agent.STARTS).touch()
        lines = "".join(f"  {number}) {what};;\n" for number, what in enumerate(starts))
        srun = f'#!/bin/sh\necho "$SPOTMPI_RESTART_COUNT" >> log\ncase $SPOTMPI_RESTART_COUNT in\n{lines}esac\n'
        scontrol = '#!/bin/sh\necho ping >> log\n[ "$(wc -c < down)" = 0 ] && exit\nsed -i "s/.//" down; exit 1\n'
        sleep = '#!/bin/sh\n[ "$1" = 5 ] || exec /bin/sleep "$@"\n'  # of 5 s nobody waits here
        for name, program in {"srun": srun, "scontrol": scontrol, "sleep": sleep}.items():
            (folder / name).write_text(program)
            (folder / name).chmod(0o755)
        (self.own / "down").touch()
        self.folder = folder

    def run(self, *setup: str, **variables: str) -> int:
        """The exit code of the script with these lines of ``slurm.setup``, in a job with these *variables*."""
        environment = {"PATH": f"{self.folder}:/usr/bin:/bin"}
        # As slurmstepd starts it: a shell cannot trap what is ignored as it starts (POSIX, trap), and programs under
        # test leave SIGUSR1 ignored in this process.
        command = ["env", "--default-signal=USR1", "bash"]
        script = text(str(self.folder), slurm={"setup": list(setup)})
        done = subprocess.run(
            command, input=script, text=True, env={**environment, **variables}, stderr=subprocess.PIPE, timeout=60
        )
        self.errors = done.stderr
        return done.returncode

    @property
    def restart_counts(self) -> list[int]:
        return [int(line) for line in self.log if line.isdecimal()]

    @property
    def log(self) -> list[str]:
        """The restart count of each start, and each question to slurmctld."""
        return (self.own / "log").read_text().split()


def test_the_script_starts_agents_until_node_0_says_how_the_run_ended(tmp_path: Path) -> None:
    batch = Batch(tmp_path, "rm unstarted; exit 75", "rm unstarted; exit 137", "rm unstarted; echo 1 > exit-code")
    assert batch.run() == 1
    assert batch.restart_counts == [0, 1, 2]


def test_a_job_that_was_requeued_goes_on_counting(tmp_path: Path) -> None:
    batch = Batch(tmp_path, "exit 9", "rm unstarted; kill -TERM $PPID", "rm unstarted; echo 0 > exit-code")
    (batch.own / agent.STARTS).write_text(".")
    assert batch.run() == 143
    assert batch.run() == 0
    assert batch.restart_counts == [1, 2]


def test_agents_that_cannot_start_twice_in_a_row_end_the_job(tmp_path: Path) -> None:
    batch = Batch(tmp_path, "exit 127", "rm unstarted; exit 75", "exit 127", "exit 127")
    assert batch.run() == 1
    assert batch.restart_counts == [0, 1, 2, 3]


def test_agents_that_srun_could_not_start_without_slurmctld_are_started_once_it_answers(tmp_path: Path) -> None:
    batch = Batch(tmp_path, "rm unstarted; exit 137", "exit 1", "rm unstarted; echo 0 > exit-code")
    (batch.own / "down").write_text("..")
    assert batch.run() == 0
    assert batch.log == ["0", "1", "ping", "ping", "ping", "2"]


def test_a_job_that_is_requeued_after_the_end_of_its_run_starts_no_agents(tmp_path: Path) -> None:
    batch = Batch(tmp_path, "rm unstarted; echo 1 > exit-code")
    assert (batch.run(), batch.run()) == (1, 1)
    assert batch.restart_counts == [0]


def test_a_notice_of_slurm_becomes_a_file_while_the_agents_run(tmp_path: Path) -> None:
    waits = "rm unstarted; kill -USR1 $PPID; until [ -e notice ]; do sleep 0.01; done; echo 0 > exit-code"
    assert Batch(tmp_path, waits).run() == 0
