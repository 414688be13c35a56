"""A record of which a program of the run has changed values to other types costs what is lost, and ends no command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent.attempt_history import read_attempts
from spotmpi.api.lineage import run_node
from spotmpi.core.names import RunPaths
from spotmpi.entries.store import Store
from spotmpi.report.gather import gather
from spotmpi.runs import node_usage, reader
from tests.unit.report.recorded_runs import NOW, SPEC, Recorded, record

WRONG: list[Any] = ["text", -1, 1.5, True, [], {}, [[]], ["text"], [{"nodes": "text"}], {"files": 1}, None]


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A run of one attempt on a machine with a name."""
    paths = record(tmp_path, "run-1", SPEC, Recorded(ranks=(0.1, 0.1), iterations=60))
    attempt = {"attempt": 1, "started": 1e9, "ended": 1e9 + 60, "cause": "succeeded", "last_iteration": 60}
    (paths.attempts / "1").mkdir(parents=True, exist_ok=True)
    (paths.attempts / "1" / "node-0.json").write_text(json.dumps(attempt))
    return paths


def read(paths: RunPaths) -> None:
    """What `report`, `cost` and `why` read."""
    gather([paths.id], paths.folder.parent, NOW)
    read_attempts(str(paths.folder))
    node_usage.machine_uses(paths)
    node_usage.worker_machines(paths)
    node_usage.machine_kinds(paths)
    run_node(paths, Store(str(paths.folder.parent / "store")))


@pytest.mark.parametrize("key", ["hardware", "attempts", "context", "result", "reason", "iteration"])
def test_of_a_summary(paths: RunPaths, key: str) -> None:
    for wrong in WRONG:
        paths.summary.write_text(json.dumps({"state": "succeeded", key: wrong}))
        read(paths)


@pytest.mark.parametrize("key", ["attempt", "ended", "started", "hardware", "reason", "last_iteration", "cause"])
def test_of_an_attempt(paths: RunPaths, key: str) -> None:
    file = paths.attempts / "1" / "node-0.json"
    whole = json.loads(file.read_text())
    for wrong in WRONG:
        file.write_text(json.dumps({**whole, key: wrong}))
        read(paths)
        assert all(each["attempt"] == 1 for each in reader.attempts(paths))


@pytest.mark.parametrize("key", ["attempt", "machines", "machine", "member", "standby", "owner", "event"])
def test_of_an_event(paths: RunPaths, key: str) -> None:
    """Of each kind of event one after the other, as they were in a whole record."""
    with paths.events.open("a") as file:
        for wrong in [*WRONG, [{"member": "x"}], [{"member": "node/0", "since": "x"}]]:
            for kind in ("submitted", "started", "joined", "avoided"):
                event = {"t": 2e9, "event": kind, "member": "worker/1", "machine": {"name": "a"}}
                file.write(json.dumps({**event, key: wrong}) + "\n")
    read(paths)
    reader.state(paths)
