"""A user who may not read pods/log follows a run by its run folder and JobSet, and sees which right is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

import spotmpi
from spotmpi.agent import record
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.follow import run_folder
from spotmpi.backends.kubernetes.follow.run import ClusterFollower
from spotmpi.backends.targets import Target
from spotmpi.core.errors import NotPermitted, SpotmpiError
from spotmpi.core.events import Event
from spotmpi.runs.pod_output import Entry
from tests.unit.backends.kubernetes.watched_cluster import (
    RUN,
    FakeCluster,
    api_error,
    condition,
    follow,
    jobset,
    look,
    pod,
)

RIGHT = "you may not read logs of pods in namespace here: ask for `get` on `pods/log`"


@pytest.fixture
def cluster(cluster: FakeCluster) -> FakeCluster:
    """The cluster of every context, which forbids reading logs, as RBAC without `pods/log` does."""
    cluster.pods.append(pod(1, "Running"))
    cluster.errors["log"] = api_error(403)
    return cluster


def fill_folder(monkeypatch: pytest.MonkeyPatch, *entries: Entry | SpotmpiError) -> list[float]:
    """Let the run folder hold *entries*, one more at each reading; the `since` of each reading."""
    since_times: list[float] = []

    async def read_folder(self: ClusterFollower, pod: str, node: int, since: float, until: float) -> list[Entry]:
        since_times.append(since)
        answer = entries[min(len(since_times), len(entries)) - 1]
        if isinstance(answer, SpotmpiError):
            raise answer
        return [answer]

    monkeypatch.setattr(ClusterFollower, "_read_folder", read_folder)
    monkeypatch.setattr(run_folder, "POLL_INTERVAL", 0.01)
    return since_times


def reasons(events: list[Event]) -> list[str]:
    return [str(event.reason) for event in events if event.kind == record.GAP]


def test_the_end_of_a_run_is_reported_without_its_output(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The missing permission is reported once and the run's end is seen, without a request every second."""
    fill_folder(monkeypatch, NotPermitted("could not read the run folder: not permitted"))

    def script(events: list[Event]) -> None:
        if len(events) == 2:
            cluster.put(cluster_api.JOBSET, "MODIFIED", jobset(status=condition("Completed")))

    events = follow(cluster, jobset(), script)
    assert reasons(events) == [
        f"{RIGHT}; until then output comes from the run folder alone",
        "the run folder cannot be read either: could not read the run folder: not permitted",
    ]
    assert events[-1].kind == record.SUCCEEDED


def test_output_is_read_from_the_run_folder_as_it_grows(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    started = Entry(0, event=Event(5e9, record.STARTED, 1))
    end = Entry(0, event=Event(5e9 + 1, record.SUCCEEDED))
    since_times = fill_folder(monkeypatch, started, started, end)
    events = follow(cluster, jobset())
    assert {event.kind for event in events} == {record.GAP, record.STARTED, record.SUCCEEDED}
    assert events[-1].kind == record.SUCCEEDED and since_times[1:3] == [5e9, 5e9], "from the newest entry on"
    assert len(reasons(events)) == 1


def test_logs_without_any_output_fail_and_status_does_not(
    runs: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_folder(monkeypatch, NotPermitted("not permitted"))
    target = Target("kubernetes", runs)
    with pytest.raises(NotPermitted, match=r"ask for `get` on `pods/log` \(not permitted\)"):
        list(spotmpi.logs(RUN, False, target))
    assert spotmpi.status(RUN, target).state == "running"


def test_a_snapshot_reports_the_missing_right_once_for_all_pods(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.pods.append(pod(0, "Failed", 60))
    cluster.pods[-1]["metadata"]["name"] += "-old"
    fill_folder(monkeypatch, NotPermitted("not permitted"))
    assert len(reasons(look(cluster, jobset()))) == 2
