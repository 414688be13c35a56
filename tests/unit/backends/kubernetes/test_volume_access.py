"""The run volume, read by a short-lived pod, against a cluster whose every answer is scripted."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

from spotmpi.agent import record
from spotmpi.backends.kubernetes import volume_access
from spotmpi.backends.kubernetes.client import api
from spotmpi.core.errors import RunInUse, SpotmpiError
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from tests.unit.backends.kubernetes.volume_cluster import VolumeCluster, pull
from tests.unit.backends.kubernetes.watched_cluster import RUN, api_error, condition, follow, jobset, look, pod


def test_a_pod_created_for_the_download_is_deleted_afterwards(
    remote: RunPaths, local: RunPaths, volume_cluster: VolumeCluster
) -> None:
    messages = pull(volume_cluster, local)

    assert (local.checkpoints / "7" / "model.npz").read_text() == "weights"
    assert local.events.read_text() == remote.events.read_text()
    (pod_values,) = volume_cluster.created
    owner = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "claim", "uid": "7"}
    assert pod_values["metadata"]["ownerReferences"] == [owner]  # or VPC CNI would hold it to no policy
    assert volume_cluster.deleted == [pod_values["metadata"]["name"]]
    reason = "1/1 nodes: containers are being created (gives up after 300 s)"
    assert messages == [f"waiting for a pod that reads the run volume: {reason}"]
    assert [path.name for path in local.folder.parent.iterdir()] == [RUN]


@pytest.mark.usefixtures("remote")
def test_a_running_pod_of_the_run_is_used(local: RunPaths, volume_cluster: VolumeCluster) -> None:
    volume_cluster.pods = [pod(0, "Succeeded"), pod(1, "Running")]
    pull(volume_cluster, local)
    assert not volume_cluster.created
    assert {name for name, _ in volume_cluster.commands} == {pod(1, "Running")["metadata"]["name"]}


@pytest.mark.usefixtures("remote")
def test_local_records_stay_and_an_older_download_is_replaced(local: RunPaths, volume_cluster: VolumeCluster) -> None:
    (local.checkpoints / "3").mkdir(parents=True)
    local.events.write_text("submitted here\n")
    pull(volume_cluster, local)
    assert local.events.read_text() == "submitted here\n"
    assert [path.name for path in local.checkpoints.iterdir()] == ["7"]


@pytest.mark.usefixtures("remote")
def test_a_run_that_another_process_follows_is_not_downloaded(local: RunPaths, volume_cluster: VolumeCluster) -> None:
    local.folder.mkdir(parents=True)
    with (local.folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RunInUse, match=r"another process is following run .* --runs FOLDER"):
            pull(volume_cluster, local)


def test_a_volume_without_the_run_is_an_error_and_leaves_nothing(
    local: RunPaths, volume_cluster: VolumeCluster
) -> None:
    with pytest.raises(SpotmpiError, match="could not access the files on the run volume: folder not found"):
        pull(volume_cluster, local)
    assert volume_cluster.deleted == [volume_cluster.created[0]["metadata"]["name"]]
    assert not list(local.folder.parent.iterdir())


def test_a_claim_that_does_not_exist_is_named_at_once(local: RunPaths, volume_cluster: VolumeCluster) -> None:
    volume_cluster.claim = None
    with pytest.raises(SpotmpiError, match="namespace here has no PersistentVolumeClaim claim; `kubectl get pvc`"):
        pull(volume_cluster, local)
    assert not volume_cluster.created


@pytest.mark.usefixtures("remote")
def test_for_a_user_who_may_not_read_claims_the_pod_has_no_owner(
    local: RunPaths, volume_cluster: VolumeCluster
) -> None:
    volume_cluster.errors[api.CLAIM] = api_error(403)
    pull(volume_cluster, local)
    assert "ownerReferences" not in volume_cluster.created[0]["metadata"]


def test_a_pod_that_never_runs_is_an_error_with_the_clusters_reason(
    local: RunPaths, volume_cluster: VolumeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume_access, "START_TIMEOUT", 0.05)
    monkeypatch.setattr("spotmpi.backends.kubernetes.volume_access.secrets.token_hex", lambda size: "one")
    name = "spotmpi-volume-one"
    volume_cluster.phases = ["Pending"]
    volume_cluster.events = [{"involvedObject": {"name": name}, "reason": "FailedMount", "message": "claim not found"}]
    with pytest.raises(SpotmpiError, match=r"within 0.05 s: .*FailedMount: claim not found"):
        pull(volume_cluster, local)
    assert volume_cluster.deleted == [name]


@pytest.mark.parametrize(("phase", "why"), [("Failed", "it has ended"), ("", "somebody deleted it")])
def test_a_pod_that_ends_before_it_is_used_is_an_error(
    local: RunPaths, volume_cluster: VolumeCluster, phase: str, why: str
) -> None:
    volume_cluster.phases = [phase]
    with pytest.raises(SpotmpiError, match=f"is gone .{why}.; try again"):
        pull(volume_cluster, local)


@pytest.mark.usefixtures("remote")
@pytest.mark.parametrize("read", [follow, look])
def test_the_output_of_deleted_pods_comes_from_the_run_folder(
    volume_cluster: VolumeCluster, read: Callable[..., list[Event]]
) -> None:
    job_set = jobset(age=60, status=condition("Completed"), volume="claim")
    volume_cluster.put(api.JOBSET, "ADDED", job_set)

    line, end = [event for event in read(volume_cluster, job_set) if event.kind != record.WAITING]

    assert (line.kind, line.values["text"], end.kind) == (record.LINE, "hello", record.SUCCEEDED)
    assert volume_cluster.deleted == [volume_cluster.created[0]["metadata"]["name"]]


def test_without_a_volume_the_output_of_deleted_pods_is_reported_missing() -> None:
    gap, end = look(VolumeCluster(Path("/none")), jobset(age=60, status=condition("Completed")))
    assert gap.kind == record.GAP and "node 0 is no longer available: the run has no run volume" in str(gap.reason)
    assert end.kind == record.SUCCEEDED
