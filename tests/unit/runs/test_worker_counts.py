"""How many workers a pool or stream is to have, and how many of them are ready, as `spotmpi status` shows it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from spotmpi.backends.local.backend import LocalBackend
from spotmpi.cli import tables
from spotmpi.core.names import RunPaths
from spotmpi.runs import reader


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    folder = tmp_path / "runs" / "pool-1"
    folder.mkdir(parents=True)
    return RunPaths(folder)


def write(paths: RunPaths, *events: dict[str, Any]) -> None:
    with paths.events.open("a") as file:
        file.writelines(json.dumps({"t": 1.0, **each}) + "\n" for each in events)


def ready(paths: RunPaths) -> dict[str, int]:
    return {role: each["ready"] for role, each in reader.state(paths, writer_alive=True).workers.items()}


def test_workers_count_from_when_they_join_until_they_leave_or_another_attempt_begins(paths: RunPaths) -> None:
    joined = [{"event": "joined", "attempt": 1, "member": each} for each in ("worker/0", "worker/1", "postprocess/0")]
    write(paths, {"event": "submitted"}, {"event": "started", "attempt": 1}, *joined, {**joined[0], "member": "w"})
    assert ready(paths) == {"worker": 2, "postprocess": 1}
    write(paths, {"event": "left", "attempt": 1, "member": "worker/0"}, {"event": "joined", "standby": "standby/0"})
    assert ready(paths) == {"worker": 1, "postprocess": 1}
    write(paths, {"event": "started", "attempt": 2}, {"event": "joined", "attempt": 2, "member": "worker/1"})
    assert ready(paths) == {"worker": 1}
    write(paths, {"event": "stopped"})
    assert ready(paths) == {}


def test_numbers_are_those_of_now_with_roles_where_there_are_several(
    paths: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    joined = [{"event": "joined", "attempt": 1, "member": f"worker/{number}"} for number in range(3)]
    write(paths, {"event": "submitted"}, {"event": "started", "attempt": 1}, *joined)
    state = reader.with_workers(reader.state(paths, writer_alive=True), {"worker": 4})
    tables.show_status(state, as_json=False)
    assert "\nworkers    3 of 4 ready\n" in capsys.readouterr().out
    state = reader.with_workers(state, {"worker": 4, "postprocess": 1})
    tables.show_status(state, as_json=False)
    assert "\nworkers    worker 3 of 4 ready, postprocess 0 of 1 ready\n" in capsys.readouterr().out
    tables.show_status(state, as_json=True)
    workers = {"worker": {"wanted": 4, "ready": 3}, "postprocess": {"wanted": 1, "ready": 0}}
    assert json.loads(capsys.readouterr().out)["workers"] == workers


def test_on_this_machine_those_are_ready_whose_processes_run(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """No event says that they join: they are processes of the agent."""
    monkeypatch.setattr(reader, "alive", lambda paths: True)
    write(paths, {"event": "submitted"}, {"event": "started", "attempt": 1})
    role = {"name": "worker", "count": 3, "restart": "each"}
    paths.plan.write_text(json.dumps({"roles": [{"name": "node", "count": 1, "restart": "gang"}, role]}))
    backend = LocalBackend(paths.folder.parent)
    assert backend.state(paths.id).workers == {}
    paths.pool.mkdir()
    (paths.pool / "worker-0.pid").write_text(str(os.getpid()))
    (paths.pool / "worker-1.pid").write_text(str(2**22 + 1))  # more than Linux gives to a process
    assert backend.state(paths.id).workers == {"worker": {"wanted": 3, "ready": 1}}
    (paths.pool / "workers").write_text("5")
    assert backend.list()[0].workers == {"worker": {"wanted": 5, "ready": 1}}
    paths.plan.write_text("{")
    assert backend.state(paths.id).state == "running"
    write(paths, {"event": "stopped"})
    assert backend.state(paths.id).workers == {}
