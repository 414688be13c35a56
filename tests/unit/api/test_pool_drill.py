"""`spotmpi drill` of a pool: the fault comes at once, and the drill ends when the node is back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotmpi.api.drill import drill
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.events import Event
from spotmpi.runs.reader import RunState
from tests.unit.api.test_drill import ScriptedBackend


class PoolBackend(ScriptedBackend):
    """A pool whose run folder has the events that have come in before the drill."""

    def __init__(self, folder: Path, past: list[Event], *events: Event, state: str = "running") -> None:
        super().__init__([*past, *events], recorded=len(past))
        (folder / "spec.toml").write_text('launcher = "pool"\n[pool]\nworkers = 2\n')
        lines = [{"t": event.time, "event": event.kind, **event.values} for event in past]
        (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        self._state = RunState("pool-1", str(folder), "pool", state)

    def state(self, run: str) -> RunState:
        return replace(self._state, id=run)


def of_worker(kind: str, time: float, worker: int) -> Event:
    return Event(time, kind, 1, values={"worker": worker, "reason": "got SIGTERM"})


PAST = [Event(80.0, "started", 1), *(of_worker("joined", 85.0, worker) for worker in (0, 1))]


def pool_drill(backend: PoolBackend, node: int, fault: str = "evict") -> Any:
    return drill(backend, "pool-1", node, fault, clock=backend.clock)  # type: ignore[arg-type]


def test_a_worker_is_followed_until_it_has_joined_again(tmp_path: Path) -> None:
    others = [of_worker("left", 101.0, 0), of_worker("joined", 102.0, 0)]
    events = [*others, of_worker("left", 103.5, 1), of_worker("joined", 115.0, 1)]
    backend = PoolBackend(tmp_path, PAST, *events)
    recovery = pool_drill(backend, 2)
    assert backend.faults == [("pool-1", 2, "evict")]
    assert str(recovery) == "evict of worker 1: lost after 3.5 s, back after 15.0 s (got SIGTERM)"


def test_node_0_is_followed_to_its_next_attempt(tmp_path: Path) -> None:
    restarted = Event(102.0, "restarted", values={"reason": "node 0: got SIGTERM"})
    backend = PoolBackend(tmp_path, PAST, restarted, Event(110.0, "started", 2))
    assert str(pool_drill(backend, 0)) == "evict of node 0: lost after 2.0 s, back after 10.0 s (node 0: got SIGTERM)"


def test_of_a_killed_process_nothing_is_measured_since_its_pod_stays(tmp_path: Path) -> None:
    recovery = pool_drill(PoolBackend(tmp_path, PAST), 1, "kill")
    assert str(recovery) == "kill of worker 0: its process was killed, and is started again in the same place"


def test_a_pool_that_ends_instead_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        SpotmpiError, match="run pool-1 ended before node 1 was back; `spotmpi status pool-1` shows why"
    ):
        pool_drill(PoolBackend(tmp_path, PAST, of_worker("left", 101.0, 0), Event(102.0, "stopped")), 1)
    ended = PoolBackend(tmp_path, PAST, state="stopped")
    with pytest.raises(SpotmpiError, match="has ended, no fault was injected: a drill needs a run that is up"):
        pool_drill(ended, 1)
    assert not ended.faults


def test_a_worker_of_a_stream_is_killed_as_that_of_a_pool(tmp_path: Path) -> None:
    backend = PoolBackend(tmp_path, PAST)
    (tmp_path / "spec.toml").write_text('command = ["train"]\nnodes = 2\n[stream]\nsource = "/set"\nbatch = 1\n')
    assert str(pool_drill(backend, 2, "kill")) == (
        "kill of worker 0: its process was killed, and is started again in the same place"
    )
