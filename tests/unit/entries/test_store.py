"""Entries are found complete or not at all, in a folder and in a storage of fsspec."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from spotmpi.agent.files import locked
from spotmpi.core import code_folder
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.entries import manifest as form
from spotmpi.entries import storage as storage_module
from spotmpi.entries.manifest import DATASET, MODEL, File, Manifest, Reference
from spotmpi.entries.store import Store, folder, is_reference
from tests import nfs

KEYS = [f"{digit}" * 64 for digit in "abc"]


@pytest.fixture(params=["folder", "mount", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store in a folder, in one that pods mount at its path, and in fsspec's memory, which is as one on a network."""
    folder = str(tmp_path / "st ore")
    urls = {"folder": folder, "mount": f"file://{folder}", "memory": f"memory://{uuid.uuid4().hex}"}
    yield Store(urls[request.param])


def entry(
    tmp_path: Path, key: str = KEYS[0], created: float = 1.0, name: str = "ratings", **values: Any
) -> tuple[Manifest, dict[str, str]]:
    """The manifest of an entry of two files, and where their content is."""
    files, sources = [], {}
    for path, content in (("a.txt", b"first"), ("more/b.txt", b"")):
        source = tmp_path / path.replace("/", "-")
        source.write_bytes(content)
        files.append(form.describe(source, path, rows=len(content)))
        sources[path] = str(source)
    made = Manifest(**{"kind": DATASET, "name": name, "key": key, "created": created, "files": tuple(files), **values})
    return made, sources


def test_an_entry_is_read_as_it_was_written(store: Store, tmp_path: Path) -> None:
    parent = Reference(DATASET, "raw", KEYS[2])
    made, sources = entry(tmp_path, parents=(parent,), arguments={"cut": 0.5}, cost=0.25)
    assert store.get(made.reference) is None
    added = store.add(made, sources)
    assert added == replace(made, version=1) == store.get(made.reference) == store.find("ratings")
    assert (made.rows, made.bytes) == (5, 5)
    assert store.storage.read(f"{folder(made.reference)}/files/more/b.txt") == b""
    assert store.storage.read(f"{folder(made.reference)}/files/a.txt") == b"first"


def test_the_first_of_two_entries_of_one_key_stays(store: Store, tmp_path: Path) -> None:
    first, sources = entry(tmp_path, created=1.0)
    second, _ = entry(tmp_path, created=2.0)
    added = store.add(first, sources)
    assert store.add(second, sources) == added == store.find("ratings") and added.created == 1.0


def test_a_store_needs_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a shared folder of a virtual machine, CIFS or exFAT, which refuse them as not permitted."""

    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(source))

    monkeypatch.setattr(os, "link", refuse)
    store = Store(str(tmp_path / "store"))
    made, sources = entry(tmp_path)
    assert store.add(made, sources).version == store.add(replace(made, cost=9.9), sources).version == 1
    assert store.get(made.reference) == replace(made, version=1)
    assert store.add(*entry(tmp_path, KEYS[1])).version == 2


def test_an_entry_is_found_by_name_number_and_shortened_key_whatever_the_clock(store: Store, tmp_path: Path) -> None:
    for number, (key, name) in enumerate(zip(KEYS, ("ratings", "ratings", "users"), strict=True)):
        store.add(*entry(tmp_path, key, created=10.0 - number, name=name))
    assert store.find("ratings").key == store.find("datasets:ratings").key == store.find("ratings:2").key == KEYS[1]
    assert store.find("datasets:ratings:1", DATASET).key == store.find("ratings@aaa").key == KEYS[0]
    assert store.find("cccccc").key == KEYS[2]
    assert [each.title for each in store.list(DATASET)] == ["ratings:1", "ratings:2", "users:1"]
    for text in ("nobody", "dddddd"):
        with pytest.raises(InputError, match=r"is not in the store .*; it has: ratings, users"):
            store.find(text)
    for text in ("ratings@ccc", "ratings:3", "ratings:prod", "ratings:0", "ratings:²"):
        with pytest.raises(InputError, match=r"is not in the store .*; it has: ratings:1, ratings:2"):
            store.find(text)
    for text in ("datasets:ratings", "a:b:c:d", "ratings@", "ratings:"):
        with pytest.raises(InputError, match="name one as NAME, NAME:VERSION, NAME:ALIAS, NAME@KEY or KEY of models"):
            store.find(text, MODEL)


def test_an_alias_of_a_version_that_was_deleted_by_hand_says_so(store: Store, tmp_path: Path) -> None:
    first, second = (store.add(*entry(tmp_path, key=key)) for key in KEYS[:2])
    store.promote(first, "old", "ada", 1.0)
    store.promote(second, "prod", "ada", 1.0)
    store.storage.remove(folder(second.reference))
    known = r"is not in the store .*; it has: ratings:1, ratings:old, ratings:prod \(ratings:2, which cannot be read\)$"
    with pytest.raises(InputError, match=known):
        store.find("ratings:prod")


def test_a_name_of_a_data_set_and_of_a_model_needs_its_kind(store: Store, tmp_path: Path) -> None:
    store.add(*entry(tmp_path, KEYS[0]))
    store.add(*entry(tmp_path, KEYS[1], kind=MODEL))
    with pytest.raises(InputError, match="can be any of datasets:ratings@aaaaaaaaaaaa, models:ratings@bbbbbbbbbbbb"):
        store.find("ratings")
    assert store.find("models:ratings").key == KEYS[1]


def test_numbers_are_given_once_and_not_again_after_a_removal(store: Store, tmp_path: Path) -> None:
    for key in KEYS[:2]:
        store.add(*entry(tmp_path, key))
    store.remove(store.find("ratings:2"))
    assert store.find("ratings").title == "ratings:1"
    assert store.add(*entry(tmp_path, KEYS[2])).title == "ratings:3"
    assert store.add(*entry(tmp_path, KEYS[1])).title == "ratings:2"


def test_a_damaged_version_does_not_hide_the_others(store: Store, tmp_path: Path) -> None:
    for key in KEYS[:2]:
        store.add(*entry(tmp_path, key))
    store.storage.remove(f"datasets/ratings/{KEYS[0]}/manifest.json")
    store.storage.write(f"datasets/ratings/{KEYS[0]}/manifest.json", b"{}")
    assert store.find("ratings").title == "ratings:2"
    with pytest.raises(SpotmpiError, match="was edited or damaged"):
        store.find("ratings:1")


def test_a_key_that_begins_like_another_is_refused(store: Store, tmp_path: Path) -> None:
    store.add(*entry(tmp_path, KEYS[0]))
    store.add(*entry(tmp_path, KEYS[0][:-1] + "b"))
    with pytest.raises(InputError, match="can be any of datasets:ratings@aaaaaaaaaaaa, datasets"):
        store.find("aaaaaaaa")


def test_references_are_told_from_paths_and_functions() -> None:
    assert is_reference("datasets:ratings") and is_reference("models:digits@aaa")
    assert not is_reference("ratings") and not is_reference("sets:ratings") and not is_reference("s3://set")


def test_an_edited_manifest_is_an_error_and_the_others_are_still_listed(store: Store, tmp_path: Path) -> None:
    whole, damaged = entry(tmp_path, KEYS[0]), entry(tmp_path, KEYS[1])
    for made, sources in (whole, damaged):
        store.add(made, sources)
    name = f"{folder(damaged[0].reference)}/manifest.json"
    values = json.loads(store.storage.read(name) or b"")
    if store.storage.folder:
        (store.storage.folder / name).chmod(0o644)
    store.storage.write(name, json.dumps({**values, "created": 5.0}).encode())
    with pytest.raises(SpotmpiError, match="was edited or damaged, its digest is not that of its content"):
        store.list()
    lines: list[str] = []
    assert [each.key for each in store.list(on_damage=lines.append)] == [whole[0].key]
    assert len(lines) == 1 and "restore it from a copy" in lines[0]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"digest": 1}', '{"format": 1, "digest": ""}', "\0", "{" * 10_000, "[" * 100_000]
)
def test_what_is_no_manifest_is_an_error_of_one_line(text: str) -> None:
    with pytest.raises(SpotmpiError, match="the manifest there was edited or damaged"):
        form.read(text, "there")


def test_a_manifest_of_a_later_format_names_the_remedy(tmp_path: Path) -> None:
    text = form.write(entry(tmp_path)[0])
    with pytest.raises(SpotmpiError, match="has the format 2: update spotmpi, which reads format 1"):
        form.read(json.dumps({**json.loads(text), "format": 2}), "there")


def test_a_moved_manifest_is_an_error(store: Store, tmp_path: Path) -> None:
    made, sources = entry(tmp_path)
    store.add(made, sources)
    content = store.storage.read(f"{folder(made.reference)}/manifest.json") or b""
    store.storage.write(f"datasets/other/{KEYS[1]}/manifest.json", content)
    with pytest.raises(SpotmpiError, match="is of datasets:ratings@aaaaaaaaaaaa: it was moved"):
        store.find("other")


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "a/b", "ä", "x" * 101, "trailing."])
def test_names_that_are_no_folder_names_are_refused(store: Store, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="use up to 100 letters"):
        store.add(*entry(tmp_path, name=name))
    assert store.list() == []


def test_a_file_whose_name_cannot_be_printed_is_refused_with_the_remedy(store: Store, tmp_path: Path) -> None:
    made, sources = entry(tmp_path, files=(File("a\nb", 0, "0" * 64),))
    with pytest.raises(InputError, match="is not a relative path of an entry: rename what cannot be printed"):
        store.add(made, {"a\nb": sources["a.txt"]})


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../up", "a//b", "a/./b", "line\nbreak"])
def test_files_outside_of_an_entry_are_refused(store: Store, tmp_path: Path, path: str) -> None:
    made, sources = entry(tmp_path, files=(File(path, 0, "0" * 64),))
    with pytest.raises(InputError, match="is not a relative path of an entry"):
        store.add(made, {path: sources["a.txt"]})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"files": [{"path": "../../../../x/.profile", "bytes": 5, "sha256": "0" * 64}]}, r"files = '\.\./"),
        ({"files": [{"path": "/etc/x", "bytes": 5, "sha256": "0" * 64}]}, "files = '/etc/x'"),
        ({"run": "../../elsewhere"}, r"run = '\.\./"),
    ],
)
def test_what_leads_out_of_the_store_or_the_runs_folder_is_not_read(
    store: Store, tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    """Whoever shares a store can write a manifest by hand: its paths are joined to folders of this machine."""
    made, sources = entry(tmp_path)
    store.add(made, sources)
    name = f"{folder(made.reference)}/manifest.json"
    values = {**json.loads(store.storage.read(name) or b""), **changes}
    del values["digest"]
    if store.storage.folder:
        (store.storage.folder / name).chmod(0o644)
    store.storage.write(name, json.dumps({**values, "digest": form.digest_of(values)}).encode())
    with pytest.raises(SpotmpiError, match=rf"the manifest .* is not one that spotmpi writes: {field}"):
        store.find("ratings")
    lines: list[str] = []
    assert store.list(on_damage=lines.append) == [] and len(lines) == 1


def test_two_files_of_one_path_are_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is the name of two files"):
        store.add(*entry(tmp_path, files=(File("a.txt", 0, "0" * 64), File("a.txt", 1, "1" * 64))))


def test_rot_is_found_in_files_and_parents(store: Store, tmp_path: Path) -> None:
    parent = Reference(DATASET, "raw", KEYS[2])
    made, sources = entry(tmp_path, parents=(parent,))
    store.add(made, sources)
    remedy = "copy its folder from a store that has it, or build it again as it was"
    lack = f"missing from the store {store.storage.url}: {remedy}"
    assert store.problems(made) == [f"datasets:ratings@aaaaaaaaaaaa: its parent datasets:raw@cccccccccccc is {lack}"]
    files = f"{folder(made.reference)}/files"
    if store.storage.folder:
        (store.storage.folder / files / "a.txt").chmod(0o644)
    store.storage.write(f"{files}/a.txt", b"fIrst")
    store.storage.write(f"{files}/stray", b"")
    store.storage.remove(f"{files}/more/b.txt")
    lines = store.problems(made)
    assert [line.partition(": ")[2].partition(":")[0] for line in lines[:3]] == [
        "a.txt is damaged",
        "more/b.txt is missing",
        "stray is not a file of it",
    ]
    assert len(lines) == 4


def test_an_entry_is_removed_unless_another_one_was_made_from_it(store: Store, tmp_path: Path) -> None:
    made, sources = entry(tmp_path)
    child, _ = entry(tmp_path, KEYS[1], name="train", parents=(made.reference,))
    store.add(made, sources)
    store.add(child, sources)
    with pytest.raises(SpotmpiError, match="is a parent of datasets:train@bbbbbbbbbbbb: remove what was made from it"):
        store.remove(made)
    store.remove(child)
    store.remove(made)
    assert store.list() == [] and not [name for name in store.storage.files("datasets") if ".versions" not in name]


def test_files_of_the_store_are_linked_and_cannot_be_written_by_mistake(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    made, sources = entry(tmp_path)
    store.add(made, sources)
    old = f"{folder(made.reference)}/files"
    again, _ = entry(tmp_path, KEYS[1])
    store.add(again, {path: f"{old}/{path}" for path in sources})
    first, second = (Path(store.place(each.reference), "a.txt") for each in (made, again))
    assert first.samefile(second) and not first.samefile(sources["a.txt"])
    assert first.stat().st_mode & 0o222 == 0 and os.access(sources["a.txt"], os.W_OK)


def test_a_full_disk_leaves_no_entry_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = Store(str(tmp_path / "store"))
    made, sources = entry(tmp_path)
    store.add(*entry(tmp_path, KEYS[1]))
    monkeypatch.setattr(storage_module, "_synced", full)
    with pytest.raises(SpotmpiError, match="cannot be written: No space left on device; free space there, then"):
        store.add(made, sources)
    assert [each.key for each in store.list()] == [KEYS[1]]
    assert sorted(path.name for path in (tmp_path / "store/datasets/ratings").iterdir()) == [".versions", KEYS[1]]


def test_an_upload_that_broke_off_is_no_entry_and_the_next_one_completes_it(store: Store, tmp_path: Path) -> None:
    made, sources = entry(tmp_path)
    with pytest.raises(SpotmpiError, match="cannot be written"):
        store.add(made, {**sources, "more/b.txt": str(tmp_path / "absent")})
    assert store.list() == [] and store.get(made.reference) is None
    assert store.add(made, sources) == store.find("ratings")
    assert store.problems(made) == []


def test_what_a_killed_process_has_left_is_removed_by_the_next_one_unless_another_one_writes(tmp_path: Path) -> None:
    """A copy of ten gigabytes would stay for ever, hidden."""
    store = Store(str(tmp_path / "store"))
    store.add(*entry(tmp_path))
    place = tmp_path / "store" / DATASET / "ratings"
    left = place / ".writing-1"
    (left / "files").mkdir(parents=True)
    (left / "files" / "large").write_text("cut o")
    with locked(place):  # as by a process that writes another version
        store.add(*entry(tmp_path, KEYS[1]))
        assert left.exists()
    store.add(*entry(tmp_path, KEYS[2]))
    assert sorted(path.name for path in place.iterdir()) == [".versions", *KEYS]


def test_an_entry_on_nfs_whose_file_is_open_is_removed_and_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of it is removed with the next one that is made."""
    nfs.keep_open_files(monkeypatch)
    store = Store(str(tmp_path / "store"))
    made, sources = entry(tmp_path)
    store.add(made, sources)
    place = tmp_path / "store" / DATASET / "ratings"
    with (place / KEYS[0] / "files" / "a.txt").open():
        store.remove(made)
        assert store.list() == []
        store.add(made, sources)
        assert store.problems(made) == [] and len(list(place.glob(".writing-*"))) == 1
    store.add(*entry(tmp_path, KEYS[1]))
    assert sorted(path.name for path in place.iterdir()) == [".versions", *KEYS[:2]]


def test_one_of_many_creators_at_once_wins_and_all_get_its_entry(store: Store, tmp_path: Path) -> None:
    barrier, winners = threading.Barrier(8), list[float]()

    def add(number: int) -> None:
        made, sources = entry_of[number]
        barrier.wait(60)
        winners.append(store.add(made, sources).created)

    entry_of = [entry(tmp_path, created=float(number)) for number in range(8)]
    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(winners) == 8 and len(set(winners)) == 1
    assert store.problems(store.find("ratings")) == []


def test_a_store_in_the_folder_of_the_code_is_not_shipped_with_it(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("")
    Store(str(tmp_path / "code/store")).add(*entry(tmp_path))
    assert code_folder.names(tmp_path / "code") == ["train.py"]


def test_the_default_store_is_beside_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTMPI_RUNS", str(tmp_path / "runs"))
    assert Store().storage.url == str(tmp_path / "store")
    monkeypatch.setenv("SPOTMPI_STORE", "memory://sets/")
    assert Store().storage.url == "memory://sets"


def test_an_unknown_protocol_is_an_error_of_one_line() -> None:
    with pytest.raises(SpotmpiError, match=r"nothing://here cannot be opened: .*: nothing; name a folder by SPOT"):
        Store("nothing://here").list()


@pytest.mark.parametrize("use", ["list", "find", "add", "versions"])
@pytest.mark.parametrize(
    ("url", "place", "what"),
    [
        ("file", "file", "not a folder"),
        ("file/below/store", "file", "not a folder"),
        ("link", "link", "a link to what is not there"),
        ("link/store", "link", "a link to what is not there"),
        ("to-file/store", "to-file", "not a folder"),
    ],
)
def test_a_store_that_is_no_folder_is_an_error_and_not_empty(
    tmp_path: Path, url: str, place: str, what: str, use: str
) -> None:
    """It listed as empty, and what `models keep` said was that .gitignore could not be written: File exists."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "unmounted")
    (tmp_path / "to-file").symlink_to(tmp_path / "file")
    opened = Store(str(tmp_path / url))
    calls: dict[str, Callable[[], object]] = {"find": lambda: opened.find("ratings"), "list": opened.list}
    calls |= {"add": lambda: opened.add(*entry(tmp_path)), "versions": opened.versions(DATASET, "x").numbers}
    with pytest.raises(SpotmpiError) as caught:
        calls[use]()
    remedy = "name a folder by SPOTMPI_STORE, or correct this one"
    assert str(caught.value) == f"the store {tmp_path / url} cannot be used: {tmp_path / place} is {what}; {remedy}"


def test_a_file_among_the_entries_of_a_store_is_none(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    assert store.list() == []
    store.add(*entry(tmp_path))
    (tmp_path / "store" / "datasets" / "README.md").write_text("what is here")
    assert [each.title for each in store.list()] == ["ratings:1"]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.EROFS, "mount it for writing"), (errno.EACCES, "check who may read"), (errno.EIO, "check the storage")],
)
def test_what_helps_depends_on_why_a_store_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(storage_module, "_synced", refuse)
    with pytest.raises(SpotmpiError, match=rf"cannot be written: {os.strerror(number)}; {remedy}.*, then try again$"):
        Store(str(tmp_path / "store")).add(*entry(tmp_path))


def test_a_store_in_a_folder_needs_no_fsspec() -> None:
    code = "import sys; from spotmpi.entries.store import Store; Store('x').list(); assert 'fsspec' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_what_an_interrupted_removal_has_left_is_no_entry_and_in_nobodys_way(store: Store, tmp_path: Path) -> None:
    made, sources = entry(tmp_path)
    store.add(made, sources)
    store.storage.remove(f"{folder(made.reference)}/manifest.json")
    store.storage.remove(f"{folder(made.reference)}/files/a.txt")
    assert store.list() == []
    later, _ = entry(tmp_path, created=2.0)
    assert store.add(later, sources) == store.find("ratings") and store.find("ratings").created == 2.0
    assert store.problems(later) == []


def test_an_address_without_a_bucket_is_refused() -> None:
    """It listed no models in "s3:"."""
    with pytest.raises(InputError, match=r"store = 's3://': names no bucket or host: write it like s3://bucket/store"):
        Store("s3://")
