"""What of a run's folder is pulled: all that belongs there, whatever else is in it and whatever the run does."""

from __future__ import annotations

import contextlib
import os
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from spotmpi.agent import pack
from spotmpi.backends.kubernetes import pull as pulling
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import RunPaths
from tests.unit.backends.kubernetes.volume_cluster import VolumeCluster, pull
from tests.unit.backends.kubernetes.watched_cluster import RUN


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
    remote: RunPaths, local: RunPaths, volume_cluster: VolumeCluster, plant: Callable[[Path], None], why: str
) -> None:
    plant(remote.folder)
    (remote.folder / "latest").symlink_to("checkpoints/7")
    (remote.folder / "loop").symlink_to("loop")

    messages = pull(volume_cluster, local)

    assert messages[-1] == f"skipped in the download of {RUN}: outside ({why})"
    assert not os.path.lexists(local.folder / "outside")
    assert (local.folder / "latest" / "model.npz").read_text() == "weights"
    assert (local.folder / "loop").readlink() == Path("loop")


def test_a_running_runs_folder_is_downloaded_without_files_removed_during_the_download(
    remote: RunPaths, local: RunPaths, volume_cluster: VolumeCluster
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

    volume_cluster.meanwhile = change

    assert pull(volume_cluster, local)[-1] == (
        f"skipped in the download of {RUN}: c-is-removed (was removed while it was read), "
        "c-rotated (was removed while it was read), d-becomes-a-pipe (is not a file, folder or link)"
    )
    assert (local.folder / "a-grows").read_bytes() == b"x" * big
    assert (local.folder / "b-is-cut").stat().st_size == 10  # as it was when its turn came
    assert (local.folder / "e-stays").read_bytes() == b"x"
    assert (local.checkpoints / "7" / "model.npz").read_text() == "weights"


def test_a_file_that_shrinks_while_it_is_read_is_skipped(
    remote: RunPaths, local: RunPaths, volume_cluster: VolumeCluster
) -> None:
    (remote.folder / "a-log").write_bytes(b"x" * (4 << 20))
    volume_cluster.meanwhile = lambda: os.truncate(remote.folder / "a-log", 10)
    messages = pull(volume_cluster, local)
    assert messages[-1] == f"skipped in the download of {RUN}: a-log (was truncated while it was read)"
    assert not (local.folder / "a-log").exists() and (local.checkpoints / "7" / "model.npz").exists()


def test_the_first_of_many_skipped_entries_are_named(
    remote: RunPaths, local: RunPaths, volume_cluster: VolumeCluster
) -> None:
    for number in range(10):
        (remote.folder / f"link\n{number}").symlink_to("/")
    message = pull(volume_cluster, local)[-1]
    assert message.count("is a link out of") == 8 and message.endswith("), and 2 more")
    assert r"'link\n0' (" in message


@pytest.mark.usefixtures("remote")
def test_a_truncated_archive_is_an_error(local: RunPaths, volume_cluster: VolumeCluster) -> None:
    volume_cluster.torn_before = pack.LEFT_OUT.encode()  # at the end of an entry, where tar's own format shows nothing
    with pytest.raises(SpotmpiError, match="from the run volume: the end of the archive is missing; pull again"):
        pull(volume_cluster, local)
    assert not local.folder.exists()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    item = tarfile.TarInfo(name)
    item.type, item.linkname = kind, target
    return item


def test_a_forged_archive_writes_nothing_outside_of_the_folder(tmp_path: Path) -> None:
    bad = [
        member("../up"),
        member("/abs"),
        member("hard", tarfile.LNKTYPE, "../up"),
        member("down/soft", tarfile.SYMTYPE, "../.."),
        member("device", tarfile.CHRTYPE),
    ]
    skipped: dict[str, str] = {}
    members = pulling._safe_members([*bad, member("good")], tmp_path.resolve(), skipped)
    assert [each.name for each in members] == ["good"]
    assert set(skipped) == {each.name for each in bad}
