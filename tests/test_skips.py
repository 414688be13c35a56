"""Skips: only listed tests may be skipped, the list has no others, and tests have none of the machine's variables."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.skips import MAY_BE_SKIPPED
from tests.tools import REPOSITORY

pytestmark = pytest.mark.extensive("for those who change the tests")

TESTS = """
import os
import pytest

def test_that_nobody_listed():
    pytest.skip("needs a part that is missing")

@pytest.mark.skipif(True, reason="another reason")
def test_that_a_mark_skips():
    pass

@pytest.mark.cluster
def test_of_another_tier():
    pytest.skip("needs a cluster")

def test_of_variables():
    assert not [name for name in os.environ if name.startswith("PYTHON")]
"""


# All of the project's conftest.py that concerns skips and variables; pytest-xdist would start processes.
CONFTEST = "from tests.conftest import pytest_make_collect_report, pytest_runtest_makereport\n"


def run_tests(folder: Path, text: str) -> list[str]:
    """The lines of a run of these tests, on a machine with variables for Python."""
    for name, content in {
        "conftest.py": CONFTEST,
        "pytest.ini": "[pytest]\nmarkers = cluster: a tier\n",
        "test_it.py": text,
    }.items():
        (folder / name).write_text(content)
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-q", "-rsfE", "-c", str(folder / "pytest.ini")]
    output = subprocess.run(
        [*command, f"--rootdir={folder}", str(folder / "test_it.py")],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return output.stdout.splitlines()


def test_a_skip_that_is_not_listed_is_a_failure(tmp_path: Path) -> None:
    lines = run_tests(tmp_path, TESTS)

    told = "skipped, which tests/skips.py does not list: test_it.py::"
    assert f"{told}test_that_nobody_listed: needs a part that is missing" in lines
    assert f"{told}test_that_a_mark_skips: another reason" in lines
    assert lines[-1].startswith("1 failed, 1 passed, 1 skipped, 1 error")


def test_a_file_that_is_skipped_as_a_whole_is_a_failure(tmp_path: Path) -> None:
    lines = run_tests(tmp_path, 'import pytest\npytest.importorskip("nosuch")\n')

    told = "skipped, which tests/skips.py does not list: test_it.py: could not import 'nosuch'"
    assert any(line.startswith(told) for line in lines)


@pytest.mark.parametrize("name", MAY_BE_SKIPPED)
def test_what_may_be_skipped_exists(name: str) -> None:
    path, _, function = name.partition("[")[0].partition("::")
    tree = ast.parse((REPOSITORY / path).read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
