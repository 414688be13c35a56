"""`scripts/setup` finds a Python that it can use, also where pyenv is first on PATH and runs none."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("bash", "cat", "cut", "dirname", "mkdir", "sha256sum", "ln")
# As of pyenv 2.4 where neither a file nor a variable selects a version, and where the selected one was removed.
REFUSALS = [
    'echo "pyenv: python3: command not found" >&2; exit 127',
    "echo \"pyenv: version '3.12.1' is not installed (set by /home/me/.python-version)\" >&2; exit 1",
]
UV = """
case $1 in
  venv) echo "$5" > asked; mkdir -p .venv/bin; ln -sf "$5" .venv/bin/python ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that has what its setup reads, beside a PATH without any Python."""
    for name in ("requirements.lock", "pyproject.toml", "jobs/spotmpi/__init__.py", "scripts/setup"):
        (tmp_path / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "checkout" / name)
    (tmp_path / "checkout/infra").mkdir()
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or pytest.skip(f"{tool} is missing"))
    program(tmp_path / "bin/uv", UV)
    return tmp_path / "checkout"


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def interpreter(path: Path) -> Path:
    """This Python under another path."""
    return program(path, f'exec "{sys.executable}" "$@"')


def setup(checkout: Path, path: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    home = checkout.parent / "home"
    environment = {"PATH": f"{home}/.pyenv/shims:{path}:{checkout.parent}/bin", "HOME": str(home), **variables}
    return subprocess.run(
        [checkout / "scripts/setup"], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("refusal", REFUSALS, ids=["no version is set", "its version is not installed"])
@pytest.mark.parametrize("root", [".pyenv", "elsewhere"])
def test_a_shim_that_runs_no_version_hides_none_that_pyenv_has(checkout: Path, refusal: str, root: str) -> None:
    home = checkout.parent / "home"
    program(home / ".pyenv/shims/python3", refusal)
    program(home / root / "versions/3.10.1/bin/python3", "exit 1")
    wanted = interpreter(home / root / "versions/3.12.4/bin/python3")
    variables = {} if root == ".pyenv" else {"PYENV_ROOT": str(home / root)}
    result = setup(checkout, **variables)
    assert (result.returncode, "pyenv" in result.stderr) == (0, False), result.stderr
    assert (checkout / "asked").read_text().strip() == str(wanted)
    (checkout / "asked").unlink()
    assert setup(checkout, **variables).returncode == 0 and not (checkout / "asked").exists(), "nothing has changed"


def test_a_shim_that_runs_a_version_is_used_and_so_is_a_python_behind_one_that_does_not(checkout: Path) -> None:
    shim = program(checkout.parent / "home/.pyenv/shims/python3", REFUSALS[0])
    behind = interpreter(checkout.parent / "usr/bin/python3")
    assert setup(checkout, str(behind.parent)).returncode == 0
    assert (checkout / "asked").read_text().strip() == str(behind)
    shutil.rmtree(checkout / ".venv")
    interpreter(shim)
    assert setup(checkout, str(behind.parent)).returncode == 0
    assert (checkout / "asked").read_text().strip() == str(shim)


def test_without_any_python_one_line_says_which_one_is_needed(checkout: Path) -> None:
    program(checkout.parent / "home/.pyenv/shims/python3", REFUSALS[0])
    result = setup(checkout)
    (line,) = result.stderr.splitlines()
    assert result.returncode == 1 and line.startswith("setup: Python 3.11 to 3.14 is needed")
    environment = {"PATH": f"{checkout.parent}/bin"}
    again = subprocess.run([checkout / "scripts/setup"], env=environment, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stderr.splitlines()) == (1, [line]), "there may be no home"
