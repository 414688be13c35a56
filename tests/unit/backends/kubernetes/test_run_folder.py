"""Output from the run folder: read through pods, which may end meanwhile, and where a user may not read pods/log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import spotmpi
from spotmpi.agent import record
from spotmpi.agent.plan import COORDINATOR
from spotmpi.backends.kubernetes.client import answers
from spotmpi.backends.kubernetes.client.answers import OversizedAnswer
from spotmpi.backends.kubernetes.follow import pod_log
from spotmpi.backends.kubernetes.follow.pod_log import RunFolder
from spotmpi.backends.kubernetes.follow.run import ClusterFollower
from spotmpi.backends.targets import Target
from spotmpi.core.errors import NotPermitted, SpotmpiError
from spotmpi.core.events import Event
from spotmpi.runs.pod_output import PodEntry
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import RUN, a_pod, condition, jobset, pod
from tests.unit.backends.kubernetes.following import follow, look

pytestmark = pytest.mark.usefixtures("a_run")

LINE = '{"n":0,"l":[1,"node/0",1,1000.5,null,"o","hello"]}\n'


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_log, "RETRY_DELAYS", (0.0, 0.0, 0.0))


def texts(cluster: FakeCluster, *running: list[str]) -> list[str]:
    """The lines that a follower reads, while *running* lists the pods at each try."""
    remaining = list(running)
    folder = RunFolder(cluster.api(), jobset(), lambda text: None)
    entries = asyncio.run(folder.entries(lambda: remaining.pop(0), COORDINATOR, 0.0, 2000.0))
    return [str(entry.event.values["text"]) for entry in entries if entry.event]


def pods_asked(cluster: FakeCluster) -> list[str]:
    return [request.name for request in cluster.requests_of("get", "pods/exec")]


@pytest.fixture
def a_and_b(cluster: FakeCluster) -> None:
    """The cluster has two pods that run."""
    cluster.put(a_pod("a", "Running", {}), a_pod("b", "Running", {}))


@pytest.mark.usefixtures("a_and_b")
def test_reading_is_retried_in_the_pod_or_its_successor(cluster: FakeCluster) -> None:
    cluster.refuse("get", "pods/exec", 500, times=1)
    cluster.answer_commands(LINE, LINE + "that is all\n")
    assert texts(cluster, ["a"], ["a"], ["b"]) == ["hello"]
    assert pods_asked(cluster) == ["a", "a", "b"], "an answer that broke off is not an answer"


@pytest.mark.usefixtures("a_and_b")
def test_a_pod_that_prints_without_an_end_is_not_read_again(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "LIMIT", 1_000)
    cluster.answer_commands(LINE * 100)
    with pytest.raises(OversizedAnswer, match="pod a printed more than 1,000 bytes"):
        texts(cluster, ["a"], ["b"])
    assert pods_asked(cluster) == ["a"]


def test_without_a_running_pod_and_a_volume_the_error_says_so(cluster: FakeCluster) -> None:
    with pytest.raises(SpotmpiError, match="no run volume, and no pod that holds its output is running"):
        texts(cluster, ["gone"], [])


@pytest.mark.usefixtures("a_and_b")
def test_a_pod_that_cannot_be_read_is_named_with_the_reason(cluster: FakeCluster) -> None:
    # It runs at every try, so the error says what is wrong with it, not that it is gone.
    reason = "could not read the run folder: the cluster answered 500"
    cluster.refuse("get", "pods/exec", 500)
    with pytest.raises(SpotmpiError, match=f"^the run has no run volume, and its pod b failed: {reason}$"):
        texts(cluster, ["a"], ["a"], ["b"])


@pytest.mark.usefixtures("a_and_b")
def test_a_forbidden_read_is_not_retried(cluster: FakeCluster) -> None:
    cluster.forbid("get", "pods/exec")
    with pytest.raises(NotPermitted):
        texts(cluster, ["a"])
    assert pods_asked(cluster) == ["a"]


RIGHT = "you may not read logs of pods in namespace here: ask for `get` on `pods/log`"


@pytest.fixture
def forbidding(cluster: FakeCluster) -> FakeCluster:
    """The cluster forbids reading logs, as RBAC without `pods/log` does."""
    cluster.put(pod(1, "Running"))
    cluster.forbid("get", "pods/log")
    return cluster


def fill_folder(monkeypatch: pytest.MonkeyPatch, *entries: PodEntry | SpotmpiError) -> list[float]:
    """Let the run folder hold *entries*, one more at each reading; the `since` of each reading."""
    since_times: list[float] = []

    async def read_folder(self: ClusterFollower, pod: str, node: int, since: float, until: float) -> list[PodEntry]:
        since_times.append(since)
        answer = entries[min(len(since_times), len(entries)) - 1]
        if isinstance(answer, SpotmpiError):
            raise answer
        return [answer]

    monkeypatch.setattr(ClusterFollower, "_read_folder", read_folder)
    monkeypatch.setattr(pod_log, "POLL_INTERVAL", 0.01)
    return since_times


def reasons(events: list[Event]) -> list[str]:
    return [str(event.reason) for event in events if event.kind == record.GAP]


def test_the_end_of_a_run_is_reported_without_its_output(
    forbidding: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The missing permission is reported once and the run's end is seen, without a request every second."""
    fill_folder(monkeypatch, NotPermitted("could not read the run folder: not permitted"))

    def script(events: list[Event]) -> None:
        if len(events) == 2:
            forbidding.put(jobset(status=condition("Completed")))

    events = follow(forbidding, jobset(), script)
    assert reasons(events) == [
        f"{RIGHT}; until then output comes from the run folder alone",
        "the run folder cannot be read either: could not read the run folder: not permitted",
    ]
    assert events[-1].kind == record.SUCCEEDED


def test_output_is_read_from_the_run_folder_as_it_grows(
    forbidding: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = PodEntry(0, event=Event(5e9, record.STARTED, 1))
    end = PodEntry(0, event=Event(5e9 + 1, record.SUCCEEDED))
    since_times = fill_folder(monkeypatch, started, started, end)
    events = follow(forbidding, jobset())
    assert {event.kind for event in events} == {record.GAP, record.STARTED, record.SUCCEEDED}
    assert events[-1].kind == record.SUCCEEDED and since_times[1:3] == [5e9, 5e9], "from the newest entry on"
    assert len(reasons(events)) == 1


def test_logs_without_any_output_fail_and_status_does_not(
    runs: Path, forbidding: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_folder(monkeypatch, NotPermitted("not permitted"))
    target = Target("kubernetes", runs)
    with pytest.raises(NotPermitted, match=r"ask for `get` on `pods/log` \(not permitted\)"):
        list(spotmpi.logs(RUN, False, target))
    assert spotmpi.status(RUN, target).state == "running"


def test_a_snapshot_reports_the_missing_right_once_for_all_pods(
    forbidding: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = pod(0, "Failed", 60)
    old["metadata"]["name"] += "-old"
    forbidding.put(old)
    fill_folder(monkeypatch, NotPermitted("not permitted"))
    assert len(reasons(look(forbidding, jobset()))) == 2
