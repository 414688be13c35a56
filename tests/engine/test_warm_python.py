"""Programs that fork from a warm interpreter run as in one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.warm_python import PROGRAM

pytestmark = pytest.mark.engine


@pytest.fixture
def python(warm_python: Path) -> Path:
    """The `python` of a warm environment."""
    return warm_python / "bin" / "python"


def program(folder: Path, text: str) -> str:
    """A program in the place of the language host's."""
    path = folder / PROGRAM
    path.write_text(text)
    return str(path)


def test_a_program_has_its_own_arguments_folder_variables_output_and_status(python: Path, tmp_path: Path) -> None:
    text = "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ['OWN'], 'pulumi_aws' in sys.modules)\n"
    command = [str(python), "-u", program(tmp_path, f"{text}print('no', file=sys.stderr); sys.exit(7)"), "--stack", "a"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "OWN": "x"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, f"['--stack', 'a'] {tmp_path} x True\n")
    assert done.stderr == "no\n"


def test_a_program_that_fails_says_why(python: Path, tmp_path: Path) -> None:
    command = [str(python), "-u", program(tmp_path, "raise OSError('no such zone')")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.endswith("OSError: no such zone\n")


def test_a_program_ends_with_the_process_that_stands_for_it(python: Path, tmp_path: Path) -> None:
    command = [str(python), "-u", program(tmp_path, "import time; print('begun'); time.sleep(600)")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout and client.stdout.readline() == "begun\n"
        client.kill()
        assert client.stdout.read() == "", "its pipe is closed once the program has ended, too"


def test_what_is_no_program_runs_in_an_interpreter_of_its_own(python: Path) -> None:
    done = subprocess.run([str(python), "-c", "import sys; print(sys.executable)"], capture_output=True, text=True)
    assert done.stdout == f"{sys.executable}\n"


def test_a_project_with_an_infra_of_its_own_gets_that_one(python: Path, tmp_path: Path) -> None:
    """It got the repository's, which is imported already; Pulumi starts a program in the folder that `main` names."""
    infra = tmp_path / "infra"
    infra.mkdir()
    (infra / "program.py").write_text("build = 'mine'\n")
    text = "import sys; sys.path.insert(0, '..'); from infra.program import build; print(build)\n"
    done = subprocess.run([str(python), program(tmp_path, text)], cwd=infra, capture_output=True, text=True)
    assert done.stdout == "mine\n", done.stderr
