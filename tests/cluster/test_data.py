"""`spotmpi data` against pods and a volume that all nodes share."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from jobs import data
from jobs.backends.choose import Where
from jobs.backends.data_store import Moved
from jobs.data import Storage
from jobs.plan.volume_pod import LABEL_PURPOSE
from tests.cluster.testbed.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

FILES = 24
SIZE = 1 << 20
# Batches of one file, so that a push can be broken off between two of a small set.
CLI = """
from jobs.backends import data_store
from jobs.cli.main import main
data_store.BATCH = 1
main()
"""


class Shared:
    """A namespace with a volume that all nodes share; `folder` is the volume on this machine."""

    def __init__(self, testbed: Cluster, namespace: str) -> None:
        self.testbed, self.namespace = testbed, namespace
        self.folder = testbed.shared_volume(namespace)
        self.image = testbed.images["base"]
        self.storage = Storage(Where(f"kubernetes/{namespace}"), "shared", self.image)

    def command(self, *words: str) -> subprocess.Popen[str]:
        """`spotmpi data ...` as a process of its own."""
        place = ["--on", f"kubernetes/{self.namespace}", "--volume", "shared", "--image", self.image]
        command = [sys.executable, "-u", "-c", CLI, "data", *words, *place]
        return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def left(self) -> Sequence[str]:
        """The pods of ours that are still there."""
        found = self.testbed.kubectl("get", "pods", "-n", self.namespace, "-l", LABEL_PURPOSE, "-o", "name")
        return found.split()


@pytest.fixture
def shared(testbed: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    monkeypatch.setenv("KUBECONFIG", str(testbed.kubeconfig))
    yield Shared(testbed, namespace)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with hostile names, an empty file and files of random bytes."""
    folder = tmp_path / "set"
    (folder / "it's ünïcode").mkdir(parents=True)
    (folder / "it's ünïcode" / "new\nline").write_text("text")
    (folder / "empty").write_bytes(b"")
    for number in range(FILES):
        (folder / f"{number:02}").write_bytes(os.urandom(SIZE))
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_and_a_tar_file_go_there_and_come_back_byte_for_byte(
    shared: Shared, here: Path, tmp_path: Path
) -> None:
    with tarfile.open(tmp_path / "set.tar.gz", "w:gz") as packed:
        packed.add(here, "packed")
    count, size = FILES + 2, FILES * SIZE + 4
    said: list[str] = []

    moved = data.push([str(here), str(tmp_path / "set.tar.gz")], "team/voc", shared.storage, said.append)

    assert moved == [Moved(count, size, count)] * 2, said
    assert tree(shared.folder / "team" / "voc") == tree(here) | {f"packed/{n}": c for n, c in tree(here).items()}
    owner = (shared.folder / "team" / "voc" / "empty").stat()
    assert (owner.st_uid, owner.st_gid) == (1000, 1000)
    assert data.ls("", shared.storage) == [{"name": "team/", "bytes": 2 * size, "files": 2 * count}]

    assert data.push([str(here)], "team/voc", shared.storage) == [Moved(count, size, 0)]
    pulled = data.pull("team/voc/packed", tmp_path / "back", shared.storage)
    assert (pulled, tree(tmp_path / "back")) == (Moved(count, size, count), tree(here))
    assert shared.left() == []


def test_a_push_whose_terminal_was_killed_is_taken_up_by_the_same_command(shared: Shared, here: Path) -> None:
    first = shared.command("push", str(here), "voc")
    assert first.stderr is not None
    assert any(re.search(r"[\d.]+ MB of ", line) for line in first.stderr), "it was over before it could be killed"
    first.send_signal(signal.SIGKILL)
    first.wait()

    again = shared.command("push", str(here), "voc")
    said, complaint = again.communicate(timeout=60)

    count = FILES + 2
    told = re.fullmatch(rf".* -> voc: {count} files, 25.2 MB, (\d+) of them new\n", said)
    assert told and again.returncode == 0, (said, complaint)
    assert 0 < int(told[1]) < count
    assert tree(shared.folder / "voc") == tree(here)
