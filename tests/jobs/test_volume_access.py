"""The run volume, read by a short-lived pod, against a cluster whose every answer is scripted."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import httpx2
import pytest

from jobs.backends import cluster_api, cluster_follow, pulling, volume_access
from jobs.backends.cluster_follow import ClusterFollower
from jobs.backends.volume_access import Volume
from jobs.errors import RunInUse, SpotmpiError
from jobs.events import Event
from jobs.names import RunPaths
from jobs.plan.volume_pod import volume_pod
from jobs.pod import record
from tests.jobs.watched_cluster import RUN, FakeCluster, jobset, pod, refused

Object = dict[str, Any]
VOLUME = Volume("claim", "registry/image:1", ("key",))


class VolumeCluster(FakeCluster):
    """A cluster whose pods run commands here, on *root* in place of the mounted volume's runs.

    Where the connection is cut off, a command gets the end of its input after `cut_off` bytes and goes on by itself,
    and its caller an error: containerd closes the input of a command when the connection ends, whatever the reason
    (pkg/cri/io/exec_io.go, StdinOnce), and nobody ends the command (github.com/kubernetes/kubernetes/issues/89031).
    """

    namespace = "here"

    def __init__(self, root: Path, pods: Sequence[Object] = (), phases: Sequence[str] = ("Pending", "Running")) -> None:
        super().__init__(list(pods))
        self.root = root
        self.phases = list(phases)
        self.created: list[Object] = []
        self.events: list[Object] = []
        self.commands: list[tuple[str, Sequence[str]]] = []
        self.claim: Object | None = {"metadata": {"name": "claim", "uid": "7"}}
        self.cut_off: int | None = None  # bytes of input after which the next connection with so many breaks

    async def create(self, values: Object) -> Object:
        self.created.append(values)
        return values

    async def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        if kind == cluster_api.CLAIM:
            return self.claim
        phase = self.phases.pop(0) if len(self.phases) > 1 else self.phases[0]
        return {"metadata": {"name": name}, "status": {"phase": phase}} if phase else None

    async def list(self, kind: str, labels: Any = None, about: str | None = None) -> list[Object]:
        if kind != cluster_api.EVENT:
            return await super().list(kind, labels)
        return [event for event in self.events if event["involvedObject"]["name"] == about]

    async def delete(self, kind: str, name: str) -> None:
        self.deleted.append(name)

    async def stream(
        self, name: str, command: Sequence[str], given: BinaryIO | None, into: BinaryIO | None
    ) -> tuple[int, str]:
        sent = given.read() if given else b""
        if self.cut_off is not None and len(sent) > self.cut_off:
            self._run(name, command, sent[: self.cut_off])
            self.cut_off = None
            raise httpx2.ReadError("the connection into the pod broke off")
        done = self._run(name, command, sent)
        if into:
            into.write(done.stdout)
        return done.returncode, done.stderr.decode()

    async def execute(self, name: str, command: Sequence[str]) -> str:
        return self._run(name, command, b"").stdout.decode()

    def _run(self, name: str, command: Sequence[str], given: bytes) -> subprocess.CompletedProcess[bytes]:
        self.commands.append((name, command))
        places = {"/spotmpi/volume/runs": str(self.root), "/tmp/spotmpi": str(self.root.parent / "code")}
        here = list(command)
        for there, path in places.items():
            here = [part.replace(there, path).replace("python3", sys.executable) for part in here]
        return subprocess.run(here, input=given, capture_output=True)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume_access, "_LOOK", 0.01)
    monkeypatch.setattr(cluster_follow, "LAST_WORDS", 1.0)
    monkeypatch.setattr(cluster_follow, "TALK", 0.02)


@pytest.fixture
def there(tmp_path: Path) -> RunPaths:
    """A run folder as agents leave it on a volume."""
    paths = RunPaths(tmp_path / "volume" / RUN)
    written = [
        (paths.events, json.dumps({"t": time.time(), "event": "succeeded"}) + "\n"),
        (paths.spec, 'command = ["x"]\n'),
        (paths.checkpoints / "7" / "model.npz", "weights"),
    ]
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime())}.000000Z 0 o hello\n"
    for path, text in [*written, (paths.logs / "1" / "node-0.log", line)]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return paths


def pull(cluster: VolumeCluster, paths: RunPaths) -> list[str]:
    said: list[str] = []
    asyncio.run(pulling.pull(cluster, paths, VOLUME, said.append))  # type: ignore[arg-type]
    return said


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
        with pytest.raises(RunInUse, match=r"another process follows run .* --runs FOLDER"):
            pull(VolumeCluster(there.folder.parent), here)


def test_a_volume_without_the_run_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    cluster, here = VolumeCluster(tmp_path / "volume"), RunPaths(tmp_path / "here" / RUN)
    with pytest.raises(SpotmpiError, match="could not reach the files on the run volume: there is no folder"):
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
        if kind == cluster_api.CLAIM:
            raise refused(403)
        return await usual(kind, name, namespace)

    cluster.find = find  # type: ignore[method-assign]
    pull(cluster, RunPaths(tmp_path / "here" / RUN))
    assert "ownerReferences" not in cluster.created[0]["metadata"]


def test_a_pod_that_never_runs_is_given_up_with_the_clusters_reason(
    there: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume_access, "PATIENCE", 0.05)
    cluster = VolumeCluster(there.folder.parent, phases=["Pending"])
    monkeypatch.setattr("jobs.backends.volume_access.secrets.token_hex", lambda size: "one")
    said = {"name": "spotmpi-volume-one"}
    cluster.events = [{"involvedObject": said, "reason": "FailedMount", "message": "claim not found"}]
    with pytest.raises(SpotmpiError, match=r"within 0.05 s: .*FailedMount: claim not found"):
        pull(cluster, RunPaths(tmp_path / "here" / RUN))
    assert cluster.deleted == ["spotmpi-volume-one"]


@pytest.mark.parametrize(("phase", "why"), [("Failed", "it ended by itself"), ("", "somebody deleted it")])
def test_a_pod_that_goes_before_it_is_of_use_is_told(there: RunPaths, tmp_path: Path, phase: str, why: str) -> None:
    cluster = VolumeCluster(there.folder.parent, phases=[phase])
    with pytest.raises(SpotmpiError, match=f"is gone .{why}.; try again"):
        pull(cluster, RunPaths(tmp_path / "here" / RUN))


def followed(cluster: VolumeCluster, of: Object, follow: bool) -> list[Event]:
    async def gathered() -> list[Event]:
        it = ClusterFollower(cluster, of)  # type: ignore[arg-type]
        found = it.follow() if follow else it.so_far()
        return [entry.event async for entries in found for entry in entries if entry.event]

    return asyncio.run(asyncio.wait_for(gathered(), 20))


@pytest.mark.parametrize("follow", [True, False])
def test_a_run_whose_pods_are_gone_is_told_from_its_folder(there: RunPaths, follow: bool) -> None:
    over = {"conditions": [{"type": "Completed", "status": "True"}]}
    cluster = VolumeCluster(there.folder.parent)
    it = jobset(age=60, status=over, volume="claim")
    cluster.put(cluster_api.JOBSET, "ADDED", it)

    events = [event for event in followed(cluster, it, follow) if event.kind != record.WAITING]

    assert [event.kind for event in events] == [record.LINE, record.SUCCEEDED]
    assert events[0].values["text"] == "hello"
    assert cluster.deleted == [cluster.created[0]["metadata"]["name"]]


def test_a_run_without_a_volume_whose_pods_are_gone_says_that_its_output_is_lost() -> None:
    over = {"conditions": [{"type": "Completed", "status": "True"}]}
    gap, end = followed(VolumeCluster(Path("/none")), jobset(age=60, status=over), follow=False)
    assert gap.kind == record.GAP and "node 0 can no longer be had: the run has no run volume" in str(gap.reason)
    assert end.kind == record.SUCCEEDED


def test_the_pod_is_restricted_and_ends_by_itself() -> None:
    made = volume_pod("one", "here", "claim", "image", ["key"])["spec"]
    assert made["securityContext"]["runAsNonRoot"] and made["activeDeadlineSeconds"] == 3600
    assert made["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert made["imagePullSecrets"] == [{"name": "key"}] and not made["automountServiceAccountToken"]


def link_out(folder: Path) -> None:
    (folder / "outside").symlink_to("/etc/passwd")


def relative_link_out(folder: Path) -> None:
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / "outside").symlink_to("../../..")


def link_out_through_another(folder: Path) -> None:
    (folder / "again").symlink_to(".")
    (folder / "deep").mkdir()
    (folder / "deep" / "outside").symlink_to("../again/../../..")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "outside")


@pytest.mark.parametrize("plant", [link_out, relative_link_out, link_out_through_another, pipe])
def test_an_archive_that_leads_out_of_the_folder_is_refused(
    there: RunPaths, tmp_path: Path, plant: Callable[[Path], None]
) -> None:
    plant(there.folder)
    with pytest.raises(SpotmpiError, match=r"what the run volume holds of digits-1 cannot be taken over: .*outside"):
        pull(VolumeCluster(there.folder.parent), RunPaths(tmp_path / "here" / RUN))
    assert not (tmp_path / "here" / RUN).exists()
