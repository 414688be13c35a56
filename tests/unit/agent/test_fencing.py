"""An attempt that is no longer the newest of its run writes nothing more."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from spotmpi.agent import pod_record
from spotmpi.agent.launcher_output import Line
from spotmpi.agent.plan import COORDINATOR
from spotmpi.agent.pod_record import PodRecord
from tests.clocks import SetClock
from tests.contract.processes import wait_until
from tests.transient_errors import TransientErrors


def test_no_record_of_an_attempt_is_written_after_a_newer_one_has_begun(tmp_path: Path) -> None:
    old, new = PodRecord(str(tmp_path)), PodRecord(str(tmp_path))
    assert (old.claim_attempt(), new.claim_attempt()) == (1, 2)
    files = sorted(tmp_path.rglob("*"))

    writes: list[Callable[[], None]] = [
        lambda: old.write_json("attempts/1/world.json", {}),
        lambda: old.attempt(1, 0, {"attempt": 1, "cause": "succeeded", "started": 1.0, "last_iteration": None}),
        lambda: old.summary({"state": "succeeded"}),
        lambda: old.event("succeeded"),
    ]
    for write in writes:
        with pytest.raises(pod_record.Fenced, match="attempt 2 has begun"):
            write()
    old.close()

    assert sorted(tmp_path.rglob("*")) == files, "not even the reserve of its successor is taken away"
    new.event("succeeded")
    new.close()


def test_an_agent_that_was_replaced_between_two_attempts_takes_no_other_one(tmp_path: Path) -> None:
    old, new = PodRecord(str(tmp_path)), PodRecord(str(tmp_path))
    assert (old.claim_attempt(), new.claim_attempt()) == (1, 2)
    with pytest.raises(pod_record.Fenced, match="attempt 2 has begun"):
        old.claim_attempt()
    new.event("started")


def test_a_newer_attempt_is_seen_where_a_listing_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux keeps what it knows of a folder on NFS for 30 to 60 s (acdirmin and acdirmax, nfs(5))."""
    old = PodRecord(str(tmp_path))
    old.claim_attempt()
    listdir = os.listdir
    PodRecord(str(tmp_path)).claim_attempt()
    monkeypatch.setattr(os, "listdir", lambda path: ["1"] if str(path).endswith("attempts") else listdir(path))

    with pytest.raises(pod_record.Fenced):
        old.event("succeeded")


def test_a_newer_attempt_is_seen_where_two_were_taken_at_once(tmp_path: Path) -> None:
    old, new = PodRecord(str(tmp_path)), PodRecord(str(tmp_path))
    old.claim_attempt()
    new.claim_attempt()
    pod_record.announce_attempt(str(tmp_path), 1)  # written last

    with pytest.raises(pod_record.Fenced):
        old.event("succeeded")
    new.event("started")


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_text("")])
def test_an_unreadable_number_fences_no_agent(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    ours = PodRecord(str(tmp_path))
    ours.claim_attempt()
    damage(tmp_path / pod_record.NEWEST)
    ours.event("started")


def test_an_agent_that_cannot_read_whether_it_is_fenced_off_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was frozen, or out of reach of its volume, whose first answers are errors."""
    old = PodRecord(str(tmp_path))
    old.claim_attempt()
    new = PodRecord(str(tmp_path))
    new.claim_attempt()
    files = sorted(tmp_path.rglob("*"))
    errors = TransientErrors(monkeypatch.setattr)

    def fail_once() -> None:
        for call, name in (("open", pod_record.NEWEST), ("list", "attempts")):
            errors.add(call, f"*/{name}", errno.EIO, times=2)

    fail_once()
    with pytest.raises(OSError, match="Input/output error"):
        old.event("succeeded")
    fail_once()
    old.close()
    assert sorted(tmp_path.rglob("*")) == files
    errors.add("open", f"*/{pod_record.NEWEST}", errno.ETIMEDOUT, times=2)
    with pytest.raises(pod_record.Fenced, match="attempt 2 has begun"):
        old.event("succeeded")  # one of both tells


def test_a_handle_that_is_stale_for_a_moment_keeps_no_agent_from_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = PodRecord(str(tmp_path))
    ours.claim_attempt()
    errors = TransientErrors(monkeypatch.setattr)
    for call, name in (("read", pod_record.NEWEST), ("list", "attempts")):
        errors.add(call, f"*/{name}", errno.ESTALE)
    ours.event("started")


def test_a_watch_that_cannot_read_goes_on_and_counts_as_no_check(
    fence: pod_record.Fence, tmp_path: Path, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = TransientErrors(monkeypatch.setattr)
    errors.add("list", "*/attempts", errno.EIO, times=4)
    clock.seconds += pod_record.MAX_AGE + 1
    fence.refresh()
    with pytest.raises(OSError, match="Input/output error"):
        fence.check_before_write(final=False)
    pod_record.announce_attempt(str(tmp_path), 2)
    fence.refresh()
    with pytest.raises(pod_record.Fenced):
        fence.check()


def test_a_newer_attempt_is_seen_while_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_record, "INTERVAL", 0.01)
    fence = pod_record.Fence(str(tmp_path), 1)
    fence.watch()
    fence.check()
    pod_record.announce_attempt(str(tmp_path), 2)

    def fenced() -> bool:
        try:
            fence.check()
        except pod_record.Fenced as error:
            return str(error) == "attempt 2 has begun: attempt 1 exits without writing"
        return False

    wait_until(fenced)
    fence.stop()


def test_the_thread_of_a_fence_ends_with_it_and_keeps_no_process_alive(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    fence = pod_record.Fence(str(tmp_path), 1)
    fence.watch()
    (thread,) = set(threading.enumerate()) - before
    assert thread.daemon and thread.name == "fence"
    fence.stop()
    thread.join(60)
    assert not thread.is_alive()


@pytest.fixture
def clock() -> SetClock:
    return SetClock(100.0)


@pytest.fixture
def fence(tmp_path: Path, clock: SetClock) -> pod_record.Fence:
    """The fence of attempt 1, which does not watch, at second 100."""
    return pod_record.Fence(str(tmp_path), 1, clock)


def test_before_a_write_the_folder_is_read_again_once_the_last_check_is_too_old(
    fence: pod_record.Fence, tmp_path: Path, clock: SetClock
) -> None:
    clock.seconds = 100.0 + pod_record.MAX_AGE + 1
    fence.check_before_write(final=False)
    pod_record.announce_attempt(str(tmp_path), 2)

    clock.seconds = 100.0 + 2 * pod_record.MAX_AGE
    fence.check_before_write(final=False)  # the check above is still valid
    clock.seconds = 100.0 + 2 * pod_record.MAX_AGE + 2
    with pytest.raises(pod_record.Fenced, match="attempt 2 has begun"):
        fence.check_before_write(final=False)


def test_before_the_last_write_the_folder_is_always_read_and_an_attempt_that_was_fenced_off_stays_so(
    fence: pod_record.Fence, tmp_path: Path
) -> None:
    fence.check_before_write(final=True)
    pod_record.announce_attempt(str(tmp_path), 2)
    with pytest.raises(pod_record.Fenced, match="attempt 2 has begun"):
        fence.check_before_write(final=True)
    (tmp_path / pod_record.NEWEST).unlink()
    (tmp_path / "attempts").mkdir()  # and empty
    with pytest.raises(pod_record.Fenced):
        fence.check_before_write(final=True)


def test_everybody_may_read_the_announced_number(tmp_path: Path) -> None:
    pod_record.announce_attempt(str(tmp_path), 12)
    path = tmp_path / pod_record.NEWEST
    assert path.read_text() == "12\n" and path.stat().st_mode & 0o777 == 0o644


def test_a_batch_is_not_written_after_a_newer_attempt_has_begun_while_it_was_collected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = SetClock()
    old = PodRecord(str(tmp_path), clock)
    old.claim_attempt()
    with pytest.raises(pod_record.Fenced, match="attempt 2 has begun"), old.batch():
        old.line(1, COORDINATOR, Line(0, "o", "a line"))
        PodRecord(str(tmp_path), clock).claim_attempt()
        clock.seconds += 2 * pod_record.MAX_AGE  # the agent was frozen
    assert not (tmp_path / "logs").exists()
    assert json.loads(capsys.readouterr().out)["n"] == 1, "its pod's log has no gap"
