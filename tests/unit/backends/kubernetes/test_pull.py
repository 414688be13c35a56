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
from spotmpi.backends.kubernetes import volume_access
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import RunPaths
from tests.unit.backends.kubernetes.volume_cluster import VolumeCluster, pull, recorded_run
from tests.unit.backends.kubernetes.watched_cluster import RUN


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume_access, "_POLL_INTERVAL", 0.01)


@pytest.fixture
def there(tmp_path: Path) -> RunPaths:
    return recorded_run(tmp_path / "volume")


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
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(folder):
        made.bind("outside")


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
def test_an_entry_that_does_not_belong_there_is_left_out_and_named_and_all_else_comes(
    there: RunPaths, tmp_path: Path, plant: Callable[[Path], None], why: str
) -> None:
    plant(there.folder)
    (there.folder / "latest").symlink_to("checkpoints/7")
    (there.folder / "loop").symlink_to("loop")
    here = RunPaths(tmp_path / "here" / RUN)

    said = pull(VolumeCluster(there.folder.parent), here)

    assert said[-1] == f"skipped in the download of {RUN}: outside ({why})"
    assert not os.path.lexists(here.folder / "outside")
    assert (here.folder / "latest" / "model.npz").read_text() == "weights"
    assert (here.folder / "loop").readlink() == Path("loop")


def test_a_run_that_goes_on_is_pulled_without_what_it_removes_or_cuts_meanwhile(
    there: RunPaths, tmp_path: Path
) -> None:
    big, names = 4 << 20, ["a-grows", "b-is-cut", "c-is-removed", "d-becomes-a-pipe", "e-stays"]
    for name in names:
        (there.folder / name).write_bytes(b"x" * (big if name < "c" else 1))
    (there.folder / "c-rotated").mkdir()
    cluster, here = VolumeCluster(there.folder.parent), RunPaths(tmp_path / "here" / RUN)

    def goes_on() -> None:
        with (there.folder / "a-grows").open("ab") as file:
            file.write(b"more")
        os.truncate(there.folder / "b-is-cut", 10)
        (there.folder / "c-is-removed").unlink()
        (there.folder / "c-rotated").rmdir()
        (there.folder / "d-becomes-a-pipe").unlink()
        os.mkfifo(there.folder / "d-becomes-a-pipe")

    cluster.meanwhile = goes_on
    said = pull(cluster, here)

    assert said[-1] == f"skipped in the download of {RUN}: " + ", ".join(
        [
            "c-is-removed (was removed while it was read)",
            "c-rotated (was removed while it was read)",
            "d-becomes-a-pipe (is not a file, folder or link)",
        ]
    )
    assert (here.folder / "a-grows").read_bytes() == b"x" * big
    assert (here.folder / "b-is-cut").stat().st_size == 10  # as it was when its turn came
    assert (here.folder / "e-stays").read_bytes() == b"x"
    assert (here.checkpoints / "7" / "model.npz").read_text() == "weights"


def test_a_file_that_shrinks_while_it_is_read_is_left_out(there: RunPaths, tmp_path: Path) -> None:
    (there.folder / "a-log").write_bytes(b"x" * (4 << 20))
    cluster, here = VolumeCluster(there.folder.parent), RunPaths(tmp_path / "here" / RUN)
    cluster.meanwhile = lambda: os.truncate(there.folder / "a-log", 10)
    said = pull(cluster, here)
    assert said[-1] == f"skipped in the download of {RUN}: a-log (was truncated while it was read)"
    assert not (here.folder / "a-log").exists() and (here.checkpoints / "7" / "model.npz").exists()


def test_of_many_entries_left_out_the_first_are_named(there: RunPaths, tmp_path: Path) -> None:
    for number in range(10):
        (there.folder / f"link\n{number}").symlink_to("/")
    said = pull(VolumeCluster(there.folder.parent), RunPaths(tmp_path / "here" / RUN))
    assert said[-1].count("is a link out of") == 8 and said[-1].endswith("), and 2 more")
    assert r"'link\n0' (" in said[-1]


def test_an_archive_whose_end_was_lost_is_not_taken_for_a_whole_one(there: RunPaths, tmp_path: Path) -> None:
    cluster, here = VolumeCluster(there.folder.parent), RunPaths(tmp_path / "here" / RUN)
    cluster.torn_before = pack.LEFT_OUT.encode()  # at the end of an entry, where tar's own format shows nothing
    with pytest.raises(SpotmpiError, match="from the run volume: the end of the archive is missing; pull again"):
        pull(cluster, here)
    assert not here.folder.exists()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


def test_an_archive_that_a_pod_forged_writes_nothing_outside_of_the_folder(tmp_path: Path) -> None:
    bad = [
        member("../up"),
        member("/abs"),
        member("hard", tarfile.LNKTYPE, "../up"),
        member("down/soft", tarfile.SYMTYPE, "../.."),
        member("device", tarfile.CHRTYPE),
    ]
    left_out: dict[str, str] = {}
    kept = pulling._safe_members([*bad, member("good")], tmp_path.resolve(), left_out)
    assert [each.name for each in kept] == ["good"]
    assert set(left_out) == {each.name for each in bad}
