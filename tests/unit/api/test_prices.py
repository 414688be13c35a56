"""Where a pool runs and what it has cost so far, from the record in its run folder."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotmpi.api import prices
from spotmpi.core.names import RunPaths
from spotmpi.pools import pool as pools
from spotmpi.pools.pool import Pool, PoolSummary
from tests.unit.core.test_environment import OUTPUTS

EVENTS: list[dict[str, Any]] = [
    {"t": 0.0, "event": "submitted", "owner": "ann"},
    {
        "t": 3620.0,
        "event": "started",
        "attempt": 1,
        "machines": [{"name": "small", "since": 3600.0}],
    },
    {"t": 3630.0, "event": "joined", "attempt": 1, "member": "worker/0", "machine": {"name": "big", "since": 3600.0}},
    {"t": 3630.0, "event": "joined", "attempt": 1, "member": "worker/1", "machine": {"name": "big", "since": 3600.0}},
    {"t": 3630.0, "event": "joined", "attempt": 1, "member": "worker/2", "machine": {"name": "gone", "since": 3600.0}},
    {"t": 5400.0, "event": "left", "attempt": 1, "member": "worker/2", "reason": "SIGTERM"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The run folder of a pool in an environment."""
    paths = RunPaths(tmp_path)
    paths.events.write_text("".join(json.dumps(each) + "\n" for each in EVENTS))
    paths.plan.write_text(json.dumps({"backend": "kubernetes", "outputs": {"zone": "zone-a"}}))
    paths.spec.write_text('launcher = "pool"\nprice = 2.0\n[pool]\ncount = 3\n')
    return tmp_path


def test_workers_on_one_machine_cost_it_once_and_a_machine_that_has_left_until_then(folder: Path) -> None:
    assert prices.node_price(folder) == 2.0
    summary = prices.summarize(folder, 2.0, now=7200.0)
    assert summary == PoolSummary(("big", "small"), "zone-a", 2.0 + 2.0 + 1.0)
    assert prices.summarize(folder, None).cost is None


def pool_with(summary: Callable[[], PoolSummary]) -> Pool:
    """A pool with two of three workers and 7 calls; its connection answers without a cluster."""
    workers = {0: {"host": "10.0.0.1"}, 1: {"host": "10.0.0.2"}}
    connection: Any = SimpleNamespace(run="scan-1", summary=summary, in_flight=lambda: 7, close=lambda: None)
    connection.open, connection.is_copy = lambda output: connection, False
    connection.workers = lambda: {"id": "s", "size": 3, "workers": workers}
    return Pool(connection)


def test_a_representation_has_nodes_zone_cost_and_calls_in_text_and_html() -> None:
    pool = pool_with(lambda: PoolSummary(("ip-1", "<ip-2>"), "zone-a", 1.256)).open()
    assert repr(pool) == ("<pool scan-1: 2 of 3 workers connected on ip-1, <ip-2>, zone zone-a, $1.26 so far, 7 calls>")
    assert "< $0.01 so far" in repr(pool_with(lambda: PoolSummary((), None, 0.004)).open())
    page = pool._repr_html_()
    assert "&lt;ip-2&gt;" in page and "<tr><th>cost</th><td>$1.26 so far</td></tr>" in page


def test_a_representation_raises_nothing_and_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_prices() -> PoolSummary:
        raise PermissionError("no prices")

    pool = pool_with(without_prices).open()
    assert repr(pool) == "<pool scan-1: 2 of 3 workers connected on 10.0.0.1, 10.0.0.2, 7 calls>"
    monkeypatch.setattr(pools, "_within", lambda seconds, function: TimeoutError("no answer within 3 s"))
    assert repr(pool) == "<pool scan-1: no answer within 3 s>"
    assert repr(pool_with(PoolSummary)) == "<pool scan-1: not open>"


def test_an_answer_that_does_not_come_in_time_is_an_error_of_its_own() -> None:
    answered = threading.Event()
    assert isinstance(pools._within(0.01, answered.wait), TimeoutError)
    answered.set()
    assert pools._within(30.0, answered.wait) is True


def test_a_node_costs_what_aws_says_of_the_most_expensive_group(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "spotmpi.aws.prices.group_prices",
        lambda _, groups: dict(zip([each.name for each in groups], [0.4], strict=True)),
    )
    paths = RunPaths(folder)
    paths.plan.write_text(json.dumps({"backend": "kubernetes", "outputs": OUTPUTS}))
    paths.spec.write_text('launcher = "pool"\n[pool]\ncount = 1\n')
    assert prices.node_price(folder) == 0.4
