"""The machines of a pool: node 0's and those of workers, which come and go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotmpi.core.names import RunPaths
from spotmpi.runs.node_usage import machine_kinds, machine_uses


def pool(folder: Path, *events: dict[str, object]) -> RunPaths:
    submitted = {"t": 0.0, "event": "submitted", "name": "pool", "owner": "ann"}
    started = {
        "t": 20.0,
        "event": "started",
        "attempt": 1,
        "machines": [{"name": "small", "since": 10.0}],
    }
    (folder / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in (submitted, started, *events)))
    return RunPaths(folder)


def joined(time: float, worker: int, name: str, since: float) -> dict[str, object]:
    machine = {"member": f"worker/{worker}", "name": name, "since": since, "type": "g5.xlarge"}
    return {"t": time, "event": "joined", "attempt": 1, "member": f"worker/{worker}", "machine": machine}


def uses(paths: RunPaths) -> list[tuple[str, float, float, float | None]]:
    return [(use.machine, use.began, use.started, use.ended) for use in machine_uses(paths)]


def test_each_worker_is_counted_from_its_pods_start_until_it_left_or_the_pool_ended(tmp_path: Path) -> None:
    paths = pool(
        tmp_path,
        joined(30.0, 0, "a", 25.0),
        joined(32.0, 1, "b", 25.0),
        {"t": 50.0, "event": "left", "attempt": 1, "member": "worker/1", "reason": "SIGTERM"},
        joined(60.0, 1, "c", 55.0),
        {"t": 100.0, "event": "stopped"},
    )
    assert sorted(uses(paths)) == [
        ("a", 25.0, 30.0, 100.0),
        ("b", 25.0, 32.0, 50.0),
        ("c", 55.0, 60.0, 100.0),
        ("small", 10.0, 20.0, 100.0),
    ]
    assert machine_kinds(paths) == {"small": (None, None, None), **dict.fromkeys("abc", ("g5.xlarge", None, None))}


def test_a_pod_that_stands_by_is_counted_until_it_is_promoted(tmp_path: Path) -> None:
    machine = {"member": "standby/0", "name": "s", "since": 30.0, "type": "g5.xlarge"}
    paths = pool(
        tmp_path,
        {"t": 40.0, "event": "joined", "attempt": 1, "standby": "x-1-standby-0-0", "machine": machine},
        {"t": 60.0, "event": "promoted", "attempt": 2, "node": 1, "standby": "x-1-standby-0-0"},
        {"t": 100.0, "event": "stopped"},
    )
    assert [use for use in uses(paths) if use[0] == "s"] == [("s", 30.0, 40.0, 60.0)]
    assert machine_kinds(paths)["s"] == ("g5.xlarge", None, None)


def test_a_worker_that_joins_the_next_node_0_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotmpi.runs.reader.alive", lambda paths: True)  # its agent works
    paths = pool(
        tmp_path,
        joined(30.0, 0, "a", 25.0),
        {"t": 50.0, "event": "interrupted", "reason": "node 0: SIGTERM"},
        {"t": 50.1, "event": "restarted"},
        {
            "t": 70.0,
            "event": "started",
            "attempt": 2,
            "machines": [{"name": "small", "since": 60.0}],
        },
        joined(71.0, 0, "a", 25.0),
    )
    assert [use for use in uses(paths) if use[0] == "a"] == [("a", 25.0, 30.0, 50.0), ("a", 50.0, 71.0, None)]


def test_a_run_that_was_lost_held_its_machines_until_its_last_report(tmp_path: Path) -> None:
    """It was charged until now, and after a resume not at all."""
    report = {"t": 75.0, "attempt": 1, "member": "node/0", "kind": "metric", "iteration": 1}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(report) + "\n")
    lost = pool(tmp_path, joined(30.0, 0, "a", 25.0), joined(70.0, 1, "b", 65.0))
    held = [("a", 25.0, 30.0, 70.0), ("b", 65.0, 70.0, 70.0), ("small", 10.0, 20.0, 75.0)]
    assert sorted(uses(lost)) == held
    resumed = pool(
        tmp_path,
        joined(30.0, 0, "a", 25.0),
        joined(70.0, 1, "b", 65.0),
        {"t": 900.0, "event": "submitted", "name": "pool", "owner": "ann"},
        {"t": 910.0, "event": "started", "attempt": 2, "machines": [{"name": "later", "since": 905.0}]},
        {"t": 950.0, "event": "stopped"},
    )
    assert sorted(uses(resumed)) == sorted([*held, ("later", 905.0, 910.0, 950.0)])
