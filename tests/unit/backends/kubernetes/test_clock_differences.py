"""A terminal whose clock differs from the cluster's by minutes sees the same run as any other."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from pathlib import Path

import pytest

import spotmpi
from spotmpi.agent import pod_context, record
from spotmpi.agent.plan import NODE
from spotmpi.backends.kubernetes.client.api import ClusterClock
from spotmpi.backends.targets import Target
from spotmpi.core import names
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from spotmpi.runs import reader
from spotmpi.spec.source import from_values
from tests.cloud.cluster.answers import Request, stamp_of
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import a_pod, condition, jobset, log_line, unscheduled_pod
from tests.unit.backends.kubernetes.following import follow, look

SPEC = from_values({"command": ["x"], "nodes": 2, "launcher": "mpirun", "kubernetes": {"image": "any"}})


@pytest.fixture(params=[-600.0, 600.0], ids=["terminal ahead", "terminal behind"])
def ahead(request: pytest.FixtureRequest) -> float:
    """Seconds by which the cluster's clock is ahead of the terminal's."""
    return float(request.param)


@pytest.fixture
def training(cluster: FakeCluster, ahead: float) -> FakeCluster:
    """Runs what is submitted: node 0 says by the cluster's clock that it started and succeeded, and so does JobSet."""

    def start(request: Request) -> None:
        if (request.verb, request.resource) == ("patch", "jobsets"):
            run = cluster.get("JobSet", request.name)
            labels = {names.LABEL_RUN: request.name, names.LABEL_ROLE: NODE, pod_context.LABEL_INDEX: "0"}
            cluster.put(a_pod(f"{request.name}-node-0-0-abcde", "Succeeded", labels, -cluster.ahead))
            lines = [log_line(1, "started", t=cluster.now() + 1, attempt=1, failures=0, interruptions=0)]
            lines.append(log_line(2, "succeeded", t=cluster.now() + 2))
            cluster.add_log(f"{request.name}-node-0-0-abcde", *lines)
            cluster.put({**run, "status": condition("Completed", lastTransitionTime=stamp_of(cluster.now()))})

    cluster.ahead, cluster.on_request = ahead, start
    return cluster


def test_a_run_is_followed_to_its_end(training: FakeCluster, runs: Path) -> None:
    """The follower gets all events and the state, and does not report the run as lost."""
    events: list[Event] = []

    state = spotmpi.run(SPEC, on=Target("kubernetes", runs), on_event=events.append)

    assert [event.kind for event in events] == ["submitted", "started", "succeeded"]
    assert (state.state, state.attempt) == ("succeeded", 1)
    assert state.submitted is not None and abs(state.submitted - training.now()) < 60
    kinds = [event["event"] for event in reader.lines(RunPaths(Path(state.folder)).events)]
    assert kinds == ["submitted", "started", "succeeded"], "the copy is as whole as what was shown"


def test_events_of_a_resumed_run_begin_with_its_resumption(training: FakeCluster, runs: Path) -> None:
    paths = RunPaths(Path(spotmpi.run(SPEC, on=Target("kubernetes", runs), detach=True).folder))
    paths.events.write_text(
        '{"t": 1.0, "event": "submitted"}\n{"t": 2.0, "event": "started"}\n{"t": 3.0, "event": "failed"}\n'
    )
    events: list[Event] = []
    training.clear("JobSet")
    training.clear("Pod")
    training.logs.clear()
    spotmpi.resume(paths.id, on=Target("kubernetes", runs), on_event=events.append)
    assert [event.kind for event in events] == ["submitted", "started", "succeeded"]


def test_no_terminal_gives_up_a_run_before_its_time(cluster: FakeCluster, ahead: float) -> None:
    """The age is by the cluster's clock; by the terminal's, the run would be deleted at once."""
    cluster.ahead = ahead
    cluster.put(unscheduled_pod(0, "no GPU", 60 - ahead))
    (event,) = look(cluster, jobset(age=60 - ahead))
    assert event.kind == record.WAITING and "(gives up in 9 min)" in str(event.reason)
    assert not cluster.deleted and abs(event.time - cluster.now()) < 60


def test_a_deleted_run_has_ended_by_the_clusters_clock(cluster: FakeCluster, ahead: float) -> None:
    cluster.ahead = ahead
    cluster.put(unscheduled_pod(0, "no GPU", -ahead))
    events = follow(cluster, jobset(age=-ahead), lambda events: cluster.clear("JobSet"))
    assert abs(events[-1].time - cluster.now()) < 60


@pytest.mark.parametrize(("ahead", "counts"), [(600.0, 600.0), (-600.0, -600.0), (1.0, 0.0)])
def test_the_date_of_a_response_sets_the_clock_unless_the_difference_is_below_its_resolution(
    ahead: float, counts: float
) -> None:
    clock = ClusterClock(lambda: 1_795_000_000.0)
    for date in ("yesterday", None, formatdate(1_795_000_000.0 + ahead, usegmt=True)):
        clock.update(date)
    assert abs(clock.now() - (1_795_000_000.0 + counts)) <= 0.5


def test_the_client_reads_the_date_of_its_responses(cluster: FakeCluster) -> None:
    cluster.ahead, api = -600.0, cluster.api()
    asyncio.run(api.list("Pod"))
    assert abs(api.now() - (time.time() - 600)) < 60
