"""The run volume, read by a short-lived pod, against a cluster whose every answer is scripted."""

from __future__ import annotations

import asyncio
import fcntl
from pathlib import Path

import pytest

from spotmpi.agent import record
from spotmpi.backends.kubernetes import volume_access
from spotmpi.backends.kubernetes.client import api
from spotmpi.backends.kubernetes.follow import run
from spotmpi.backends.kubernetes.follow.run import ClusterFollower
from spotmpi.core.errors import RunInUse, SpotmpiError
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from spotmpi.plan.volume_pod import volume_pod
from tests.unit.backends.kubernetes.volume_cluster import Object, VolumeCluster, pull, recorded_run
from tests.unit.backends.kubernetes.watched_cluster import RUN, jobset, pod, refused


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume_access, "_POLL_INTERVAL", 0.01)
    monkeypatch.setattr(run, "LOG_TIMEOUT", 1.0)
    monkeypatch.setattr(run, "CHECK_INTERVAL", 0.02)


@pytest.fixture
def there(tmp_path: Path) -> RunPaths:
    return recorded_run(tmp_path / "volume")


def test_a_pod_made_for_the_purpose_brings_the_whole_folder_and_is_gone_afterwards(
    there: RunPaths, tmp_path: Path
) -> None:
    cluster, here = VolumeCluster(there.folder.parent), RunPaths(tmp_path / "here" / RUN)

    said = pull(cluster, here)

    assert (here.checkpoints / "7" / "model.npz").read_text() == "weights"
    assert here.events.read_text() == there.events.read_text()
    (made,) = cluster.created
    owner = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "claim", "uid": "7"}
    assert made["metadata"]["ownerReferences"] == [owner]  # or VPC CNI would hold it to no policy
    assert cluster.deleted == [made["metadata"]["name"]]
    assert said == ["waiting for a pod that reads the run volume: 1/1 nodes: containers are being created " + GIVES_UP]
    assert [path.name for path in here.folder.parent.iterdir()] == [RUN]


GIVES_UP = "(gives up after 300 s)"


def test_a_pod_of_the_run_is_used_where_one_lives(there: RunPaths, tmp_path: Path) -> None:
    cluster = VolumeCluster(there.folder.parent, [pod(0, "Succeeded"), pod(1, "Running")])
    pull(cluster, RunPaths(tmp_path / "here" / RUN))
    assert not cluster.created
    assert {name for name, _ in cluster.commands} == {pod(1, "Running")["metadata"]["name"]}


def test_what_only_this_terminals_copy_knows_stays_and_an_older_pull_is_replaced(
    there: RunPaths, tmp_path: Path
) -> None:
    here = RunPaths(tmp_path / "here" / RUN)
    (here.checkpoints / "3").mkdir(parents=True)
    here.events.write_text("submitted here\n")
    pull(VolumeCluster(there.folder.parent), here)
    assert here.events.read_text() == "submitted here\n"
    assert [path.name for path in here.checkpoints.iterdir()] == ["7"]


def test_a_run_that_is_being_followed_here_is_left_alone(there: RunPaths, tmp_path: Path) -> None:
    here = RunPaths(tmp_path / "here" / RUN)
    here.folder.mkdir(parents=True)
    with (here.folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RunInUse, match=r"another process is following run .* --runs FOLDER"):
            pull(VolumeCluster(there.folder.parent), here)


def test_a_volume_without_the_run_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    cluster, here = VolumeCluster(tmp_path / "volume"), RunPaths(tmp_path / "here" / RUN)
    with pytest.raises(SpotmpiError, match="could not access the files on the run volume: folder not found"):
        pull(cluster, here)
    assert cluster.deleted == [cluster.created[0]["metadata"]["name"]]
    assert not list(here.folder.parent.iterdir())


def test_a_claim_that_does_not_exist_is_named_at_once(tmp_path: Path) -> None:
    cluster = VolumeCluster(tmp_path / "volume")
    cluster.claim = None
    with pytest.raises(SpotmpiError, match="namespace here has no PersistentVolumeClaim claim; `kubectl get pvc`"):
        pull(cluster, RunPaths(tmp_path / "here" / RUN))
    assert not cluster.created


def test_who_may_not_read_claims_has_a_pod_without_an_owner(there: RunPaths, tmp_path: Path) -> None:
    cluster = VolumeCluster(there.folder.parent)
    usual = cluster.find

    async def find(kind: str, name: str, namespace: str | None = None) -> Object | None:
        if kind == api.CLAIM:
            raise refused(403)
        return await usual(kind, name, namespace)

    cluster.find = find  # type: ignore[method-assign]
    pull(cluster, RunPaths(tmp_path / "here" / RUN))
    assert "ownerReferences" not in cluster.created[0]["metadata"]


def test_a_pod_that_never_runs_is_given_up_with_the_clusters_reason(
    there: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume_access, "START_TIMEOUT", 0.05)
    cluster = VolumeCluster(there.folder.parent, phases=["Pending"])
    monkeypatch.setattr("spotmpi.backends.kubernetes.volume_access.secrets.token_hex", lambda size: "one")
    said = {"name": "spotmpi-volume-one"}
    cluster.events = [{"involvedObject": said, "reason": "FailedMount", "message": "claim not found"}]
    with pytest.raises(SpotmpiError, match=r"within 0.05 s: .*FailedMount: claim not found"):
        pull(cluster, RunPaths(tmp_path / "here" / RUN))
    assert cluster.deleted == ["spotmpi-volume-one"]


@pytest.mark.parametrize(("phase", "why"), [("Failed", "it has ended"), ("", "somebody deleted it")])
def test_a_pod_that_goes_before_it_is_of_use_is_told(there: RunPaths, tmp_path: Path, phase: str, why: str) -> None:
    cluster = VolumeCluster(there.folder.parent, phases=[phase])
    with pytest.raises(SpotmpiError, match=f"is gone .{why}.; try again"):
        pull(cluster, RunPaths(tmp_path / "here" / RUN))


def followed(cluster: VolumeCluster, of: Object, follow: bool) -> list[Event]:
    async def gathered() -> list[Event]:
        it = ClusterFollower(cluster, of)  # type: ignore[arg-type]
        found = it.follow() if follow else it.snapshot()
        return [entry.event async for entries in found for entry in entries if entry.event]

    return asyncio.run(asyncio.wait_for(gathered(), 20))


@pytest.mark.parametrize("follow", [True, False])
def test_a_run_whose_pods_are_gone_is_told_from_its_folder(there: RunPaths, follow: bool) -> None:
    over = {"conditions": [{"type": "Completed", "status": "True"}]}
    cluster = VolumeCluster(there.folder.parent)
    it = jobset(age=60, status=over, volume="claim")
    cluster.put(api.JOBSET, "ADDED", it)

    events = [event for event in followed(cluster, it, follow) if event.kind != record.WAITING]

    assert [event.kind for event in events] == [record.LINE, record.SUCCEEDED]
    assert events[0].values["text"] == "hello"
    assert cluster.deleted == [cluster.created[0]["metadata"]["name"]]


def test_a_run_without_a_volume_whose_pods_are_gone_says_that_its_output_is_lost() -> None:
    over = {"conditions": [{"type": "Completed", "status": "True"}]}
    gap, end = followed(VolumeCluster(Path("/none")), jobset(age=60, status=over), follow=False)
    assert gap.kind == record.GAP and "node 0 is no longer available: the run has no run volume" in str(gap.reason)
    assert end.kind == record.SUCCEEDED


def test_the_pod_is_restricted_and_ends_by_itself() -> None:
    made = volume_pod("one", "here", "claim", "image", ["key"])["spec"]
    assert made["securityContext"]["runAsNonRoot"] and made["activeDeadlineSeconds"] == 3600
    assert made["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert made["imagePullSecrets"] == [{"name": "key"}] and not made["automountServiceAccountToken"]
