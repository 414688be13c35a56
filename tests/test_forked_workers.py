"""Workers of pytest that fork from a process that has collected their tests."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.forked_workers import fork_workers

pytestmark = pytest.mark.extensive("for those who change the tests")
HERE = Path(__file__).parent


def config_of(workers: list[str], *arguments: str) -> Any:
    return SimpleNamespace(
        option=SimpleNamespace(tx=workers), invocation_params=SimpleNamespace(args=(*arguments, "-m", "not nightly"))
    )


def test_a_worker_has_the_modules_of_the_tests_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(["popen"] * 2, str(HERE / "test_tier_files.py"))
    monkeypatch.setenv("OF_THE_USER", "value")
    fork_workers(config)
    first, second = config.option.tx
    assert first == second and first.startswith("popen//python=")
    program = (
        "import os, sys; print(*(name for name in sys.modules if 'tests.test_' in name), os.environ['OF_THE_USER'])"
    )
    command = [*shlex.split(first.partition("=")[2]), "-u", "-c", f"{program}; sys.exit(sys.stdin.read())"]
    worker = subprocess.run(command, input="its end", capture_output=True, text=True, timeout=60)
    assert worker.stdout == "tests.test_tier_files value\n"
    assert (worker.returncode, worker.stderr) == (1, "its end\n")


@pytest.mark.parametrize("workers", [[], ["ssh=host"]])
def test_no_worker_and_those_of_other_machines_do_not_fork(workers: list[str]) -> None:
    config = config_of(list(workers))
    fork_workers(config)
    assert config.option.tx == workers


def test_workers_are_interpreters_of_their_own_where_an_import_leaves_a_thread(tmp_path: Path) -> None:
    (tmp_path / "test_thread.py").write_text(
        "from threading import *\nThread(target=Event().wait, daemon=True).start()\n"
    )
    config = config_of(["popen"], str(tmp_path), f"--rootdir={tmp_path}", "--confcutdir=/")
    fork_workers(config)
    assert config.option.tx == ["popen"]
