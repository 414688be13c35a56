"""Runs on this machine whose ranks are forks."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from spotmpi.runs import reader
from tests.contract import processes
from tests.contract.conftest import BackendHarness
from tests.contract.event_values import texts
from tests.contract.processes import wait_until
from tests.unit.backends.local_runs import paths_of

# The first attempts wait to be killed.
PROGRAM = """
import library, os, pathlib, time
pathlib.Path(os.environ["SPOTMPI_PID_FILE"]).write_text(str(os.getpid()))
time.sleep(300 if int(os.environ["SPOTMPI_ATTEMPT"]) < 3 else 0)
"""


@pytest.fixture
def job(tmp_path: Path) -> dict[str, Any]:
    code = tmp_path / "code"
    code.mkdir()
    (code / "library.py").touch()
    (code / "train.py").write_text(PROGRAM)
    command = ["python3", "train.py"]
    return {"command": command, "code": str(code), "launcher": "none", "preload": ["library"]}


def rank_of(local: BackendHarness, run: str, attempt: int) -> int:
    """The process id of the rank of an *attempt*, once it runs its program."""
    file = paths_of(local, run).folder / "rank-0.pid"

    def find() -> int:
        if reader.state(paths_of(local, run)).attempt != attempt or not file.exists():
            return 0
        pid = int(file.read_text() or 0)
        return pid if pid in processes.of_run(run) else 0

    return wait_until(find)


def test_a_fork_server_that_is_killed_costs_one_attempt(local: BackendHarness, job: dict[str, Any]) -> None:
    run = local.submit({**job, "limits": {"failures": 5}})
    os.kill(rank_of(local, run, 1), signal.SIGKILL)
    rank = rank_of(local, run, 2)
    servers = [pid for pid, text in processes.of_run(run).items() if "fork_server.py" in text and pid != rank]

    os.kill(servers[0], signal.SIGKILL)

    assert local.wait_for_state(run, "succeeded").attempt == 3
    assert not [text for text in texts(local.events(run)) if "without preload" in text]


def test_a_stopped_run_leaves_no_server(local: BackendHarness, job: dict[str, Any]) -> None:
    run = local.submit(job)
    wait_until(lambda: (paths_of(local, run).folder / "rank-0.pid").exists())

    local.backend.stop(run, "enough", False)

    assert local.wait_for_state(run, "stopped").reason == "enough"
    wait_until(lambda: not processes.of_run(run))


def test_where_no_server_can_listen_a_line_says_so_and_the_run_goes_on(
    local: BackendHarness, job: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    Path(job["code"], "train.py").write_text("print('done')")

    events = local.all_events(job)

    assert "ranks start without preload: AF_UNIX path too long" in texts(events) and "done" in texts(events)


def test_a_module_that_is_missing_is_one_line(local: BackendHarness, job: dict[str, Any]) -> None:
    Path(job["code"], "train.py").write_text("print('done')")

    lines = texts(local.all_events({**job, "preload": ["no_such_library"]}))

    (line,) = [text for text in lines if "preload" in text]
    assert "cannot import \"no_such_library\": ModuleNotFoundError: No module named 'no_such_library'" in line
    assert "done" in lines
