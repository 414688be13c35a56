"""A terminal whose clock differs from the cluster's by minutes sees the same run as any other."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from pathlib import Path

import pytest

import spotmpi
from spotmpi.agent import record
from spotmpi.backends.kubernetes import backend
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi, ClusterClock
from spotmpi.backends.targets import Target
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from spotmpi.runs import reader
from spotmpi.spec.job import from_values
from tests.unit.backends.kubernetes.served_api import Server, api_at, listing
from tests.unit.backends.kubernetes.watched_cluster import (
    FakeCluster,
    Object,
    condition,
    follow,
    jobset,
    log_line,
    look,
    pod,
    stamp,
    unscheduled_pod,
)

SPEC = from_values({"command": ["x"], "nodes": 2, "launcher": "mpirun", "kubernetes": {"image": "any"}})


@pytest.fixture(params=[-600.0, 600.0], ids=["terminal ahead", "terminal behind"])
def ahead(request: pytest.FixtureRequest) -> float:
    """Seconds by which the cluster's clock is ahead of the terminal's."""
    return float(request.param)


class Training(FakeCluster):
    """Runs what is submitted: node 0 says by the cluster's clock that it started and succeeded, and so does JobSet."""

    async def patch(self, kind: str, name: str, values: Object) -> None:
        leader = pod(0, "Succeeded", -self.ahead)
        self.pods.append(leader)
        counts = {"attempt": 1, "failures": 0, "interruptions": 0}
        self.add_log(leader, log_line(1, "started", t=self.now() + 1, **counts))
        self.add_log(leader, log_line(2, "succeeded", t=self.now() + 2))
        self.jobsets[0]["status"] = condition("Completed", lastTransitionTime=stamp(-self.ahead))
        self.put(cluster_api.JOBSET, "MODIFIED", self.jobsets[0])


def training(ahead: float, monkeypatch: pytest.MonkeyPatch) -> Training:
    cluster = Training([], ahead=ahead)
    monkeypatch.setattr(backend, "ClusterApi", lambda context, namespace: cluster)
    return cluster


def test_a_run_is_followed_to_its_end(ahead: float, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower gets all events and the state, and does not report the run as lost."""
    cluster = training(ahead, monkeypatch)
    events: list[Event] = []

    state = spotmpi.run(SPEC, on=Target("kubernetes", runs), watch=events.append)

    assert [event.kind for event in events] == ["submitted", "started", "succeeded"]
    assert (state.state, state.attempt) == ("succeeded", 1)
    assert state.submitted is not None and abs(state.submitted - cluster.now()) < 60
    kinds = [event["event"] for event in reader.lines(RunPaths(Path(state.folder)).events)]
    assert kinds == ["submitted", "started", "succeeded"], "the copy is as whole as what was shown"


def test_events_of_a_resumed_run_begin_with_its_resumption(
    ahead: float, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training(ahead, monkeypatch)
    paths = RunPaths(Path(spotmpi.run(SPEC, on=Target("kubernetes", runs), detach=True).folder))
    paths.events.write_text(
        '{"t": 1.0, "event": "submitted"}\n{"t": 2.0, "event": "started"}\n{"t": 3.0, "event": "failed"}\n'
    )
    events: list[Event] = []
    resumed = training(ahead, monkeypatch)
    resumed.namespace = "default"
    spotmpi.resume(paths.id, on=Target("kubernetes", runs), watch=events.append)
    assert [event.kind for event in events] == ["submitted", "started", "succeeded"]


def test_no_terminal_gives_up_a_run_before_its_time(ahead: float) -> None:
    """The age is by the cluster's clock; by the terminal's, the run would be deleted at once."""
    cluster = FakeCluster([unscheduled_pod(0, "no GPU", 60 - ahead)], ahead=ahead)
    (event,) = look(cluster, jobset(age=60 - ahead))
    assert event.kind == record.WAITING and "(gives up in 9 min)" in str(event.reason)
    assert not cluster.deleted and abs(event.time - cluster.now()) < 60


def test_a_deleted_run_has_ended_by_the_clusters_clock(ahead: float) -> None:
    cluster = FakeCluster([unscheduled_pod(0, "no GPU", -ahead)], ahead=ahead)
    cluster.put(cluster_api.JOBSET, "DELETED", jobset())
    assert abs(follow(cluster, jobset(age=-ahead))[-1].time - cluster.now()) < 60


@pytest.mark.parametrize(("ahead", "counts"), [(600.0, 600.0), (-600.0, -600.0), (1.0, 0.0)])
def test_the_date_of_a_response_sets_the_clock_unless_the_difference_is_below_its_resolution(
    ahead: float, counts: float
) -> None:
    clock = ClusterClock(lambda: 1_795_000_000.0)
    for date in ("yesterday", None, formatdate(1_795_000_000.0 + ahead, usegmt=True)):
        clock.update(date)
    assert abs(clock.now() - (1_795_000_000.0 + counts)) <= 0.5


def test_the_client_reads_the_date_of_its_responses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(ahead=-600.0)
    server.answers["list"] = [(200, listing())]
    cluster: ClusterApi = api_at(server.port, tmp_path, monkeypatch)
    try:
        asyncio.run(cluster.list(cluster_api.POD))
    finally:
        server.close()
    assert abs(cluster.now() - (time.time() - 600)) < 60
