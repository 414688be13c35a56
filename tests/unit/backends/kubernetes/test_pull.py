"""What of a run's folder is pulled from the run volume, whatever is in it, and the short-lived pod that reads it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import pack, record
from spotmpi.backends.kubernetes import pull as pulling
from spotmpi.backends.kubernetes import volume_access
from spotmpi.core import reminders
from spotmpi.core.errors import RunInUse, SpotmpiError
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import RUN, condition, event, jobset, pod
from tests.unit.archives import archive, entry, long_way
from tests.unit.backends.kubernetes.following import follow, look
from tests.unit.backends.kubernetes.run_volume import VOLUME, FakeVolume, full_disk, pull


def test_a_pod_created_for_the_download_is_deleted_afterwards(
    remote: RunPaths, local: RunPaths, volume: FakeVolume
) -> None:
    messages = pull(volume.cluster, local)

    assert (local.checkpoints / "7" / "model.npz").read_text() == "weights"
    assert local.events.read_text() == remote.events.read_text()
    (pod_values,) = volume.cluster.created
    assert pod_values["spec"]["tolerations"] == [{"key": "team", "operator": "Exists"}]  # or it gets no tainted node
    uid = volume.cluster.get("PersistentVolumeClaim", "claim")["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "claim", "uid": uid}
    assert pod_values["metadata"]["ownerReferences"] == [owner]  # or VPC CNI would hold it to no policy
    assert volume.cluster.deleted == [pod_values["metadata"]["name"]]
    reason = "1/1 nodes: containers are being created (gives up after 300 s)"
    assert messages == [f"waiting for a pod that reads the run volume: {reason}"]
    assert [path.name for path in local.folder.parent.iterdir()] == [RUN]


@pytest.mark.usefixtures("remote")
def test_a_running_pod_of_the_run_is_used(local: RunPaths, volume: FakeVolume) -> None:
    volume.cluster.put(pod(0, "Succeeded"), pod(1, "Running"))
    pull(volume.cluster, local)
    assert not volume.cluster.created
    assert {name for name, _ in volume.commands} == {pod(1, "Running")["metadata"]["name"]}


@pytest.mark.usefixtures("remote")
def test_a_download_that_takes_long_says_how_far_it_is(
    local: RunPaths, volume: FakeVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, messages = volume_access.VolumeAccess.read, list[str]()
    text = re.compile(rf"copied 2\.0 MB of run {RUN} in \d+ s, and it goes on")

    async def read_slowly(access: volume_access.VolumeAccess, command: Any, file: Any) -> None:
        file.write(bytes(2_000_000))
        file.flush()
        async with asyncio.timeout(20):
            while not any(text.fullmatch(each) for each in messages):
                await asyncio.sleep(0.005)
        file.seek(0)
        file.truncate()
        await read(access, command, file)

    monkeypatch.setattr(volume_access.VolumeAccess, "read", read_slowly)
    monkeypatch.setattr(reminders, "INTERVAL", 0.01)
    volume.cluster.put(pod(1, "Running"))
    asyncio.run(pulling.pull(volume.cluster.api(), local, VOLUME, messages.append))
    assert (local.checkpoints / "7" / "model.npz").read_text() == "weights"


NOT_FOUND = 'unable to upgrade connection: container not found ("node")'


@pytest.mark.usefixtures("remote")
def test_where_the_pod_of_the_run_has_just_ended_another_one_reads_the_volume(
    local: RunPaths, volume: FakeVolume
) -> None:
    name = pod(0, "Running")["metadata"]["name"]
    volume.cluster.put(pod(0, "Running"))
    volume.cluster.refuse("get", "pods/exec", 500, NOT_FOUND, times=1)
    messages = pull(volume.cluster, local)
    assert (local.checkpoints / "7" / "model.npz").read_text() == "weights"
    assert messages[0].endswith(f"500; pod {name} may just have ended, so another one reads the volume")
    assert len(volume.cluster.created) == len(volume.cluster.deleted) == 1


@pytest.mark.usefixtures("remote")
def test_local_records_stay_and_an_older_download_is_replaced(local: RunPaths, volume: FakeVolume) -> None:
    (local.checkpoints / "3").mkdir(parents=True)
    local.events.write_text("submitted here\n")
    pull(volume.cluster, local)
    assert local.events.read_text() == "submitted here\n"
    assert [path.name for path in local.checkpoints.iterdir()] == ["7"]


def test_a_pod_does_not_decide_what_is_kept_and_in_which_store(
    remote: RunPaths, local: RunPaths, volume: FakeVolume
) -> None:
    remote.keep.write_text('{"kind": "models", "name": "m", "store": "/somewhere"}')
    pull(volume.cluster, local)
    assert not local.keep.exists()
    local.keep.write_text("ours")
    pull(volume.cluster, local)
    assert local.keep.read_text() == "ours"


@pytest.mark.usefixtures("remote")
def test_a_run_that_another_process_follows_is_not_downloaded(local: RunPaths, volume: FakeVolume) -> None:
    local.folder.mkdir(parents=True)
    with (local.folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RunInUse, match=r"another process is following run .* on=Target\(on, Path\(.FOLDER.\)\)"):
            pull(volume.cluster, local)


@pytest.mark.usefixtures("remote")
@pytest.mark.parametrize(
    ("arrange", "problem"),
    [
        (
            lambda volume: setattr(volume, "root", Path("/no/volume")),
            "could not access the files on the run volume: folder not found",
        ),
        (
            lambda volume: volume.cluster.clear("PersistentVolumeClaim"),
            "namespace here has no PersistentVolumeClaim claim; `kubectl get pvc`",
        ),
        (lambda volume: setattr(volume, "phases", ["Failed"]), "is gone .it has ended.; try again"),
        (lambda volume: setattr(volume, "phases", [""]), "is gone .somebody deleted it.; try again"),
        (
            # At the end of an entry, where tar's own format shows nothing.
            lambda volume: setattr(volume, "torn_before", pack.LEFT_OUT.encode()),
            "from the run volume: the end of the archive is missing; pull again",
        ),
    ],
    ids=["no run", "no claim", "pod has ended", "pod was deleted", "truncated archive"],
)
def test_a_download_that_fails_is_an_error_and_leaves_nothing(
    local: RunPaths, volume: FakeVolume, arrange: Callable[[FakeVolume], object], problem: str
) -> None:
    arrange(volume)
    with pytest.raises(SpotmpiError, match=problem):
        pull(volume.cluster, local)
    assert not local.folder.exists() and not volume.cluster.all("Pod")
    has_claim = bool(volume.cluster.all("PersistentVolumeClaim"))
    assert has_claim == bool(volume.cluster.created), "no pod waits for a claim that is missing"


def test_a_disk_that_is_full_is_not_a_cluster_that_cannot_be_reached(
    remote: RunPaths, local: RunPaths, volume: FakeVolume
) -> None:
    """Another pod read the volume in vain, and the message named `kubectl version` as the remedy."""
    (remote.checkpoints / "7" / "large").write_bytes(bytes(400_000))
    volume.cluster.put(pod(0, "Running"))
    with full_disk(200_000), pytest.raises(SpotmpiError, match=r"cannot be written: File too large; free space there"):
        pull(volume.cluster, local)
    assert not volume.cluster.created and not [*local.folder.parent.iterdir()]
    pull(volume.cluster, local)
    assert (local.checkpoints / "7" / "large").stat().st_size == 400_000


@pytest.mark.usefixtures("remote")
def test_for_a_user_who_may_not_read_claims_the_pod_has_no_owner(local: RunPaths, volume: FakeVolume) -> None:
    volume.cluster.forbid("get", "persistentvolumeclaims")
    pull(volume.cluster, local)
    assert "ownerReferences" not in volume.cluster.created[0]["metadata"]


def test_a_pod_that_never_runs_is_an_error_with_the_clusters_reason(
    local: RunPaths, volume: FakeVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume_access, "START_TIMEOUT", 0.05)
    monkeypatch.setattr("spotmpi.backends.kubernetes.volume_access.secrets.token_hex", lambda size: "one")
    name = "spotmpi-volume-one"
    volume.phases = ["Pending"]
    volume.cluster.put(event({"name": name}, "FailedMount", "claim not found"))
    with pytest.raises(SpotmpiError, match=r"within 0.05 s: .*FailedMount: claim not found"):
        pull(volume.cluster, local)
    assert volume.cluster.deleted == [name]


@pytest.mark.usefixtures("remote")
@pytest.mark.parametrize("read", [follow, look])
def test_the_output_of_deleted_pods_comes_from_the_run_folder(
    volume: FakeVolume, read: Callable[..., list[Event]]
) -> None:
    job_set = jobset(age=60, status=condition("Completed"), volume="claim")

    line, end = [event for event in read(volume.cluster, job_set) if event.kind != record.WAITING]

    assert (line.kind, line.values["text"], end.kind) == (record.LINE, "hello", record.SUCCEEDED)
    assert volume.cluster.deleted == [volume.cluster.created[0]["metadata"]["name"]]


def test_without_a_volume_the_output_of_deleted_pods_is_reported_missing(cluster: FakeCluster) -> None:
    gap, end = look(cluster, jobset(age=60, status=condition("Completed")))
    assert gap.kind == record.GAP and "node 0 is no longer available: the run has no run volume" in str(gap.reason)
    assert end.kind == record.SUCCEEDED


def absolute_link(folder: Path) -> None:
    (folder / "outside").symlink_to("/etc/passwd")


def relative_link(folder: Path) -> None:
    (folder / "outside").symlink_to("../..")


def link_through_another(folder: Path) -> None:
    (folder / "again").symlink_to(".")
    (folder / "outside").symlink_to("again/../../..")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "outside")


def unix_socket(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as item, contextlib.chdir(folder):
        item.bind("outside")


@pytest.mark.parametrize(
    ("plant", "why"),
    [
        (absolute_link, "is a link out of the run's folder, to /etc/passwd"),
        (relative_link, "is a link out of the run's folder, to ../.."),
        (link_through_another, "is a link out of the run's folder, to again/../../.."),
        (pipe, "is not a file, folder or link"),
        (unix_socket, "is not a file, folder or link"),
    ],
)
def test_an_unsafe_entry_is_skipped_with_a_message_and_all_others_are_downloaded(
    remote: RunPaths, local: RunPaths, volume: FakeVolume, plant: Callable[[Path], None], why: str
) -> None:
    plant(remote.folder)
    (remote.folder / "latest").symlink_to("checkpoints/7")
    (remote.folder / "loop").symlink_to("loop")

    messages = pull(volume.cluster, local)

    assert messages[-1] == f"skipped in the download of {RUN}: outside ({why})"
    assert not os.path.lexists(local.folder / "outside")
    assert (local.folder / "latest" / "model.npz").read_text() == "weights"
    assert (local.folder / "loop").readlink() == Path("loop")


def test_a_running_runs_folder_is_downloaded_without_files_removed_during_the_download(
    remote: RunPaths, local: RunPaths, volume: FakeVolume
) -> None:
    big, names = 4 << 20, ["a-grows", "b-is-cut", "c-is-removed", "d-becomes-a-pipe", "e-stays"]
    for name in names:
        (remote.folder / name).write_bytes(b"x" * (big if name < "c" else 1))
    (remote.folder / "c-rotated").mkdir()

    def change() -> None:
        with (remote.folder / "a-grows").open("ab") as file:
            file.write(b"more")
        os.truncate(remote.folder / "b-is-cut", 10)
        (remote.folder / "c-is-removed").unlink()
        (remote.folder / "c-rotated").rmdir()
        (remote.folder / "d-becomes-a-pipe").unlink()
        os.mkfifo(remote.folder / "d-becomes-a-pipe")

    volume.meanwhile = change

    assert pull(volume.cluster, local)[-1] == (
        f"skipped in the download of {RUN}: c-is-removed (was removed while it was read), "
        "c-rotated (was removed while it was read), d-becomes-a-pipe (is not a file, folder or link)"
    )
    assert (local.folder / "a-grows").read_bytes() == b"x" * big
    assert (local.folder / "b-is-cut").stat().st_size == 10  # as it was when its turn came
    assert (local.folder / "e-stays").read_bytes() == b"x"
    assert (local.checkpoints / "7" / "model.npz").read_text() == "weights"


def test_a_file_that_shrinks_while_it_is_read_is_skipped(remote: RunPaths, local: RunPaths, volume: FakeVolume) -> None:
    (remote.folder / "a-log").write_bytes(b"x" * (4 << 20))
    volume.meanwhile = lambda: os.truncate(remote.folder / "a-log", 10)
    messages = pull(volume.cluster, local)
    assert messages[-1] == f"skipped in the download of {RUN}: a-log (was truncated while it was read)"
    assert not (local.folder / "a-log").exists() and (local.checkpoints / "7" / "model.npz").exists()


def test_the_first_of_many_skipped_entries_are_named(remote: RunPaths, local: RunPaths, volume: FakeVolume) -> None:
    for number in range(10):
        (remote.folder / f"link\n{number}").symlink_to("/")
    message = pull(volume.cluster, local)[-1]
    assert message.count("is a link out of") == 8 and message.endswith("), and 2 more")
    assert r"'link\n0' (" in message


@pytest.mark.usefixtures("remote")
def test_a_private_folder_stays_private_with_the_default_filter_of_python_3_14(
    remote: RunPaths, local: RunPaths, volume: FakeVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_default: Any = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
    monkeypatch.setattr(tarfile.TarFile, "extraction_filter", staticmethod(by_default), raising=False)
    remote.checkpoints.chmod(0o700)

    pull(volume.cluster, local)

    assert local.checkpoints.stat().st_mode & 0o777 == 0o700


def answer_with(answer: bytes, local: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pod answer with these bytes, whatever it is asked for."""
    path = local.folder.parents[1] / "answer.tar"
    path.write_bytes(answer)
    monkeypatch.setattr(pulling, "_PACK", f"import sys; sys.stdout.buffer.write(open({str(path)!r}, 'rb').read())")


def test_an_archive_that_leads_out_by_a_path_beyond_path_max_writes_nothing_there(
    local: RunPaths, volume: FakeVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a pod answers is up to whoever made its image, and in part to the run's program."""
    home = local.folder.parent.parent / "home"
    home.mkdir()
    (home / ".bashrc").write_text("mine")
    answer = archive(*long_way(), entry("escape/.bashrc"), entry("good"), entry(pack.LEFT_OUT, content=b"{}"))
    answer_with(answer, local, monkeypatch)

    messages = pull(volume.cluster, local)

    assert (home / ".bashrc").read_text() == "mine" and len(list(home.iterdir())) == 1
    assert (local.folder / "good").read_bytes() == b"new" and not (local.folder / "escape").is_symlink()
    assert messages[-1].startswith(f"skipped in the download of {RUN}: ")
    assert [path.name for path in local.folder.parent.iterdir()] == [RUN], "no temporary folder is left"


@pytest.mark.parametrize("end", [b"[]", b"{", b'"x"', b"[" * 100_000, b'{"a": 1}'])
def test_a_list_of_damaged_files_that_is_none_is_one_clear_error(
    local: RunPaths, volume: FakeVolume, monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    answer = archive(entry("a"), entry(pack.LEFT_OUT, content=end))
    answer_with(answer, local, monkeypatch)
    if end == b'{"a": 1}':
        assert pull(volume.cluster, local)[-1] == f"skipped in the download of {RUN}: a (1)"
        return
    with pytest.raises(SpotmpiError, match=f"could not unpack the folder of run {RUN} from the run volume: "):
        pull(volume.cluster, local)
