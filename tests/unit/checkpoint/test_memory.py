"""Checkpoints in memory: at most two, one of them always complete, and problems that cost a line and no training."""

from __future__ import annotations

import errno
import hashlib
import itertools
import mmap
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotmpi.agent import checkpoint_files as files
from spotmpi.agent import hardware, protocol
from spotmpi.checkpoint import memory
from spotmpi.checkpoint.device import DeviceArray
from spotmpi.checkpoint.memory import Memory
from spotmpi.checkpoint.store import Store, StoredCheckpoint, Written, WrongIdentity, store_of_rank
from tests.clocks import SetClock

OURS = {"program": "p", "seed": 0}


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder in memory."""
    folder = Path(f"/dev/shm/spotmpi-test-{os.getpid()}")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def store(shm: Path, volume: Path, every: str = "1", identity: dict[str, Any] = OURS) -> Store:
    """The checkpoints of a new process of the run."""
    own = Store(str(volume), 3, identity, "run-1", Memory(str(shm), every, "run-1"))
    own.prepare()
    return own


def remember(own: Store, *iterations: int, size: int = 3) -> Memory:
    memory = own.memory
    assert memory is not None
    for iteration in iterations:
        own.remember(iteration, {}, {"a": np.full(size, iteration)})
    memory.wait()
    return memory


def newest(shm: Path, volume: Path) -> StoredCheckpoint:
    found = store(shm, volume).newest()
    assert found is not None
    return found


def test_the_newest_one_in_memory_is_loaded_by_a_new_process(shm: Path, tmp_path: Path) -> None:
    remember(store(shm, tmp_path), 1, 2, 3)

    found = newest(shm, tmp_path)

    assert (found.path, found.state["a"].tolist()) == (str(shm / "iteration-000000003"), [3, 3, 3])
    assert sorted(path.name for path in shm.iterdir()) == ["iteration-000000002", "iteration-000000003"]


@pytest.mark.parametrize(("in_memory", "on_volume"), [(5, 4), (4, 5), (5, 5)])
def test_the_newest_one_anywhere_is_loaded(shm: Path, tmp_path: Path, in_memory: int, on_volume: int) -> None:
    own = store(shm, tmp_path)
    own.write(on_volume, {}, {"a": np.full(3, on_volume)}, "timer")
    remember(own, in_memory)

    found = newest(shm, tmp_path)

    assert found.state["a"][0] == found.manifest["iteration"] == 5
    assert found.path.startswith(str(shm if in_memory == 5 else tmp_path))


@given(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.integers(0, 9))
def test_in_whatever_order_sizes_change_two_are_complete_and_no_other_file_takes_memory(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], restart: int
) -> None:
    """A new process takes over after *restart* of them."""
    folder = tmp_path_factory.mktemp("volume")
    shm = Path(f"/dev/shm/spotmpi-test-{os.getpid()}-{folder.name}")
    try:
        own = store(shm, folder)
        for iteration, size in enumerate(sizes, start=1):
            own = store(shm, folder) if iteration == restart else own
            remember(own, iteration, size=10**size)
            names = sorted(path.name for path in shm.iterdir())
            assert names == [files.name_of(each) for each in range(max(1, iteration - 1), iteration + 1)]
        assert np.array_equal(newest(shm, folder).state["a"], np.full(10 ** sizes[-1], len(sizes)))
    finally:
        shutil.rmtree(shm, ignore_errors=True)


def test_files_are_written_over_and_not_made_anew(shm: Path, tmp_path: Path) -> None:
    own = store(shm, tmp_path)
    remember(own, 1, 2)
    inodes = {path.stat().st_ino for path in shm.glob("*/state.safetensors")}
    remember(own, 3, 4, 5)

    assert {path.stat().st_ino for path in shm.glob("*/state.safetensors")} == inodes


def test_one_that_is_being_read_by_a_link_is_not_written_over(shm: Path, tmp_path: Path) -> None:
    own = store(shm, tmp_path)
    remember(own, 1, 2)
    content = (shm / "iteration-000000001" / files.STATE).read_bytes()
    os.link(shm / "iteration-000000001" / files.STATE, shm / "link")

    remember(own, 3, 4)

    assert (shm / "link").read_bytes() == content
    assert newest(shm, tmp_path).manifest["iteration"] == 4
    assert len(list(shm.glob("iteration-*"))) == 2


@pytest.mark.parametrize("damage", ["state", "manifest", "half"])
def test_a_damaged_or_unfinished_one_is_ignored_with_a_line(
    shm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    remember(store(shm, tmp_path), 1, 2)
    path = shm / "iteration-000000002"
    if damage == "half":
        (path / files.MANIFEST).unlink()
        path.rename(shm / ".writing-000000003-run-1-77")
    else:
        file = path / (files.STATE if damage == "state" else files.MANIFEST)
        file.write_bytes(file.read_bytes()[:-3] + b"xyz")

    assert newest(shm, tmp_path).manifest["iteration"] == 1
    line = capsys.readouterr().err
    assert ("checkpoint iteration-000000002 in memory is damaged and was removed: " in line) == (damage != "half")
    assert [each.name for each in shm.iterdir()] == ["iteration-000000001"]


@pytest.fixture(params=[1, 16], ids=["1 core", "16 cores"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Pieces of 1,000 bytes, whose digests are computed by one thread or four; the size of a state of several."""
    monkeypatch.setattr(files, "PIECE", 1000)
    monkeypatch.setattr(hardware, "usable_cores", lambda: request.param)
    return 900  # float64


@pytest.mark.parametrize("place", [0, 999, 1000, 5500, -1])
def test_a_byte_that_is_another_is_found_in_each_piece(
    shm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], pieces: int, place: int
) -> None:
    remember(store(shm, tmp_path), 1, 2, size=pieces)
    assert newest(shm, tmp_path).manifest["iteration"] == 2
    state = shm / "iteration-000000002" / files.STATE
    data = bytearray(state.read_bytes())
    data[place] ^= 1
    state.write_bytes(data)
    found = newest(shm, tmp_path)
    assert found.manifest["iteration"] == 1 and found.state["a"].tolist() == [1.0] * pieces
    assert "does not match its checksum in the manifest" in capsys.readouterr().err


def test_on_the_volume_a_state_has_the_digest_that_sha256sum_prints(shm: Path, tmp_path: Path, pieces: int) -> None:
    remember(store(shm, tmp_path), 1, size=pieces)
    copy_to_the_volume(shm, tmp_path, 1)
    copy = tmp_path / files.name_of(1)
    described = files.read_manifest(str(copy))["files"][files.STATE]
    content = (copy / files.STATE).read_bytes()
    assert described == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert content == (shm / files.name_of(1) / files.STATE).read_bytes()


@pytest.mark.parametrize("changed", [1, 4, 7])
def test_what_arrives_damaged_in_any_piece_is_not_a_checkpoint(
    shm: Path, tmp_path: Path, pieces: int, changed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_PART", 900)  # each has the end of a piece and the start of the next one
    remember(store(shm, tmp_path), 1, size=pieces)
    parts = itertools.count()
    with pytest.raises(files.Damaged, match="checksum"):
        copy_to_the_volume(shm, tmp_path, 1, lambda part: part[:-1] + b"x" if next(parts) == changed else part)
    assert files.names(str(tmp_path)) == []
    copy_to_the_volume(shm, tmp_path, 1)
    assert files.names(str(tmp_path)) == [files.name_of(1)]


def test_gpus_may_write_to_a_file_as_long_as_it_is_mapped(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA: memory that is registered has to be unregistered before it is freed, and cannot be registered twice."""
    locked: list[int] = []

    def page_lock(mapped: mmap.mmap) -> Callable[[], None]:
        own, reference = id(mapped), weakref.ref(mapped)
        assert own not in locked
        locked.append(own)

        def unlock() -> None:
            assert reference() is not None, "it is mapped no more"
            locked.remove(own)

        return unlock

    def on_gpu(size: int) -> DeviceArray:
        return DeviceArray("|u1", (size,), size, lambda start, data: lambda: data.__setitem__(slice(None), bytes(size)))

    monkeypatch.setattr(memory, "page_lock", page_lock)
    own = store(shm, tmp_path)
    remember(own, 1, 2, 3)
    assert locked == [], "nothing was on a GPU"
    for iteration, size in enumerate([100, 100, 100, 100, 200, 300, 300], start=4):
        own.remember(iteration, {}, {"a": on_gpu(size)})
        assert own.memory is not None
        own.memory.wait()
        assert newest(shm, tmp_path).state["a"].tolist() == [0] * size
        assert 1 <= len(locked) <= 2


def copy_to_the_volume(shm: Path, volume: Path, iteration: int, read: Callable[[bytes], bytes] = bytes) -> None:
    """Copy a checkpoint from memory to the volume, as agents do; *read* may change each piece or end the process."""
    path = shm / files.name_of(iteration)
    with (path / files.STATE).open("rb") as state:
        manifest = files.read_manifest(str(path))
        files.receive(lambda size: read(state.read(size)), manifest, str(volume), "run-1", to_volume=True)


def test_what_a_killed_copy_to_the_volume_left_is_removed_by_the_next_attempt(shm: Path, tmp_path: Path) -> None:
    remember(store(shm, tmp_path), 1)
    child = os.fork()
    if child == 0:
        try:
            copy_to_the_volume(shm, tmp_path, 1, lambda piece: os._exit(9))
        finally:
            os._exit(1)  # it was not called, and a second pytest would go on from here
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9 and len(list(tmp_path.iterdir())) == 1
    store(shm, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_copy_to_the_volume_replaces_what_a_killed_process_of_the_same_id_left(shm: Path, tmp_path: Path) -> None:
    """An agent in a pod often has the process id of the one before."""
    remember(store(shm, tmp_path), 1)
    left = Path(files.unfinished(str(tmp_path), "000000001", "run-1"))
    left.mkdir()
    (left / files.STATE).write_bytes(b"half")
    copy_to_the_volume(shm, tmp_path, 1)
    assert [each.name for each in tmp_path.iterdir()] == ["iteration-000000001"]


def test_one_of_another_identity_is_refused(shm: Path, tmp_path: Path) -> None:
    remember(store(shm, tmp_path), 1)
    with pytest.raises(WrongIdentity, match=r"belongs to seed 0 \(not 1\)"):
        store(shm, tmp_path, identity={**OURS, "seed": 1}).newest()


@pytest.mark.parametrize(
    ("lack", "remedy"),
    [("folder", "free memory there, or omit checkpoint.memory"), ("pod", "raise resources.memory")],
    ids=["folder", "pod"],
)
def test_what_does_not_fit_twice_costs_a_line_and_goes_to_the_volume_alone(
    shm: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lack: str,
    remedy: str,
) -> None:
    if lack == "folder":
        usage = shutil.disk_usage("/")._replace(free=1_000_000)
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    else:
        monkeypatch.setattr(hardware, "available_memory", lambda cgroup: 1_000_000)
    own = store(shm, tmp_path)
    memory = remember(own, 1, 2, size=100_000)

    assert capsys.readouterr().err == (
        f"no more checkpoints are written to memory ({shm}): 2 checkpoints of 0.8 MB do not fit into 1.0 MB: "
        f"{remedy}; they go to the volume alone\n"
    )
    assert not memory.due(3) and not list(shm.glob("iteration-*"))


@pytest.mark.parametrize("call", ["posix_fallocate", "rename"])
def test_a_full_memory_costs_a_line_and_not_the_process(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], call: str
) -> None:
    own = store(shm, tmp_path)
    remember(own, 1)

    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, call, refuse)
        remember(own, 2)

    assert capsys.readouterr().err.count("No space left on device; they go to the volume alone") == 1
    assert newest(shm, tmp_path).manifest["iteration"] == 1


def test_the_state_is_copied_before_training_changes_it(shm: Path, tmp_path: Path) -> None:
    own, weights = store(shm, tmp_path), np.zeros(1_000_000)
    own.remember(1, {}, {"a": weights})
    weights += 1
    remember(own)

    assert not newest(shm, tmp_path).state["a"].any()


@pytest.mark.parametrize(
    ("every", "due"), [("1", [1, 2, 3, 4, 5, 6, 7]), ("3", [3, 6]), ("2s", [2, 4, 6]), ("2.5s", [3, 6])]
)
def test_one_is_due_each_so_many_iterations_or_seconds(shm: Path, every: str, due: list[int]) -> None:
    clock = SetClock()
    memory = Memory(str(shm), every, "run-1", clock.uptime)
    memory.prepare()
    found = []
    for iteration in range(1, 8):
        clock.sleep(1)
        if memory.due(iteration):
            found.append(iteration)
            memory.write(iteration, {"iteration": iteration}, [memoryview(b"x")])
    memory.wait()

    assert found == due


def test_the_environment_of_a_rank_says_where_and_how_often(tmp_path: Path) -> None:
    variables = {protocol.ENV_CHECKPOINT_MEMORY: "10s", protocol.ENV_CHECKPOINT_MEMORY_PATH: "/dev/shm/x"}
    memory = store_of_rank(variables, str(tmp_path), 1, {}).memory
    assert memory is not None and memory.folder == "/dev/shm/x" and memory.names() == []
    assert store_of_rank({}, str(tmp_path), 1, {}).memory is None


def test_without_a_thread_checkpoints_are_completed_before_training_goes_on(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pod may have a limit of threads, which the loaders of data use up for a while."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    own = store(shm, tmp_path)
    ended: list[Written] = []
    remember(own, 1, 2)
    own.write_later(2, {}, {"a": np.full(3, 2)}, ended.append)
    assert files.newest_iteration(str(shm)) == files.newest_iteration(str(tmp_path)) == 2
    assert [each.problem for each in ended] == [None]

    monkeypatch.undo()  # a thread can be started again, which has nothing of before to do
    remember(own, 3)
    assert files.names(str(shm)) == [files.name_of(2), files.name_of(3)]
    assert "no more checkpoints" not in capsys.readouterr().err
