"""Checkpoints to the volume that are written while training goes on: one at a time, complete or absent."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotmpi.agent import hardware, protocol
from spotmpi.agent.files import is_locked
from spotmpi.checkpoint import store as checkpoint_store
from spotmpi.checkpoint.memory import Memory
from spotmpi.checkpoint.session import Session
from spotmpi.checkpoint.store import Store, Written
from tests.clocks import SetClock


class SlowVolume:
    """A volume on which a call of the thread, fsync or mkdir, waits until `answer`; those of others do not."""

    def __init__(self, patch: pytest.MonkeyPatch, call: str) -> None:
        self._reached, self._answers = threading.Event(), threading.Event()
        self.error: OSError | None = None
        original: Any = getattr(os, call)

        def slow(*arguments: Any) -> None:
            if threading.current_thread().name == "checkpoint":
                self._reached.set()
                assert self._answers.wait(60)
                if self.error:
                    raise self.error
            original(*arguments)

        patch.setattr(os, call, slow)

    def wait_until_called(self) -> None:
        assert self._reached.wait(60)

    def answer(self) -> None:
        """Answer from now on, until the thread has ended."""
        self._answers.set()
        for thread in threading.enumerate():
            if thread.name == "checkpoint":
                thread.join(60)


@pytest.fixture(params=["fsync"])
def volume(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    volume = SlowVolume(monkeypatch, request.param)
    yield volume
    volume.answer()


@pytest.fixture
def ended() -> list[Written]:
    return []


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(str(tmp_path / "volume"), 3, {}, "run-1")
    store.prepare()
    return store


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "volume").iterdir())


def test_training_goes_on_meanwhile_and_changes_nothing_of_it(
    volume: SlowVolume, store: Store, ended: list[Written], tmp_path: Path
) -> None:
    weights = np.zeros(1_000_000)
    store.write_later(7, {"position": 3}, {"a": weights}, ended.append)
    volume.wait_until_called()
    weights += 1
    assert ended == [] and store.newest() is None

    volume.answer()

    (written,) = ended
    assert written[:2] == (7, str(tmp_path / "volume/iteration-000000007")) and written.problem is None
    found = store.newest()
    assert found is not None and found.manifest["reason"] == "timer" and found.manifest["position"] == 3
    assert not found.state["a"].any()
    store.write(7, {"position": 3}, {"a": np.zeros(1_000_000)}, "end")
    assert names(tmp_path) == ["iteration-000000007"]


def test_of_those_that_are_due_while_one_is_written_none_takes_memory_and_each_is_said(
    volume: SlowVolume, store: Store, ended: list[Written], tmp_path: Path
) -> None:
    store.write_later(7, {}, {"a": 1}, ended.append)
    volume.wait_until_called()
    store.write_later(8, {}, {"a": 2}, ended.append)
    (left_out,) = ended
    assert left_out.iteration == 8 and str(left_out.problem).startswith("that of iteration 7 is still being written, ")

    volume.answer()
    store.write_later(9, {}, {"a": 3}, ended.append)
    volume.answer()

    assert [(each.iteration, each.problem is None) for each in ended] == [(8, False), (7, True), (9, True)]
    assert names(tmp_path) == ["iteration-000000007", "iteration-000000009"]


@pytest.mark.parametrize(("volume", "left"), [("mkdir", []), ("fsync", ["iteration-000000007"])], indirect=["volume"])
def test_one_at_a_notice_waits_for_none_under_way_which_is_dropped_or_complete(
    volume: SlowVolume, store: Store, ended: list[Written], tmp_path: Path, left: list[str]
) -> None:
    store.write_later(7, {}, {"a": 1}, ended.append)
    volume.wait_until_called()

    store.write(8, {}, {"a": 2}, "notice")

    found = store.newest()
    assert found is not None and found.manifest["iteration"] == 8
    volume.answer()
    assert names(tmp_path) == [*left, "iteration-000000008"] and len(ended) == len(left)


def test_one_at_the_end_of_the_iteration_that_is_under_way_waits_for_it(
    volume: SlowVolume, store: Store, ended: list[Written], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write_later(7, {}, {"a": 1}, ended.append)
    volume.wait_until_called()
    join = threading.Thread.join

    def answer_first(thread: threading.Thread, timeout: float | None = None) -> None:
        volume._answers.set()
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", answer_first)

    store.write(7, {}, {"a": 1}, "end")

    assert [each.iteration for each in ended] == [7] and names(tmp_path) == ["iteration-000000007"]


def test_a_full_volume_is_a_line_and_leaves_nothing_behind(
    volume: SlowVolume, store: Store, ended: list[Written], tmp_path: Path
) -> None:
    volume.error = OSError(errno.ENOSPC, "No space left on device")
    store.write_later(7, {}, {"a": 1}, ended.append)
    volume.answer()

    line = (
        f"checkpoint of iteration 7 not written: {tmp_path}/volume: No space left on device; free space there; earlier"
    )
    assert [each.failure for each in ended] == [f"{line} ones are untouched"] and names(tmp_path) == []


def test_where_memory_does_not_suffice_for_a_copy_it_is_written_at_once(
    store: Store, ended: list[Written], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_store, "_available_memory", lambda: 1000.0)
    store.write_later(7, {}, {"a": np.zeros(1000)}, ended.append)

    assert [each.iteration for each in ended] == [7] and names(tmp_path) == ["iteration-000000007"]


def test_memory_is_what_both_the_pod_and_the_machine_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "available_memory", lambda cgroup: 1000)
    assert checkpoint_store._available_memory() == 1000
    monkeypatch.setattr(hardware, "available_memory", lambda cgroup: None)
    assert 1000 < checkpoint_store._available_memory() < float("inf")


@pytest.mark.parametrize("in_memory", [True, False])
def test_an_attempt_that_ends_waits_for_one_under_way_unless_memory_has_one(
    volume: SlowVolume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: list[Written], in_memory: bool
) -> None:
    pid_file = tmp_path / "rank-0.pid"
    pid_file.write_text("1")
    monkeypatch.setenv(protocol.ENV_PID_FILE, str(pid_file))
    memory = Memory(str(tmp_path / "memory"), "1", "run-1") if in_memory else None
    store = Store(str(tmp_path / "volume"), 3, {}, "run-1", memory)
    store.prepare()
    if memory is not None:
        store.remember(7, {}, {"a": 1})
        memory.wait()
    store.write_later(7, {}, {"a": 1}, ended.append)
    volume.wait_until_called()

    assert is_locked(pid_file) != in_memory
    volume.answer()
    assert not is_locked(pid_file)


def test_a_users_program_goes_on_while_its_checkpoint_is_written(
    volume: SlowVolume, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = SetClock()
    variables = {protocol.ENV_CHECKPOINT_PATH: str(tmp_path / "volume"), protocol.ENV_CHECKPOINT_EVERY: "60"}
    session = Session(variables, "", clock.uptime)
    for iteration in (1, 2, 3):
        clock.sleep(30)
        session.save(iteration, {"a": iteration}, now=False)
    volume.wait_until_called()
    clock.sleep(30)
    session.save(4, {"a": 4}, now=False)
    skipped = capsys.readouterr()
    volume.answer()

    assert "checkpoint of iteration 4 not written: that of iteration 2 is still being written" in skipped.err
    assert skipped.out == "" and '"iteration":2' in capsys.readouterr().out
    session.save(5, {"a": 5}, now=True)
    assert names(tmp_path) == ["iteration-000000002", "iteration-000000005"]
