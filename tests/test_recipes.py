"""The recipes of CONTRIBUTING.md, each followed to the letter in a copy of the package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spotmpi.agent.launchers import LAUNCHERS
from tests.unit.plan.test_local import PLANS

pytestmark = pytest.mark.extensive("for those who change the project; each recipe has a copy of the package")

PROJECT = Path(__file__).resolve().parent.parent
GUIDE = (PROJECT / "CONTRIBUTING.md").read_text()

# Starts the ranks of its node after each other, which a shell can do.
LAUNCHER = r"""
    "serial": Launcher(
        lambda start: [
            "sh", "-c", 'for RANK in $(seq 0 $0); do RANK=$RANK "$@" || exit; done', str(start.slots - 1)
        ],
        tags=False,
        script=r"^import serial\b",
    ),
    "absent": Launcher(lambda start: [start.python, "-m", "absent.run"], module="absent", requirement="absent"),
"""
DOCSTRING = '    """A job as its user describes it, frozen; `load` reads one from TOML."""'


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the checkout's package, with all that it finds beside it."""
    for folder in ("images", "stacks", "infra"):
        (tmp_path / folder).symlink_to(PROJECT / folder)
    shutil.copytree(PROJECT / "jobs", tmp_path / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def spotmpi(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line of the copy."""
    start = "from spotmpi.cli.main import main; main()"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {"PYTHONPATH": str(copy / "jobs"), "HOME": str(copy), "AWS_EC2_METADATA_DISABLED": "true"}
    command = [sys.executable, "-c", start, *arguments]
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=60)


def insert(copy: Path, file: str, after: str, text: str) -> None:
    """Insert *text* after a line of a file of the package; at its end for an empty line."""
    path = copy / file
    before, found, rest = path.read_text().partition(f"\n{after}\n") if after else (path.read_text(), "", "")
    assert found or not after, after
    path.write_text(before + found + text.lstrip("\n") + rest)


def test_a_launcher_is_one_entry(copy: Path) -> None:
    assert "An entry of `LAUNCHERS` in `jobs/spotmpi/agent/launchers.py`" in GUIDE
    insert(copy, "jobs/spotmpi/agent/launchers.py", "LAUNCHERS = {", LAUNCHER)

    result = spotmpi(copy, "run", "--launcher", "serial", "--slots", "3", "--", "sh", "-c", "echo this is $RANK")
    refused = spotmpi(copy, "run", "--launcher", "serail", "--", "true")

    assert result.returncode == 0, result.stderr
    assert [line for line in result.stdout.splitlines() if "this is" in line] == [
        f"this is {rank}" for rank in range(3)
    ]
    assert "--launcher serial|absent|mpirun|" in spotmpi(copy, "run", "--help").stdout
    assert refused.returncode == 2
    assert "launcher = 'serail': input should be 'serial', 'absent', 'mpirun'" in refused.stderr
    missing = spotmpi(copy, "run", "--launcher", "absent", "--", "true")
    assert "launcher = 'absent': no python3 with the module absent on PATH: install it\n" in missing.stderr
    (copy / "train.py").write_text("import serial\n")
    assert spotmpi(copy, "init", "job.toml").returncode == 0
    assert 'launcher = "serial"' in (copy / "job.toml").read_text()


def test_every_launcher_has_a_plan_and_a_row_as_the_recipe_says() -> None:
    rows = (PROJECT / "docs" / "programs.md").read_text().partition("| `launcher` |")[2].partition("\n\n")[0]
    assert {row.split("`")[1] for row in rows.splitlines()[2:]} == set(LAUNCHERS)
    assert {str(spec["launcher"]) for spec, _ in PLANS.values() if "launcher" in spec} >= set(LAUNCHERS) - {"mpirun"}


def test_a_check_of_the_doctor_is_a_function_in_its_list(copy: Path) -> None:
    assert "add it to `CHECKS` at the end of that file" in GUIDE
    check = """
def _moon(subject: Subject) -> Iterator[Finding]:
    yield Finding("moon", "warning", "it is full", "wait")


CHECKS = (*CHECKS, Check("moon", _moon, account=False))
"""
    insert(copy, "jobs/spotmpi/environments/checks/tools.py", "", check)

    result = spotmpi(copy, "doctor")

    assert "warning  moon           it is full\n                        -> wait" in result.stdout


def test_a_command_is_a_file_and_an_entry(copy: Path) -> None:
    assert "One file in `jobs/spotmpi/cli`" in GUIDE and "an entry in\n`jobs/spotmpi/cli/main.py`" in GUIDE
    (copy / "jobs" / "spotmpi" / "cli" / "greet.py").write_text(
        'def command(name: str) -> None:\n    """Greet somebody."""\n    print("hello,", name)\n'
    )
    insert(copy, "jobs/spotmpi/cli/main.py", "COMMANDS = {", '    "greet": Entry("greet", "Greet somebody."),\n')

    assert spotmpi(copy, "greet", "you").stdout == "hello, you\n"
    assert "Greet somebody." in spotmpi(copy, "--help").stdout


def add_mood(copy: Path) -> None:
    """Add a key to the spec, its check, and what it does."""
    field = '    mood: str | None = Field(None, description="how it went", examples=["fair"])\n'
    insert(copy, "jobs/spotmpi/spec/job.py", DOCSTRING, field)
    check = """
def _mood(spec: JobSpec, capabilities: TargetCapabilities) -> Iterable[Problem]:
    if spec.mood == "bad" and spec.nodes > 1:
        yield Problem("mood", spec.mood, "only one node may have it: use nodes = 1")


CHECKS = (*CHECKS, (_mood, "mood nodes"))
"""
    insert(copy, "jobs/spotmpi/spec/validate.py", "", check)
    variables = '        "PYTHONUNBUFFERED": "1",'
    insert(copy, "jobs/spotmpi/plan/run_plan.py", variables, '        "MOOD": str(spec.mood),\n')


def test_a_key_of_the_spec_is_a_field_its_check_and_a_line_of_the_plan(copy: Path) -> None:
    assert "A field in `jobs/spotmpi/spec` with a description, and an example if it has no default." in GUIDE
    assert "checked by a function of `CHECKS` in `validate.py` there" in GUIDE
    assert "`jobs/spotmpi/plan/run_plan.py` has what all backends share" in GUIDE
    add_mood(copy)

    result = spotmpi(copy, "run", "--set", "mood=good", "--save", "job.toml", "--", "sh", "-c", "echo it is $MOOD")

    assert result.returncode == 0, result.stderr
    assert "it is good" in result.stdout and 'mood = "good"' in (copy / "job.toml").read_text()
    refused = spotmpi(copy, "run", "--nodes", "2", "--set", "mood=bad", "--", "true")
    assert refused.returncode == 2 and "mood = 'bad': only one node may have it: use nodes = 1" in refused.stderr
    assert spotmpi(copy, "init", "new.toml").returncode == 0
    assert '# mood = "fair"' in (copy / "new.toml").read_text()


def test_an_option_of_run_is_a_field_with_the_key_that_it_overrides(copy: Path) -> None:
    assert "A field of `SpecOptions` in `jobs/spotmpi/cli/run.py`, with the `Key` of the spec" in GUIDE
    add_mood(copy)
    option = '    mood: Annotated[str | None, typer.Option("--mood", help="How it went."), Key("mood")] = None\n'
    after = '    """Options that override keys of the spec."""'
    insert(copy, "jobs/spotmpi/cli/run.py", after, option)

    result = spotmpi(copy, "run", "--mood", "good", "--", "sh", "-c", "echo it is $MOOD")

    assert "it is good" in result.stdout, result.stderr
    assert "--mood <str>" in spotmpi(copy, "run", "--help").stdout


def test_a_training_program_is_a_file_with_a_main(copy: Path) -> None:
    assert "A file with a `main` in `jobs/spotmpi/programs/chainermn` or `pytorch`" in GUIDE
    program = copy / "jobs" / "spotmpi" / "programs" / "pytorch" / "greet.py"
    program.write_text('def main() -> None:\n    print("hello")\n\n\nif __name__ == "__main__":\n    main()\n')
    (copy / "job.toml").write_text('image = "pytorch"\nprogram = "greet"\nlauncher = "torchrun"\n')

    result = spotmpi(copy, "run", "job.toml", "--dry-run")

    assert result.returncode == 0, result.stderr
    (command,) = json.loads(result.stdout)["commands"]
    assert command["arguments"][-2:] == ["-m", "spotmpi.programs.pytorch.greet"]
    refused = spotmpi(copy, "run", "job.toml", "--set", "program=great")
    assert "program = 'great': the pytorch image has: allreduce, digits, greet, " in refused.stderr
    by_hand = [sys.executable, "-m", "spotmpi.programs.pytorch.greet"]
    assert subprocess.run(by_hand, cwd=copy / "jobs", capture_output=True, text=True).stdout == "hello\n"


def test_a_backend_is_a_class_and_an_entry(copy: Path) -> None:
    assert "an entry in `backend` of\n`targets.py`, in `has_pods` there" in GUIDE
    entry = """
    if target.name == "twin":
        from spotmpi.backends.twin import TwinBackend

        return TwinBackend(target.folder)
"""
    start = "    # Only runs on a cluster pay for the import of a Kubernetes client."
    insert(copy, "jobs/spotmpi/backends/targets.py", start, entry)
    docstring = '        """Whether its runs are pods: it is a Kubernetes cluster or an environment."""'
    no_pods = '        if self.name == "twin":\n            return False\n'
    insert(copy, "jobs/spotmpi/backends/targets.py", docstring, no_pods)
    (copy / "jobs" / "spotmpi" / "backends" / "twin.py").write_text(
        "from spotmpi.backends.local.backend import LocalBackend\n\n\n"
        "class TwinBackend(LocalBackend):\n"
        "    def submit(self, spec, plan, say):\n"
        '        say("the twin takes it")\n'
        "        super().submit(spec, plan, say)\n"
    )

    result = spotmpi(copy, "run", "--on", "twin", "--", "echo", "from the twin")

    assert result.returncode == 0, result.stderr
    assert "the twin takes it" in result.stderr and "from the twin" in result.stdout
    refused = spotmpi(copy, "run", "--on", "twin", "--image", "docker.io/library/python:3.12", "--", "true")
    assert "only pods pull an image" in refused.stderr
