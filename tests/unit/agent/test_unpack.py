"""Archives are unpacked beneath their folder, whatever is in them, by one function that runs in pods as well."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotmpi.agent import store
from spotmpi.agent import unpack as unpacking
from spotmpi.agent.unpack import DAMAGES, unpack
from spotmpi.plan import volume_pod
from tests.unit.archives import HOME, Entry, archive, entry, folder, link, long_way

ROOT = Path(__file__).parents[3]


class Machine:
    """A folder to unpack into, beside a home that nothing may touch."""

    def __init__(self, top: Path) -> None:
        self.home, self.folder = top / "home", top / "runs" / "one"
        self.home.mkdir()
        self.folder.mkdir(parents=True)
        self.secret.write_text("old")

    @property
    def secret(self) -> Path:
        return self.home / ".bashrc"

    def unpack(self, packed: bytes) -> dict[str, str]:
        skipped: dict[str, str] = {}
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as tar:
            unpack(tar, str(self.folder), skipped)
        return skipped

    def unpack_files(self, *entries: Entry) -> None:
        with tarfile.open(fileobj=io.BytesIO(archive(*entries)), mode="r:") as tar:
            unpack(tar, str(self.folder))

    def require_untouched(self) -> None:
        """Nothing outside of the folder has changed, and no link in it leads out."""
        assert [path.name for path in self.home.iterdir()] == [".bashrc"]
        assert (self.secret.read_text(), self.secret.stat().st_nlink) == ("old", 1)
        assert sorted(path.name for path in self.home.parent.iterdir()) == ["home", "runs"]
        assert [path.name for path in self.folder.parent.iterdir()] == ["one"]
        for place, folders, files in os.walk(self.folder):
            for name in (*folders, *files):
                path = Path(place, name)
                assert os.path.realpath(path).startswith(f"{self.folder}"), path
                kind = path.lstat()
                assert path.is_symlink() or path.is_dir() or path.is_file()
                assert path.is_symlink() or not kind.st_mode & 0o7022, "no special bits, no writing by others"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


HOSTILE = {
    "name above the folder": [entry(f"{HOME}/.bashrc")],
    "absolute name": [entry("/tmp/absolute")],
    "name above in the middle": [folder("a"), entry(f"a/../{HOME}/.bashrc")],
    "link, then a file through it": [link("out", HOME), entry("out/.bashrc")],
    "absolute link, then a file through it": [link("out", "/tmp"), entry("out/absolute")],
    "link to a file, then its content": [link("rc", f"{HOME}/.bashrc"), entry("rc")],
    "link through a link": [link("here", "."), link("out", f"here/../{HOME}"), entry("out/.bashrc")],
    "link that is moved up by a later one": [
        folder("a"),
        link("x", f"a/../{HOME}"),
        link("a", "."),
        entry("x/.bashrc"),
    ],
    "folder that becomes a link": [folder("a"), link("a", HOME), entry("a/.bashrc")],
    "hard link to the outside": [entry("hard", tarfile.LNKTYPE, f"{HOME}/.bashrc"), entry("hard")],
    "hard link to a link": [link("l", f"{HOME}/.bashrc"), entry("hard", tarfile.LNKTYPE, "l"), entry("hard")],
    "link beyond PATH_MAX": [*long_way(), entry("escape/.bashrc")],
    "device": [entry("null", tarfile.CHRTYPE)],
    "pipe": [entry("pipe", tarfile.FIFOTYPE)],
    "unknown kind": [entry("odd", b"Z")],
    "name with a zero": [entry("a\0b")],
    "path beyond PATH_MAX": [entry("d/" * 190 + "n" * 250), entry(f"{'d' * 250}/" * 17 + "x")],
    "more folders than rmtree takes": [entry("d/" * 1500 + "x")],
    "name of 300 letters": [entry("n" * 300)],
    "file below a file": [entry("f"), entry("f/x")],
    "folder in place of a file": [entry("f"), folder("f")],
    "file in place of a folder": [folder("d"), entry("d/x"), entry("d")],
    "link to nothing": [link("empty", "")],
    "link to itself": [link("loop", "loop"), entry("loop/x"), entry("loop")],
    "cases": [link("Out", HOME), entry("out/.bashrc"), entry("OUT")],
    "top": [entry("."), entry(""), link("./", HOME), folder("."), folder("./")],
}


@pytest.mark.parametrize("entries", HOSTILE.values(), ids=HOSTILE)
def test_no_archive_writes_outside_of_its_folder(machine: Machine, entries: list[Entry]) -> None:
    packed = archive(*entries, entry("good", content=b"good"))
    for _ in range(2):  # into what it has left, too
        machine.unpack(packed)
        machine.require_untouched()
        assert (machine.folder / "good").read_bytes() == b"good"


@pytest.mark.parametrize("name", ["out", "sub/out", "deep"])
def test_links_that_are_in_the_folder_lead_nowhere_either(machine: Machine, name: str) -> None:
    (machine.folder / "sub").mkdir()
    (machine.folder / "out").symlink_to(machine.home)
    (machine.folder / "sub" / "out").symlink_to(machine.secret)
    (machine.folder / "deep").symlink_to(machine.home)

    with pytest.raises(ValueError, match=f"'{name}/.bashrc' leads through a link or a file"):
        machine.unpack_files(entry(f"{name}/.bashrc"))
    machine.unpack_files(entry(name))

    assert (machine.folder / name).read_bytes() == b"new" and not (machine.folder / name).is_symlink()
    assert machine.secret.read_text() == "old" and len(list(machine.home.iterdir())) == 1


def test_links_that_stay_within_wherever_the_folder_is_are_unpacked(machine: Machine) -> None:
    (machine.folder / "checkpoints").mkdir()
    good = {
        "latest": "checkpoints/7",
        "checkpoints/last": "7",
        "checkpoints/up": "../latest",
        "top": ".",
        "loop": "loop",
    }
    skipped = machine.unpack(archive(*(link(name, target) for name, target in good.items())))
    assert not skipped
    assert {name: str((machine.folder / name).readlink()) for name in good} == good


def test_without_links_each_unfit_member_is_an_error_that_names_it(machine: Machine) -> None:
    for each in (link("soft", "x"), entry("pipe", tarfile.FIFOTYPE), entry("hard", tarfile.LNKTYPE, "x")):
        with pytest.raises(ValueError, match=f"'{each[0].name}' is neither a file nor a folder"):
            machine.unpack_files(each)


def test_a_size_with_which_reading_would_go_backwards_for_ever_is_an_error(machine: Machine) -> None:
    """CVE-2025-8194: the header's size is negative, in the encoding of GNU tar."""
    packed = bytearray(archive(entry("file", content=b"")))
    packed[124:136] = (-1024).to_bytes(12, "big", signed=True)
    packed[148:156] = b" " * 8
    packed[148:156] = b"%06o\0 " % sum(packed[:512])
    with pytest.raises(tarfile.TarError):
        machine.unpack(bytes(packed))


def test_a_file_whose_holes_make_it_larger_than_the_archive_is_left_out(machine: Machine) -> None:
    item, content = entry("big", content=b"x")
    item.pax_headers = {"GNU.sparse.size": str(1 << 50), "GNU.sparse.numblocks": "0", "GNU.sparse.map": "0,1"}
    assert machine.unpack(archive((item, content))) == {"big": "is not a file, folder or link"}


@pytest.mark.parametrize("time", ["nan", "inf", "1e300", "-1e300", "-5"])
def test_no_time_of_a_file_is_an_error(machine: Machine, time: str) -> None:
    item, content = entry("a")
    item.pax_headers = {"mtime": time}
    assert machine.unpack(archive((item, content))) == {}
    assert (machine.folder / "a").read_bytes() == b"new"


def test_a_file_appears_once_it_is_whole(machine: Machine) -> None:
    machine.unpack(archive(entry("a", content=b"old")))
    with pytest.raises(tarfile.TarError):
        machine.unpack(archive(entry("a", content=b"x" * 5000))[:2048])
    assert (machine.folder / "a").read_bytes() == b"old" and [path.name for path in machine.folder.iterdir()] == ["a"]
    assert unpacking.PART == store.PART


def test_errors_of_the_disk_are_not_taken_for_those_of_an_entry(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **values: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        machine.unpack(archive(entry("a")))
    assert not list(machine.folder.iterdir())


def test_it_runs_in_a_pod_as_text_and_reads_its_input_to_the_end(machine: Machine) -> None:
    python, *words = volume_pod.store_command("take", str(machine.folder))
    assert (python, words[:2]) == ("python3", ["-I", "-S"])
    for packed, code in ((archive(entry("a/b")), 0), (archive(entry(f"{HOME}/.bashrc")) + bytes(1 << 20), 1)):
        process = subprocess.run([sys.executable, *words], input=packed, capture_output=True)
        assert process.returncode == code, process.stderr
    assert process.stderr == b"'../../home/.bashrc' is outside of the folder\n"
    assert (machine.folder / "a" / "b").read_bytes() == b"new"


def test_nothing_else_unpacks_archives() -> None:
    sources = list((ROOT / "jobs" / "spotmpi").rglob("*.py"))
    words = ("extractall(", "unpack_archive(", ".extract(", "tar x", "unzip")
    assert not [path for path in sources if any(word in path.read_text() for word in words)]
    readers = [path.name for path in sources if ".extractfile(" in path.read_text()]
    # These read the content of members, and give it no name of its own.
    assert sorted(readers) == [
        "local_source.py",
        "pool_wheels.py",
        "pull.py",
        "recorded_plan.py",
        "store.py",
        "unpack.py",
    ]


NAMES = st.lists(
    st.sampled_from(["..", ".", "", "a", "b", "A", "é", "out", "\udcff", "n" * 256]), min_size=1, max_size=5
)
PATHS = st.builds(lambda absolute, parts: "/" * absolute + "/".join(parts), st.booleans(), NAMES)
KINDS = [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]
ENTRIES = st.lists(st.builds(entry, PATHS, st.sampled_from(KINDS), PATHS), max_size=12)


@contextlib.contextmanager
def new_machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory() as top:
        yield Machine(Path(os.path.realpath(top)))


@given(st.lists(ENTRIES, min_size=1, max_size=3))
@settings(max_examples=100)
def test_no_sequence_of_archives_writes_outside_of_their_folder(
    archives: list[list[Entry]],
) -> None:
    with new_machine() as machine:
        for entries in archives:
            machine.unpack(archive(*entries))
        machine.require_untouched()


@given(st.data())
@settings(max_examples=100)
def test_a_damaged_archive_is_one_of_a_few_errors(data: st.DataObject) -> None:
    packed = bytearray(archive(folder("d"), entry("d/a"), link("d/l", "a"), entry("x" * 120)))
    for _ in range(data.draw(st.integers(1, 6))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with new_machine() as machine:
        with contextlib.suppress(*DAMAGES):
            machine.unpack(bytes(packed))
        machine.require_untouched()
