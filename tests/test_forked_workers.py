"""Workers of pytest that fork from a process that has collected their tests."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from execnet.xspec import XSpec

from tests.forked_workers import fork_workers

pytestmark = pytest.mark.extensive("for those who change the tests")
HERE = Path(__file__).parent


def forked(workers: list[str], *arguments: str) -> list[str | None]:
    """What is started in place of the interpreter of each worker."""
    specs = [XSpec(worker) for worker in workers]
    config: Any = SimpleNamespace(invocation_params=SimpleNamespace(args=(*arguments, "-m", "not nightly")))
    fork_workers(config, specs)
    return [spec.python for spec in specs]


def test_a_worker_has_the_modules_of_the_tests_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_USER", "value")
    first, second = forked(["popen"] * 2, str(HERE / "test_tier_files.py"))
    assert first and first == second
    program = (
        "import os, sys; print(*(name for name in sys.modules if 'tests.test_' in name), os.environ['OF_THE_USER'])"
    )
    command = [*shlex.split(first), "-u", "-c", f"{program}; sys.exit(sys.stdin.read())"]
    worker = subprocess.run(command, input="its end", capture_output=True, text=True, timeout=60)
    assert worker.stdout == "tests.test_tier_files value\n"
    assert (worker.returncode, worker.stderr) == (1, "its end\n")


@pytest.mark.parametrize("worker", ["ssh=host", "popen//python=python3.14"])
def test_workers_of_other_machines_and_interpreters_do_not_fork(worker: str) -> None:
    assert forked([worker]) == [XSpec(worker).python]


def test_workers_are_interpreters_of_their_own_where_an_import_leaves_a_thread(tmp_path: Path) -> None:
    (tmp_path / "test_thread.py").write_text(
        "from threading import *\nThread(target=Event().wait, daemon=True).start()\n"
    )
    assert forked(["popen"], str(tmp_path), f"--rootdir={tmp_path}", "--confcutdir=/") == [None]
