"""The recipes of CONTRIBUTING.md, each followed to the letter in a copy of the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spotmpi.agent.launchers import LAUNCHERS
from tests.unit.plan.test_local import PLANS

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

    assert "warning  moon         it is full\n                      -> wait" in result.stdout


def test_a_command_is_a_file_and_an_entry(copy: Path) -> None:
    assert "One file in `jobs/spotmpi/cli`" in GUIDE and "an entry in\n`jobs/spotmpi/cli/app.py`" in GUIDE
    (copy / "jobs" / "spotmpi" / "cli" / "greet.py").write_text(
        'def command(name: str) -> None:\n    """Greet somebody."""\n    print("hello,", name)\n'
    )
    insert(copy, "jobs/spotmpi/cli/app.py", "COMMANDS = {", '    "greet": Entry("greet", "Greet somebody."),\n')

    assert spotmpi(copy, "greet", "you").stdout == "hello, you\n"
    assert "Greet somebody." in spotmpi(copy, "--help").stdout


def test_a_key_of_the_spec_is_a_field(copy: Path) -> None:
    assert "A field with a description in `jobs/spotmpi/spec`" in GUIDE
    field = '    mood: str = Field("fair", description="how it went")\n'
    insert(copy, "jobs/spotmpi/spec/job.py", DOCSTRING, field)

    result = spotmpi(copy, "run", "--set", "mood=good", "--save", "job.toml", "--dry-run", "--", "true")

    assert result.returncode == 0, result.stderr
    assert 'mood = "good"' in (copy / "job.toml").read_text()
    assert spotmpi(copy, "init", "new.toml").returncode == 0
    assert '# mood = "fair"' in (copy / "new.toml").read_text()


def test_a_backend_is_a_class_and_an_entry(copy: Path) -> None:
    assert "an entry in `targets.py`" in GUIDE
    entry = """
    if target.name == "twin":
        from spotmpi.backends.twin import TwinBackend

        return TwinBackend(target.folder)
"""
    start = "    # Only runs on a cluster pay for the import of a Kubernetes client."
    insert(copy, "jobs/spotmpi/backends/targets.py", start, entry)
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
