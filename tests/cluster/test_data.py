"""`spotmpi data` against pods and a volume that all nodes share."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from spotmpi.agent import fetch, store
from spotmpi.backends.targets import Target
from spotmpi.data import datasets
from spotmpi.data.datasets import Storage
from spotmpi.data.store import Transfer
from spotmpi.plan.volume_pod import LABEL_PURPOSE
from tests.command_line import SPOTMPI
from tests.testbed.certificates import Authority
from tests.testbed.cluster import Cluster
from tests.testbed.waiting import wait_for
from tests.unit.data.web_site import Site, serving

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

FILES = 24
SIZE = 1 << 20


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
        return subprocess.Popen(
            [SPOTMPI, "data", *words, *place], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *words: str) -> tuple[int, str, str]:
        """The exit code, output and errors of `spotmpi data ...`."""
        command = self.command(*words)
        output, errors = command.communicate(timeout=120)
        return command.returncode, output, errors

    def kill_at(self, pattern: str, *words: str) -> str:
        """Run `spotmpi data ...` until its output has *pattern*, then kill it; returns the output."""
        command, output = self.command(*words), ""
        assert command.stderr is not None
        for line in command.stderr:
            output += line
            if re.search(pattern, line):
                break
        else:
            raise AssertionError(f"{pattern!r} is not in the output: {output}")
        command.send_signal(signal.SIGKILL)
        command.communicate()
        return output

    def remaining_pods(self) -> Sequence[str]:
        """Our pods that still exist."""
        pods = self.testbed.kubectl("get", "pods", "-n", self.namespace, "-l", LABEL_PURPOSE, "-o", "name")
        return pods.split()


@pytest.fixture
def shared(testbed: Cluster, runs_namespace: str) -> Shared:
    return Shared(testbed, runs_namespace)


@pytest.fixture
def source_folder(tmp_path: Path) -> Path:
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


def test_a_folder_and_a_tar_file_are_pushed_and_pulled_byte_for_byte(
    shared: Shared, source_folder: Path, tmp_path: Path
) -> None:
    with tarfile.open(tmp_path / "set.tar.gz", "w:gz") as packed:
        packed.add(source_folder, "packed")
    count, size = FILES + 2, FILES * SIZE + 4
    output: list[str] = []

    moved = datasets.push([str(source_folder), str(tmp_path / "set.tar.gz")], "team/voc", shared.storage, output.append)

    assert moved == [Transfer(count, size, count)] * 2, output
    assert tree(shared.folder / "team" / "voc") == tree(source_folder) | {
        f"packed/{n}": c for n, c in tree(source_folder).items()
    }
    owner = (shared.folder / "team" / "voc" / "empty").stat()
    assert (owner.st_uid, owner.st_gid) == (1000, 1000)
    assert datasets.ls("", shared.storage) == [{"name": "team/", "bytes": 2 * size, "files": 2 * count}]

    assert datasets.push([str(source_folder)], "team/voc", shared.storage) == [Transfer(count, size, 0)]
    pulled = datasets.pull("team/voc/packed", tmp_path / "back", shared.storage)
    assert (pulled, tree(tmp_path / "back")) == (Transfer(count, size, count), tree(source_folder))
    assert shared.remaining_pods() == []


@pytest.fixture
def site(testbed: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A stand-in for S3 that pods reach, with a bucket of small objects."""
    with serving(testbed.slot.gateway) as server:
        server.files = {f"sets/voc/{number:02}": os.urandom(SIZE) for number in range(FILES)}
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x" * 20)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y" * 40)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield server


@pytest.mark.nightly("20 s; a fetch goes on, too, in the unit tier")
def test_a_fetch_continues_without_terminal_and_pod_and_is_followed_by_the_same_command(
    shared: Shared, site: Site
) -> None:
    site.free = FILES
    site.open.clear()
    words = ("push", "s3://sets/voc/", "team/voc")
    progress = rf"B of 1\.0 MB; \d+ of {FILES} files are complete"

    output = shared.kill_at(progress, *words)
    (job,) = shared.testbed.get("jobs", "-n", shared.namespace)["items"]
    name = job["metadata"]["name"]
    assert f"Job {name} fetches it, also when this terminal is closed" in output
    assert "ignature" not in output

    held_back = FILES + fetch.FILES_AT_ONCE
    wait_for("the pod to have all its files held back", lambda: len(site.ranges) == held_back, limit=120)
    site.free = len(site.ranges) + FILES  # more than it takes to look at all, less than what lacks
    (pod,) = shared.testbed.pods(shared.namespace)
    shared.testbed.evict(pod["metadata"]["name"], shared.namespace)
    deletion = ("wait", f"pod/{pod['metadata']['name']}", "-n", shared.namespace, "--for=delete", "--timeout=120s")
    shared.testbed.kubectl(*deletion, limit=150)  # it could end the Job otherwise, once the site answers
    output = shared.kill_at(progress, *words)
    assert f"Job {name} is fetching this already" in output and "fetches it" not in output

    site.open.set()
    shared.testbed.kubectl("wait", f"job/{name}", "-n", shared.namespace, "--for=condition=Complete", "--timeout=120s")
    (other,) = shared.testbed.pods(shared.namespace)
    assert other["metadata"]["name"] != pod["metadata"]["name"]
    assert tree(shared.folder / "team/voc") == {
        name.removeprefix("sets/voc/"): content for name, content in site.files.items()
    }

    _, output, errors = shared.run(*words)
    assert output == f"s3://sets/voc/ -> team/voc: {FILES} files, 25.2 MB, 0 of them new\n", errors
    assert datasets.pull("team/voc", shared.folder.parent / "back", shared.storage).files == FILES


@pytest.mark.nightly("the fetch program meets it in the unit tier")
def test_a_pod_fetches_by_https_with_checksum_and_trusted_certificate(
    shared: Shared, testbed: Cluster, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "keys")
    with serving(testbed.slot.gateway, authority.issue("site", hosts=[testbed.slot.gateway])) as site:
        site.files = {"weights.npz": os.urandom(SIZE)}
        right = hashlib.sha256(site.files["weights.npz"]).hexdigest()

        def pushed(sha256: str, *more: str) -> tuple[int, str, str]:
            return shared.run("push", f"{site.address}/weights.npz#sha256={sha256}", "weights", *more)

        trusted = ("--ca", str(authority.certificate))
        code, output, errors = pushed(right)
        assert (code, output) == (1, "") and "certificate not trusted" in errors and "--ca FILE" in errors
        code, output, errors = pushed("0" * 64, *trusted)
        assert (code, output) == (1, "") and "the SHA-256 of the file is not the given one" in errors
        assert not (shared.folder / "weights" / "weights.npz").exists()
        code, output, errors = pushed(right, *trusted)
        assert code == 0 and output.endswith("weights: 1 file, 1.0 MB, 1 of them new\n"), errors
        assert tree(shared.folder / "weights") == site.files
