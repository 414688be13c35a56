"""The run volume, read by a short-lived pod, against a cluster whose every answer is scripted."""

from __future__ import annotations

import asyncio
import fcntl
from pathlib import Path

import pytest

from spotmpi.agent import record
from spotmpi.backends.kubernetes import volume_access
from spotmpi.backends.kubernetes.client import api
from spotmpi.backends.kubernetes.follow.run import ClusterFollower
from spotmpi.core.errors import RunInUse, SpotmpiError
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from spotmpi.plan.volume_pod import volume_pod
from tests.unit.backends.kubernetes.volume_cluster import Object, VolumeCluster, pull
from tests.unit.backends.kubernetes.watched_cluster import RUN, api_error, jobset, pod


def test_a_pod_created_for_the_download_is_deleted_afterwards(remote: RunPaths, tmp_path: Path) -> None:
    cluster, local = VolumeCluster(remote.folder.parent), RunPaths(tmp_path / "here" / RUN)

    messages = pull(cluster, local)

    assert (local.checkpoints / "7" / "model.npz").read_text() == "weights"
    assert local.events.read_text() == remote.events.read_text()
    (pod_values,) = cluster.created
    owner = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "claim", "uid": "7"}
    assert pod_values["metadata"]["ownerReferences"] == [owner]  # or VPC CNI would hold it to no policy
    assert cluster.deleted == [pod_values["metadata"]["name"]]
    assert messages == [
        "waiting for a pod that reads the run volume: 1/1 nodes: containers are being created " + GIVES_UP
    ]
    assert [path.name for path in local.folder.parent.iterdir()] == [RUN]


GIVES_UP = "(gives up after 300 s)"


def test_a_running_pod_of_the_run_is_used(remote: RunPaths, tmp_path: Path) -> None:
    cluster = VolumeCluster(remote.folder.parent, [pod(0, "Succeeded"), pod(1, "Running")])
    pull(cluster, RunPaths(tmp_path / "here" / RUN))
    assert not cluster.created
    assert {name for name, _ in cluster.commands} == {pod(1, "Running")["metadata"]["name"]}


def test_local_records_stay_and_an_older_download_is_replaced(remote: RunPaths, tmp_path: Path) -> None:
    local = RunPaths(tmp_path / "here" / RUN)
    (local.checkpoints / "3").mkdir(parents=True)
    local.events.write_text("submitted here\n")
    pull(VolumeCluster(remote.folder.parent), local)
    assert local.events.read_text() == "submitted here\n"
    assert [path.name for path in local.checkpoints.iterdir()] == ["7"]


def test_a_run_that_another_process_follows_is_not_downloaded(remote: RunPaths, tmp_path: Path) -> None:
    local = RunPaths(tmp_path / "here" / RUN)
    local.folder.mkdir(parents=True)
    with (local.folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RunInUse, match=r"another process is following run .* --runs FOLDER"):
            pull(VolumeCluster(remote.folder.parent), local)


def test_a_volume_without_the_run_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    cluster, local = VolumeCluster(tmp_path / "volume"), RunPaths(tmp_path / "here" / RUN)
    with pytest.raises(SpotmpiError, match="could not access the files on the run volume: folder not found"):
        pull(cluster, local)
    assert cluster.deleted == [cluster.created[0]["metadata"]["name"]]
    assert not list(local.folder.parent.iterdir())


def test_a_claim_that_does_not_exist_is_named_at_once(tmp_path: Path) -> None:
    cluster = VolumeCluster(tmp_path / "volume")
    cluster.claim = None
    with pytest.raises(SpotmpiError, match="namespace here has no PersistentVolumeClaim claim; `kubectl get pvc`"):
        pull(cluster, RunPaths(tmp_path / "here" / RUN))
    assert not cluster.created


def test_for_a_user_who_may_not_read_claims_the_pod_has_no_owner(remote: RunPaths, tmp_path: Path) -> None:
    cluster = VolumeCluster(remote.folder.parent)
    usual = cluster.find

    async def find(kind: str, name: str, namespace: str | None = None) -> Object | None:
        if kind == api.CLAIM:
            raise api_error(403)
        return await usual(kind, name, namespace)

    cluster.find = find  # type: ignore[method-assign]
    pull(cluster, RunPaths(tmp_path / "here" / RUN))
    assert "ownerReferences" not in cluster.created[0]["metadata"]


def test_a_pod_that_never_runs_is_an_error_with_the_clusters_reason(
    remote: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume_access, "START_TIMEOUT", 0.05)
    cluster = VolumeCluster(remote.folder.parent, phases=["Pending"])
    monkeypatch.setattr("spotmpi.backends.kubernetes.volume_access.secrets.token_hex", lambda size: "one")
    volume_reader = {"name": "spotmpi-volume-one"}
    cluster.events = [{"involvedObject": volume_reader, "reason": "FailedMount", "message": "claim not found"}]
    with pytest.raises(SpotmpiError, match=r"within 0.05 s: .*FailedMount: claim not found"):
        pull(cluster, RunPaths(tmp_path / "here" / RUN))
    assert cluster.deleted == ["spotmpi-volume-one"]


@pytest.mark.parametrize(("phase", "why"), [("Failed", "it has ended"), ("", "somebody deleted it")])
def test_a_pod_that_ends_before_it_is_used_is_an_error(remote: RunPaths, tmp_path: Path, phase: str, why: str) -> None:
    cluster = VolumeCluster(remote.folder.parent, phases=[phase])
    with pytest.raises(SpotmpiError, match=f"is gone .{why}.; try again"):
        pull(cluster, RunPaths(tmp_path / "here" / RUN))


def follow_events(cluster: VolumeCluster, of: Object, follow: bool) -> list[Event]:
    async def collect() -> list[Event]:
        follower = ClusterFollower(cluster, of)  # type: ignore[arg-type]
        batches = follower.follow() if follow else follower.snapshot()
        return [entry.event async for entries in batches for entry in entries if entry.event]

    return asyncio.run(asyncio.wait_for(collect(), 20))


@pytest.mark.parametrize("follow", [True, False])
def test_the_output_of_deleted_pods_comes_from_the_run_folder(remote: RunPaths, follow: bool) -> None:
    status = {"conditions": [{"type": "Completed", "status": "True"}]}
    cluster = VolumeCluster(remote.folder.parent)
    job_set = jobset(age=60, status=status, volume="claim")
    cluster.put(api.JOBSET, "ADDED", job_set)

    events = [event for event in follow_events(cluster, job_set, follow) if event.kind != record.WAITING]

    assert [event.kind for event in events] == [record.LINE, record.SUCCEEDED]
    assert events[0].values["text"] == "hello"
    assert cluster.deleted == [cluster.created[0]["metadata"]["name"]]


def test_without_a_volume_the_output_of_deleted_pods_is_reported_missing() -> None:
    status = {"conditions": [{"type": "Completed", "status": "True"}]}
    gap, end = follow_events(VolumeCluster(Path("/none")), jobset(age=60, status=status), follow=False)
    assert gap.kind == record.GAP and "node 0 is no longer available: the run has no run volume" in str(gap.reason)
    assert end.kind == record.SUCCEEDED


def test_the_pod_is_restricted_and_ends_by_itself() -> None:
    pod_values = volume_pod("one", "here", "claim", "image", ["key"])["spec"]
    assert pod_values["securityContext"]["runAsNonRoot"] and pod_values["activeDeadlineSeconds"] == 3600
    assert pod_values["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod_values["imagePullSecrets"] == [{"name": "key"}] and not pod_values["automountServiceAccountToken"]
