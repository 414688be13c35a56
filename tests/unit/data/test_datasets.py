"""`spotmpi data`: what is pushed, listed and pulled, by programs that run here in place of a pod's."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import fetch, store
from spotmpi.agent import pod_context as place
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.data import datasets
from spotmpi.data import store as data_store
from spotmpi.data.local_source import source_of
from spotmpi.data.store import DataStore, Transfer
from spotmpi.plan.agent_plan import VOLUME
from spotmpi.plan.volume_pod import store_command
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import of_kind
from tests.command_line import CommandLine, Output, invoke
from tests.transient_errors import TransientErrors
from tests.unit import archives
from tests.unit.backends.kubernetes.run_volume import FakeVolume, full_disk

HOSTILE = ("a b", "ünïcode", "it's", 'quo"te', "new\nline", "-dash", "$HOME")


@pytest.fixture
def volume(tmp_path: Path, cluster: FakeCluster) -> FakeVolume:
    (tmp_path / "volume").mkdir()
    return FakeVolume(cluster, tmp_path / "volume" / "runs", ("Running",))


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A folder with hostile names, an empty file and one of several batches' size."""
    folder = tmp_path / "set"
    for number, name in enumerate(HOSTILE):
        (folder / name).mkdir(parents=True)
        (folder / name / f"{name}.txt").write_text(str(number))
    (folder / "empty").write_bytes(b"")
    (folder / "big").write_bytes(bytes(range(256)) * 4096)
    return folder


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_store, "BATCH", 1000)


def push(volume: FakeVolume, source: Path | str, folder: str = "voc", messages: list[str] | None = None) -> Transfer:
    lines: list[str] = [] if messages is None else messages
    return asyncio.run(DataStore(volume.access(), lines.append).push(source_of(str(source)), folder))


def pull(volume: FakeVolume, into: Path, folder: str = "voc") -> Transfer:
    return asyncio.run(DataStore(volume.access(), lambda text: None).pull(folder, into))


def tree(folder: Path) -> dict[str, bytes]:
    """The complete files in a folder, to which commands of an interrupted push may still write others."""
    files = (path for path in folder.rglob("*") if not path.name.endswith(".spotmpi-part"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.is_file()}


def test_a_folder_is_copied_with_hostile_names_and_a_second_push_copies_nothing(
    volume: FakeVolume, sample: Path
) -> None:
    messages: list[str] = []
    count, size = len(tree(sample)), sum(map(len, tree(sample).values()))

    assert push(volume, sample, "team/voc", messages) == Transfer(count, size, count)
    assert tree(volume.folder / "team" / "voc") == tree(sample)
    assert not list(volume.folder.rglob("*.spotmpi-part"))
    assert messages[0] == f"{count} files, 1.0 MB: comparing with the volume" and messages[-1] == "1.0 MB of 1.0 MB"
    assert push(volume, sample, "team/voc") == Transfer(count, size, 0)


def test_changed_files_are_copied_again_even_at_the_same_size(volume: FakeVolume, sample: Path) -> None:
    push(volume, sample)
    (volume.folder / "voc" / "big").write_bytes(b"\0" * (256 * 4096))
    (volume.folder / "voc" / "empty").unlink()

    assert push(volume, sample).transferred == 2
    assert tree(volume.folder / "voc") == tree(sample)


def test_an_interrupted_push_continues_with_the_files_that_are_missing(volume: FakeVolume, sample: Path) -> None:
    volume.failures = ["take"]
    with pytest.raises(SpotmpiError, match="could not access the files"):
        push(volume, sample)
    complete = tree(volume.folder / "voc")

    again = push(volume, sample)

    assert again.transferred <= again.files - len(complete)
    assert tree(volume.folder / "voc") == tree(sample)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_a_tar_file_is_unpacked(volume: FakeVolume, sample: Path, tmp_path: Path, mode: str) -> None:
    with tarfile.open(tmp_path / "set.tar", mode) as packed:  # type: ignore[call-overload]
        packed.add(sample, "VOCdevkit")

    assert push(volume, tmp_path / "set.tar").transferred == len(tree(sample))
    assert tree(volume.folder / "voc" / "VOCdevkit") == tree(sample)


def test_the_pod_refuses_a_tar_that_leads_out_whoever_sends_it(volume: FakeVolume, tmp_path: Path) -> None:
    batch = io.BytesIO()
    with tarfile.open(fileobj=batch, mode="w") as packed:
        packed.addfile(tarfile.TarInfo("../../out"), io.BytesIO())
    batch.seek(0)
    (volume.folder / "voc").mkdir()

    with pytest.raises(SpotmpiError, match="is outside of the folder"):
        asyncio.run(volume.access().run(store_command("take", "/spotmpi/volume/voc"), batch))
    assert not (tmp_path / "out").exists()


def test_a_pull_copies_missing_files_and_checks_them(volume: FakeVolume, sample: Path, tmp_path: Path) -> None:
    push(volume, sample)
    into = tmp_path / "back"

    first = pull(volume, into)
    assert (first.transferred, tree(into)) == (first.files, tree(sample))
    (into / "big").write_bytes(b"torn")
    assert pull(volume, into).transferred == 1 and tree(into) == tree(sample)
    with pytest.raises(SpotmpiError, match="folder not found"):
        pull(volume, into, "nothing")


def test_a_full_disk_ends_a_pull_with_its_folder_and_the_next_one_completes_it(
    volume: FakeVolume, sample: Path, tmp_path: Path
) -> None:
    """It was called a cluster that cannot be reached, with `kubectl version` as the remedy."""
    push(volume, sample)
    into = tmp_path / "back"
    with full_disk(500_000), pytest.raises(SpotmpiError, match=f"^{into} cannot be written: File too large; free spac"):
        pull(volume, into)
    assert tree(into).items() < tree(sample).items()
    pull(volume, into)
    assert tree(into) == tree(sample)


def test_a_full_disk_ends_a_push_with_the_folder_of_temporary_files(
    volume: FakeVolume, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_store, "_IN_MEMORY", 1000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with full_disk(500_000), pytest.raises(SpotmpiError, match=f"^{tmp_path} cannot be written: File too large; free"):
        push(volume, sample)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_run_volume_that_is_full_is_one_line_with_the_remedy(volume: FakeVolume, sample: Path, number: int) -> None:
    reason = f"{os.strerror(number)}: '/spotmpi/volume/voc/a'"
    failed = subprocess.CompletedProcess([], 1, b"", f"[Errno {number}] {reason}\n".encode())
    volume.cluster.run = lambda pod, command, stdin: failed
    remedy = "free space on the volume (`spotmpi data clean` lists copies that no run names), then try again"
    with pytest.raises(SpotmpiError, match=re.escape(f"on the run volume: {reason}; {remedy}")):
        push(volume, sample)


def test_a_slow_reader_loses_nothing_of_an_answer(volume: FakeVolume, sample: Path, tmp_path: Path) -> None:
    volume.lost = 200 << 10
    assert push(volume, sample).transferred == len(tree(sample))
    assert pull(volume, tmp_path / "back").transferred == len(tree(sample))
    assert tree(tmp_path / "back") == tree(sample)


def test_a_pull_with_a_broken_connection_requests_the_missing_files_again(
    volume: FakeVolume, sample: Path, tmp_path: Path
) -> None:
    push(volume, sample)
    volume.torn = ["give"] * 2
    assert pull(volume, tmp_path / "back").transferred == len(tree(sample))
    assert (volume.torn, tree(tmp_path / "back")) == ([], tree(sample))
    volume.torn = ["give"] * 99
    with pytest.raises(SpotmpiError, match=r"files? did not arrive completely, such as .*; pull again"):
        pull(volume, tmp_path / "other")


def test_a_pull_of_a_folder_that_changes_brings_all_else_and_the_next_one_is_whole(
    volume: FakeVolume, sample: Path, tmp_path: Path
) -> None:
    push(volume, sample)
    volume.before["give"] = (volume.folder / "voc" / "big").unlink

    with pytest.raises(SpotmpiError, match="1 file did not arrive completely, such as big; pull again"):
        pull(volume, tmp_path / "back")
    (sample / "big").unlink()
    assert tree(tmp_path / "back") == tree(sample)
    assert pull(volume, tmp_path / "back").transferred == 0


def test_a_file_that_is_removed_while_a_folder_is_listed_is_not_in_the_list(
    sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = store.files
    monkeypatch.setattr(store, "files", lambda folder: [*named(folder), "removed"])
    assert set(store.index(str(sample))) == set(tree(sample))


def test_a_listing_has_sizes_and_numbers_of_files(volume: FakeVolume, sample: Path) -> None:
    push(volume, sample)
    (volume.folder / "notes.txt").write_text("abc")

    size = sum(map(len, tree(sample).values()))
    assert asyncio.run(DataStore(volume.access(), print).entries("")) == [
        {"name": "notes.txt", "bytes": 3, "files": None},
        {"name": "voc/", "bytes": size, "files": len(tree(sample))},
    ]


@pytest.mark.parametrize("name", ["/abs", "../up", "a/../../b", "", "."])
def test_a_folder_that_is_none_of_the_storage_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="write a folder of the storage"):
        datasets.folder_name(name)


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        (place.RUNS, "runs are recorded in it"),
        (place.CODE_STORE, "the code of runs is stored in it"),
        (f"{VOLUME}/store", "are copied to it"),
    ],
)
def test_a_folder_of_our_own_can_be_read_but_not_written_over(folder: str, why: str) -> None:
    name = folder.removeprefix(f"{VOLUME}/")
    for text in (name, f"./{name}", f"{name}/digits-1"):
        with pytest.raises(InputError, match=f"{why}; choose another folder"):
            datasets.folder_name(text)
    assert datasets.folder_name(f"{name}/digits-1", reading=True) == f"{name}/digits-1"


@pytest.fixture
def spotmpi(volume: FakeVolume, cluster: FakeCluster) -> CommandLine:
    cluster.put(of_kind("PersistentVolumeClaim", "runs"))

    def run(*arguments: str) -> Output:
        place = () if "--on" in arguments else ("--on", "kubernetes", "--volume", "runs", "--image", "registry/x:1")
        return invoke("data", *arguments, *place)

    return run


def test_the_commands_push_list_and_pull(
    spotmpi: CommandLine, volume: FakeVolume, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output, errors = spotmpi("ls")
    line = "nothing in the storage: `spotmpi data push SRC DEST` copies data to it"
    assert (code, output, line in errors, spotmpi("ls", "--json")[1]) == (0, "", True, "[]\n")
    code, output, errors = spotmpi("push", str(sample), "voc")
    count = len(tree(sample))
    assert (code, output) == (0, f"{sample} -> voc: {count} files, 1.0 MB, {count} of them new\n")
    assert 'a spec reads it with: data = "voc"' in errors
    assert spotmpi("ls")[1].split()[-3:] == ["1.0", str(count), "voc/"]
    assert json.loads(spotmpi("ls", "voc", "--json")[1])[0]["files"] == 1
    assert spotmpi("pull", "voc")[1].startswith("voc -> voc: ") and tree(tmp_path / "voc") == tree(sample)
    assert spotmpi("push", "set")[0] == 2
    assert spotmpi("push", str(sample), "x", "--on", "local")[0] == 2
    code, _, errors = spotmpi("ls", "--on", "kubernetes")
    assert code == 2 and "--volume" in errors and "--image" in errors


def test_sources_with_a_file_of_one_name_and_other_content_are_refused_before_anything_is_copied(
    spotmpi: CommandLine, volume: FakeVolume, tmp_path: Path
) -> None:
    for folder in ("cats", "dogs"):
        (tmp_path / folder / "images").mkdir(parents=True)
        for name, text in (("LICENSE", "free"), ("images/1.jpg", folder), (f"{folder}.txt", folder)):
            (tmp_path / folder / name).write_text(text)
    with tarfile.open(tmp_path / "dogs.tar", "w") as packed:
        packed.add(tmp_path / "dogs", ".")
    for dogs in ("dogs", "dogs.tar"):
        code, _, errors = spotmpi("push", str(tmp_path / "cats"), str(tmp_path / dogs), "pets")
        assert code == 2
        assert (
            f"{dogs}': has images/1.jpg, which {tmp_path / 'cats'} has with other content: push them to diff" in errors
        )
        assert tree(volume.folder) == {}
    (tmp_path / "dogs" / "images" / "1.jpg").write_text("cats")
    assert spotmpi("push", str(tmp_path / "cats"), str(tmp_path / "dogs"), "pets")[0] == 0
    assert len(tree(volume.folder)) == 4


@pytest.mark.parametrize("names", [("cats/1.jpg", "dogs/1.jpg"), ("cats/1.jpg", "dogs")])
def test_addresses_with_the_same_last_part_are_refused(
    spotmpi: CommandLine, volume: FakeVolume, tmp_path: Path, names: tuple[str, str]
) -> None:
    (tmp_path / "dogs").mkdir()
    (tmp_path / "dogs" / "1.jpg").write_text("a dog")
    addresses = {name: f"https://x.org/{name}#sha256={str(number) * 64}" for number, name in enumerate(names)}
    sources = [str(tmp_path / "dogs") if name == "dogs" else addresses[name] for name in names]
    code, _, errors = spotmpi("push", *sources, "pets")
    assert code == 2 and "has 1.jpg, which https://x.org/cats/1.jpg" in errors


def test_a_local_source_does_not_replace_what_an_address_has_unpacked(
    spotmpi: CommandLine, volume: FakeVolume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "https://x.org/cats.tar"

    async def fetched(*arguments: Any) -> list[Transfer]:
        entry = {"mark": fetch.key_of(address), "version": 1, "files": {"1.jpg": 3, "LICENSE": 4}}
        (volume.folder / "pets").mkdir(exist_ok=True)
        for name, text in (("1.jpg", "cat"), ("LICENSE", "free"), (fetch.LOG, json.dumps(entry) + "\n")):
            (volume.folder / "pets" / name).write_text(text)
        return [Transfer(2, 7, 2)]

    monkeypatch.setattr("spotmpi.data.fetch.fetch", fetched)
    (tmp_path / "dogs").mkdir()
    for name, text in (("1.jpg", "dog"), ("LICENSE", "free")):
        (tmp_path / "dogs" / name).write_text(text)
    arguments = ("push", f"{address}#sha256={'0' * 64}", str(tmp_path / "dogs"), "pets")
    code, _, errors = spotmpi(*arguments)
    assert code == 1 and "1.jpg is in another of the sources too, with other content: push them to diff" in errors
    assert (volume.folder / "pets" / "1.jpg").read_text() == "cat"
    (tmp_path / "dogs" / "1.jpg").rename(tmp_path / "dogs" / "2.jpg")
    assert spotmpi(*arguments)[0] == 0


VOC_PARTS = (("VOC2012", "trainval", "45"), ("VOC2007", "trainval", "12"), ("VOC2007", "test", "3"))


@pytest.fixture
def voc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three tar files such as the original ones, each with few images, and lists that ask for no more."""
    monkeypatch.setattr(data_store, "VOC", {f"{year}/{part}": len(images) for year, part, images in VOC_PARTS})
    archives = []
    for year, part, images in VOC_PARTS:
        root = tmp_path / part / year / "VOCdevkit" / year
        for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
            (root / folder).mkdir(parents=True)
        (root / f"ImageSets/Main/{part}.txt").write_text("\n".join(images))
        for image in images:
            (root / f"JPEGImages/{image}.jpg").write_text(image)
            (root / f"Annotations/{image}.xml").write_text(image)
        archives.append(str(tmp_path / f"{part}-{year}.tar"))
        with tarfile.open(archives[-1], "w") as packed:
            packed.add(root.parent, "VOCdevkit")
    return archives


def test_voc_comes_from_its_three_tar_files_into_one_folder_and_is_counted(
    spotmpi: CommandLine, volume: FakeVolume, voc: list[str]
) -> None:
    code, output, errors = spotmpi("push", "voc", *voc)
    assert (code, output.count(" of them new\n")) == (0, 3), errors
    assert "PASCAL VOC is complete: VOC2012/trainval 2, VOC2007/trainval 2, VOC2007/test 1" in errors
    devkit = volume.folder / "voc" / "VOCdevkit"
    assert sorted(image.stem for image in devkit.rglob("*.jpg")) == ["1", "2", "3", "4", "5"]
    assert spotmpi("push", "voc", *voc, "team/voc")[0] == 0
    assert (volume.folder / "team" / "voc" / "VOCdevkit" / "VOC2012").is_dir()

    (devkit / "VOC2007/Annotations/2.xml").unlink()
    (devkit / "VOC2007/ImageSets/Main/test.txt").unlink()
    with tarfile.open(voc[1], "w"), tarfile.open(voc[2], "w"):
        pass  # nothing in them
    code, output, errors = spotmpi("push", "voc", *voc)
    assert (code, output) == (1, "")
    assert "VOC2007/trainval has 1 of 2, VOC2007/test has 0 of 1 images; push what is missing" in errors
    code, _, errors = spotmpi("push", "voc", voc[0], "team/voc")
    assert code == 2 and "voc = '1 file': name the three original tar files" in errors


def answer(cluster: FakeCluster, **answers: bytes) -> FakeVolume:
    """The volume of a pod of somebody's image, which answers each verb as it likes."""
    volume = FakeVolume(cluster, Path("/none/runs"))
    cluster.run = lambda pod, command, stdin: subprocess.CompletedProcess(command, 0, answers.get(command[5], b""), b"")
    return volume


FACTS = b'[3, "11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437"]'  # of "new"


@pytest.mark.parametrize(
    "index",
    [
        b'{"../out": %s}' % FACTS,
        b'{"/tmp/out": %s}' % FACTS,
        b'{"a\\u0000": %s}' % FACTS,
        b'{"a": 1}',
        b'{"a": [1]}',
        b'{"a": ["x", "y"]}',
        b"[]",
        b"",
        b"{",
        b"[" * 100_000,
    ],
)
def test_a_list_of_files_that_is_none_is_one_clear_error(tmp_path: Path, cluster: FakeCluster, index: bytes) -> None:
    with pytest.raises(SpotmpiError, match=r"list of files cannot be used|cannot be read; check its image"):
        pull(answer(cluster, index=index), tmp_path / "into")


def test_a_pod_sends_no_other_files_than_those_that_were_requested(tmp_path: Path, cluster: FakeCluster) -> None:
    (tmp_path / ".bashrc").write_text("mine")
    sent = archives.archive(archives.entry(".bashrc"), archives.entry("../up"), archives.entry("good"))
    forged = answer(cluster, index=b'{"good": %s}' % FACTS, give=sent)
    assert pull(forged, tmp_path).transferred == 1
    assert tree(tmp_path) == {".bashrc": b"mine", "good": b"new"}


@pytest.mark.parametrize("call", ["list", "stat", "open"])
def test_a_folder_of_the_storage_that_cannot_be_read_is_an_error_and_not_fewer_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """As `store` finds it in the pod: files that are missing from its list would be missing from a pull."""
    (tmp_path / "set" / "cats").mkdir(parents=True)
    (tmp_path / "set" / "cats" / "1.jpg").write_text("a cat")
    whole = store.index(str(tmp_path / "set"))
    where = tmp_path / "set" / ("cats" if call == "list" else "cats/1.jpg")
    TransientErrors(monkeypatch.setattr).add(call, str(where), errno.ESTALE)
    with pytest.raises(OSError, match="Stale"):
        store.missing(str(tmp_path / "set"), whole) if call == "stat" else store.index(str(tmp_path / "set"))
    assert store.index(str(tmp_path / "set")) == whole and store.missing(str(tmp_path / "set"), whole) == []


def test_a_tar_with_two_files_of_one_name_and_other_content_is_refused(volume: FakeVolume, tmp_path: Path) -> None:
    """Which of them would stay is chance: several are sent at once."""
    cat, dog = (archives.entry(name, content=text) for name, text in (("a/1.jpg", b"cat"), ("./a//1.jpg", b"dog")))
    (tmp_path / "same.tar").write_bytes(archives.archive(cat, cat))
    (tmp_path / "twice.tar").write_bytes(archives.archive(cat, dog))
    assert push(volume, tmp_path / "same.tar").files == 1
    with pytest.raises(InputError, match=r"a/1\.jpg.*: is in the tar twice, with other content; pack it again"):
        push(volume, tmp_path / "twice.tar", "other")
    assert tree(volume.folder) == {"voc/a/1.jpg": b"cat"}


@pytest.mark.parametrize(
    ("verb", "value"),
    [
        ("missing", ["../../x"]),
        ("missing", [7]),
        ("list", [1]),
        ("list", [{"name": "a", "bytes": "7", "files": None}]),
        ("list", [{"name": "a", "bytes": None, "files": None}]),
        ("list", [{"name": ["a"], "bytes": 1, "files": 1}]),
        ("index", {"a": [-1, "0" * 64]}),
    ],
)
def test_an_answer_that_no_program_of_ours_gives_is_one_clear_error(
    tmp_path: Path, cluster: FakeCluster, sample: Path, verb: str, value: Any
) -> None:
    forged = answer(cluster, **{verb: json.dumps(value).encode()})
    calls: dict[str, Callable[[], object]] = {
        "missing": lambda: push(forged, sample),
        "list": lambda: asyncio.run(DataStore(forged.access(), lambda text: None).entries("voc")),
        "index": lambda: pull(forged, tmp_path / "into"),
    }
    with pytest.raises(SpotmpiError, match=r"cannot be (read; check its image|used)"):
        calls[verb]()


@pytest.mark.parametrize("log", [b"[" * 100_000, b"{", b"7"])
def test_a_list_of_fetched_files_that_nobody_writes_is_one_clear_error(cluster: FakeCluster, log: bytes) -> None:
    forged = answer(cluster, give=archives.archive(archives.entry(fetch.LOG, content=log)))
    reading = DataStore(forged.access(), print).require_other_names({"a": [1, "0"]}, "voc", ["https://x.org/a"])
    with pytest.raises(SpotmpiError, match="the run volume's list of fetched files cannot be used"):
        asyncio.run(reading)
