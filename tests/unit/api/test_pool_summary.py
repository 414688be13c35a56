"""Where a pool runs and what it has cost so far, from the record in its run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi.api import pool_summary
from spotmpi.core.names import RunPaths
from spotmpi.pools import pool as pools
from spotmpi.pools.pool import Pool, PoolSummary

EVENTS: list[dict[str, Any]] = [
    {"t": 0.0, "event": "submitted", "owner": "ann"},
    {"t": 3620.0, "event": "started", "attempt": 1, "machines": [{"node": 0, "name": "small", "since": 3600.0}]},
    {"t": 3630.0, "event": "joined", "attempt": 1, "worker": 0, "machine": {"name": "big", "since": 3600.0}},
    {"t": 3630.0, "event": "joined", "attempt": 1, "worker": 1, "machine": {"name": "big", "since": 3600.0}},
    {"t": 3630.0, "event": "joined", "attempt": 1, "worker": 2, "machine": {"name": "gone", "since": 3600.0}},
    {"t": 5400.0, "event": "left", "attempt": 1, "worker": 2, "reason": "SIGTERM"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The run folder of a pool in an environment."""
    paths = RunPaths(tmp_path)
    paths.events.write_text("".join(json.dumps(each) + "\n" for each in EVENTS))
    paths.plan.write_text(json.dumps({"backend": "kubernetes", "there": {"zone": "zone-a"}}))
    paths.spec.write_text('launcher = "pool"\nprice = 2.0\n[pool]\nworkers = 3\n')
    return tmp_path


def test_workers_on_one_machine_cost_it_once_and_a_machine_that_has_left_until_then(folder: Path) -> None:
    assert pool_summary.node_price(folder) == 2.0
    summary = pool_summary.summarize(folder, 2.0, now=7200.0)
    assert summary == PoolSummary(("big", "small"), "zone-a", 2.0 + 2.0 + 1.0)


def test_a_pool_without_a_price_has_no_cost(folder: Path) -> None:
    assert pool_summary.summarize(folder, None).cost is None


class Connected:
    """A pool that is up, with what it answers about its workers."""

    run = "scan-1"
    description: dict[str, Any] = {"id": "s", "size": 3, "workers": {0: {"host": "10.0.0.1"}, 1: {"host": "10.0.0.2"}}}

    def __init__(self, summary: PoolSummary | Exception) -> None:
        self._summary = summary

    def open(self, output: object) -> Any:
        return self

    def workers(self) -> dict[str, Any]:
        return self.description

    def under_way(self) -> int:
        return 7

    def resize(self, workers: int) -> None:
        raise AssertionError

    def summary(self) -> PoolSummary:
        if isinstance(self._summary, Exception):
            raise self._summary
        return self._summary

    def close(self) -> None:
        pass


def test_a_representation_has_nodes_zone_cost_and_calls_in_text_and_html() -> None:
    pool = Pool(Connected(PoolSummary(("ip-1", "<ip-2>"), "zone-a", 1.256))).open()
    assert repr(pool) == ("<pool scan-1: 2 of 3 workers connected on ip-1, <ip-2>, zone zone-a, $1.26 so far, 7 calls>")
    page = pool._repr_html_()
    assert "&lt;ip-2&gt;" in page and "<tr><th>cost</th><td>$1.26 so far</td></tr>" in page


def test_a_representation_raises_nothing_and_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(Connected(PermissionError("no prices"))).open()
    assert repr(pool) == "<pool scan-1: 2 of 3 workers connected on 10.0.0.1, 10.0.0.2, 7 calls>"
    monkeypatch.setattr(pools, "_within", lambda seconds, function: TimeoutError("no answer within 3s"))
    assert repr(pool) == "<pool scan-1: no answer within 3s>"
    assert repr(Pool(Connected(PoolSummary()))) == "<pool scan-1: not open>"


def test_an_answer_that_does_not_come_in_time_is_an_error_of_its_own() -> None:
    import threading

    answered = threading.Event()
    assert isinstance(pools._within(0.01, answered.wait), TimeoutError)
    answered.set()
    assert pools._within(30.0, answered.wait) is True
