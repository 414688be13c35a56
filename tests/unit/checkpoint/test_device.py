"""Arrays on a GPU in checkpoints: they come to the host in the background, as they were when the checkpoint was taken.

An array on the host, which is copied only once a test lets it, stands for one on a GPU: how PyTorch's and CuPy's are
copied there, `./scripts/gpu-check` shows on a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotmpi.checkpoint import memory
from spotmpi.checkpoint.device import DeviceArray, copy_on_device, fill, on_host, transfers
from spotmpi.checkpoint.memory import Memory
from spotmpi.checkpoint.state import bytes_of, decode, encode
from spotmpi.checkpoint.store import Store, Written

WAIT = 30.0  # seconds for anything


class OnGpu:
    """An array whose copies reach the host once `gate` is set."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.gate = threading.Event()

    def copied(self) -> DeviceArray:
        copy = self.array.copy()

        def begin(start: int, data: memoryview) -> Callable[[], None]:
            def wait() -> None:
                assert self.gate.wait(WAIT)
                data[:] = memoryview(copy.reshape(-1).view(np.uint8))

            return wait

        return DeviceArray(copy.dtype.str, copy.shape, copy.nbytes, begin)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    kept = Store(str(tmp_path / "volume"), 3, {"model": "a"}, "run-1", Memory(str(tmp_path / "memory"), "1", "run-1"))
    kept.prepare()
    return kept


def found(store: Store) -> tuple[int, Any]:
    newest = store.newest()
    assert newest is not None
    return newest.manifest["iteration"], newest.state


def test_a_file_has_the_same_bytes_as_of_an_array_on_the_host() -> None:
    array = np.arange(12, dtype="f4").reshape(3, 4)
    gpu = OnGpu(array)
    gpu.gate.set()
    parts = encode({"a": gpu.copied(), "b": 1})
    assert b"".join(map(bytes_of, parts)) == b"".join(map(bytes_of, encode({"a": array, "b": 1})))
    assert np.array_equal(decode(bytearray(b"".join(map(bytes_of, parts))))["a"], array)
    assert np.array_equal(on_host(gpu.copied()), array) and gpu.copied().dtype == np.float32
    assert copy_on_device([array]) == [None], "what is on the host stays there"


def test_neighbours_come_to_the_host_at_once_piece_by_piece() -> None:
    copied: list[tuple[str, int, int]] = []

    def source(name: str, content: bytes) -> Callable[[int, memoryview], Callable[[], None]]:
        def begin(start: int, data: memoryview) -> Callable[[], None]:
            copied.append((name, start, len(data)))
            return lambda: data.__setitem__(slice(None), content[start : start + len(data)])

        return begin

    one, other = source("one", b"abcdefgh"), source("other", b"ABCDEFGH")
    arrays = [(one, 0, 2), (one, 2, 0), (one, 2, 3), (one, 6, 2), (other, 0, 4), (other, 4, 4)]
    buffer, place, places = bytearray(20), 1, []
    for begin, start, size in arrays:
        place += start == 4  # a gap in the buffer
        places.append((DeviceArray("|u1", (size,), size, begin, start), place))
        place += size
    pending = transfers(places)
    fill(memoryview(buffer), 0, 4, pending)
    fill(memoryview(buffer), 4, 20, pending)
    assert bytes(buffer) == b"\0abcdeghABCD\0EFGH\0\0\0"
    assert copied == [("one", 0, 3), ("one", 3, 2), ("one", 6, 2), ("other", 0, 4), ("other", 4, 4)]


def test_a_checkpoint_in_memory_does_not_wait_for_the_copy_to_the_host(store: Store) -> None:
    assert store.memory is not None
    gpu = OnGpu(np.arange(4))
    here = np.ones(2)
    store.remember(7, {}, {"on gpu": gpu.copied(), "here": here})
    here += 1  # training goes on
    gpu.array += 1
    assert store.memory.names() == [], "it is not complete"
    gpu.gate.set()
    store.memory.wait()
    iteration, kept = found(store)
    assert iteration == 7
    assert kept["on gpu"].tolist() == [0, 1, 2, 3] and kept["here"].tolist() == [1, 1]


def test_a_large_one_is_left_out_while_the_one_before_is_being_completed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.memory is not None
    monkeypatch.setattr(memory, "_WAITED_FOR", 8)
    gpu = OnGpu(np.zeros(100))
    assert store.memory.due(1)
    store.remember(1, {}, {"a": gpu.copied()})
    assert not store.memory.due(2)
    gpu.gate.set()
    store.memory.wait()
    assert store.memory.due(3)


def test_a_small_one_is_waited_for_and_none_is_left_out(store: Store) -> None:
    assert store.memory is not None
    gpu = OnGpu(np.zeros(100))
    store.remember(1, {}, {"a": gpu.copied()})
    assert store.memory.due(2)
    threading.Timer(0.05, gpu.gate.set).start()
    store.remember(2, {}, {"a": gpu.copied()})
    store.memory.wait()
    assert found(store)[0] == 2


def test_one_to_the_volume_does_not_wait_either(store: Store) -> None:
    gpu, ended = OnGpu(np.arange(3.0)), threading.Event()
    written: list[Written] = []

    def end(checkpoint: Written) -> None:
        written.append(checkpoint)
        ended.set()

    store.write_later(5, {}, {"a": gpu.copied()}, end)
    assert not ended.is_set()
    gpu.gate.set()
    assert ended.wait(WAIT) and written[0].problem is None
    iteration, kept = found(store)
    assert (iteration, kept["a"].tolist()) == (5, [0.0, 1.0, 2.0])


def test_one_before_an_end_is_there_when_the_call_returns(store: Store) -> None:
    gpu = OnGpu(np.arange(3.0))
    gpu.gate.set()
    store.write(6, {}, {"a": gpu.copied()}, "notice")
    assert found(store)[0] == 6
