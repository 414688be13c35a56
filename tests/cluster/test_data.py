"""`spotmpi data` against pods and a volume that all nodes share."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from spotmpi.agent import fetch, store
from spotmpi.backends.targets import Target
from spotmpi.data import datasets
from spotmpi.data.datasets import Storage
from spotmpi.data.store import Moved
from spotmpi.plan.volume_pod import LABEL_PURPOSE
from tests.testbed.certificates import Authority
from tests.testbed.cluster import Cluster
from tests.testbed.waiting import wait_for
from tests.unit.data.web_site import Site, serving

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

FILES = 24
SIZE = 1 << 20
# Batches of one file, so that a push can be broken off between two of a small set.
CLI = """
from spotmpi.data import store as data_store
from spotmpi.cli.main import main
data_store.BATCH = 1
main()
"""


class Shared:
    """A namespace with a volume that all nodes share; `folder` is the volume on this machine."""

    def __init__(self, testbed: Cluster, namespace: str) -> None:
        self.testbed, self.namespace = testbed, namespace
        self.folder = testbed.shared_volume(namespace)
        self.image = testbed.images["base"]
        self.storage = Storage(Target(f"kubernetes/{namespace}"), "shared", self.image)

    def command(self, *words: str) -> subprocess.Popen[str]:
        """`spotmpi data ...` as a process of its own."""
        place = ["--on", f"kubernetes/{self.namespace}", "--volume", "shared", "--image", self.image]
        command = [sys.executable, "-u", "-c", CLI, "data", *words, *place]
        return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def killed_at(self, told: str, *words: str) -> str:
        """What `spotmpi data ...` said until it said something like *told* and was killed."""
        command, said = self.command(*words), ""
        assert command.stderr is not None
        for line in command.stderr:
            said += line
            if re.search(told, line):
                break
        else:
            raise AssertionError(f"{told!r} was not said: {said}")
        command.send_signal(signal.SIGKILL)
        command.communicate()
        return said

    def left(self) -> Sequence[str]:
        """The pods of ours that are still there."""
        found = self.testbed.kubectl("get", "pods", "-n", self.namespace, "-l", LABEL_PURPOSE, "-o", "name")
        return found.split()


@pytest.fixture
def shared(testbed: Cluster, runs_namespace: str) -> Iterator[Shared]:
    yield Shared(testbed, runs_namespace)


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
    return {name: (folder / name).read_bytes() for name in store.files(str(folder))}


def test_a_folder_and_a_tar_file_go_there_and_come_back_byte_for_byte(
    shared: Shared, here: Path, tmp_path: Path
) -> None:
    with tarfile.open(tmp_path / "set.tar.gz", "w:gz") as packed:
        packed.add(here, "packed")
    count, size = FILES + 2, FILES * SIZE + 4
    said: list[str] = []

    moved = datasets.push([str(here), str(tmp_path / "set.tar.gz")], "team/voc", shared.storage, said.append)

    assert moved == [Moved(count, size, count)] * 2, said
    assert tree(shared.folder / "team" / "voc") == tree(here) | {f"packed/{n}": c for n, c in tree(here).items()}
    owner = (shared.folder / "team" / "voc" / "empty").stat()
    assert (owner.st_uid, owner.st_gid) == (1000, 1000)
    assert datasets.ls("", shared.storage) == [{"name": "team/", "bytes": 2 * size, "files": 2 * count}]

    assert datasets.push([str(here)], "team/voc", shared.storage) == [Moved(count, size, 0)]
    pulled = datasets.pull("team/voc/packed", tmp_path / "back", shared.storage)
    assert (pulled, tree(tmp_path / "back")) == (Moved(count, size, count), tree(here))
    assert shared.left() == []


@pytest.mark.nightly("the push itself is broken off in the unit tier too")
def test_a_push_whose_terminal_was_killed_is_taken_up_by_the_same_command(shared: Shared, here: Path) -> None:
    shared.killed_at(r"[\d.]+ MB of ", "push", str(here), "voc")

    again = shared.command("push", str(here), "voc")
    said, complaint = again.communicate(timeout=120)

    count = FILES + 2
    told = re.fullmatch(rf".* -> voc: {count} files, 25.2 MB, (\d+) of them new\n", said)
    assert told and again.returncode == 0, (said, complaint)
    assert 0 < int(told[1]) < count
    assert tree(shared.folder / "voc") == tree(here)


@pytest.fixture
def site(testbed: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A stand-in for S3 that pods reach, with a bucket of small objects."""
    with serving(testbed.slot.gateway) as made:
        made.files = {f"sets/voc/{number:02}": os.urandom(SIZE) for number in range(FILES)}
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", made.address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x" * 20)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y" * 40)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield made


@pytest.mark.nightly("20 s; a fetch goes on, too, in the unit tier")
def test_a_fetch_goes_on_without_terminal_and_pod_and_is_shown_to_whoever_asks_again(
    shared: Shared, site: Site
) -> None:
    site.free = FILES
    site.open.clear()
    words = ("push", "s3://sets/voc/", "team/voc")
    progress = rf"MB of 1.0 MB; \d+ of {FILES} files are there"

    said = shared.killed_at(progress, *words)
    (job,) = shared.testbed.get("jobs", "-n", shared.namespace)["items"]
    name = job["metadata"]["name"]
    assert f"Job {name} fetches it, also when this terminal is closed" in said
    assert "ignature" not in said

    held = FILES + fetch.FILES_AT_ONCE
    wait_for("the pod to have all its files held back", lambda: len(site.asked) == held, limit=120)
    site.free = len(site.asked) + FILES  # more than it takes to look at all, less than what lacks
    (pod,) = shared.testbed.pods(shared.namespace)
    shared.testbed.evict(pod["metadata"]["name"], shared.namespace)
    gone = ("wait", f"pod/{pod['metadata']['name']}", "-n", shared.namespace, "--for=delete", "--timeout=120s")
    shared.testbed.kubectl(*gone, limit=150)  # it could end the Job otherwise, once the site answers
    said = shared.killed_at(progress, *words)
    assert f"Job {name} is fetching this already" in said and "fetches it" not in said

    site.open.set()
    shared.testbed.kubectl("wait", f"job/{name}", "-n", shared.namespace, "--for=condition=Complete", "--timeout=120s")
    (other,) = shared.testbed.pods(shared.namespace)
    assert other["metadata"]["name"] != pod["metadata"]["name"]
    assert tree(shared.folder / "team/voc") == {
        name.removeprefix("sets/voc/"): content for name, content in site.files.items()
    }

    again = shared.command(*words)
    said, complaint = again.communicate(timeout=120)
    assert said == f"s3://sets/voc/ -> team/voc: {FILES} files, 25.2 MB, 0 of them new\n", complaint
    assert datasets.pull("team/voc", shared.folder.parent / "back", shared.storage).files == FILES


@pytest.mark.nightly("the fetch program meets it in the unit tier")
def test_an_object_that_is_gone_in_mid_copy_ends_the_fetch_with_its_name(shared: Shared, site: Site) -> None:
    site.faults = {FILES: 404}
    pushed = shared.command("push", "s3://sets/voc/", "voc")
    said, complaint = pushed.communicate(timeout=120)
    assert pushed.returncode == 1 and said == ""
    assert re.search(r"could not fetch \d\d: HTTP 404: the file does not exist, or access to it", complaint)


@pytest.mark.nightly("the fetch program meets it in the unit tier")
def test_a_pod_fetches_by_https_what_has_the_given_checksum_and_a_trusted_certificate(
    shared: Shared, testbed: Cluster, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "keys")
    with serving(testbed.slot.gateway, authority.issue("site", hosts=[testbed.slot.gateway])) as site:
        site.files = {"weights.npz": os.urandom(SIZE)}
        right = hashlib.sha256(site.files["weights.npz"]).hexdigest()

        def pushed(sha256: str, *more: str) -> tuple[int, str, str]:
            command = shared.command("push", f"{site.address}/weights.npz#sha256={sha256}", "weights", *more)
            said, complaint = command.communicate(timeout=120)
            return command.returncode, said, complaint

        trusted = ("--ca", str(authority.certificate))
        code, said, complaint = pushed(right)
        assert (code, said) == (1, "") and "certificate not trusted" in complaint and "--ca FILE" in complaint
        code, said, complaint = pushed("0" * 64, *trusted)
        assert (code, said) == (1, "") and "the SHA-256 of the file is not the given one" in complaint
        assert not (shared.folder / "weights" / "weights.npz").exists()
        code, said, complaint = pushed(right, *trusted)
        assert code == 0 and said.endswith("weights: 1 files, 1.0 MB, 1 of them new\n"), complaint
        assert tree(shared.folder / "weights") == site.files
