"""An attempt that is no longer the newest of its run writes nothing more."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spotmpi.agent import fencing
from spotmpi.agent.pod_record import PodRecord


def test_the_end_of_an_attempt_is_not_written_after_a_newer_one_has_begun(tmp_path: Path) -> None:
    old, new = PodRecord(str(tmp_path)), PodRecord(str(tmp_path))
    assert (old.take_attempt(), new.take_attempt()) == (1, 2)
    files = sorted(path for path in tmp_path.rglob("*"))

    with pytest.raises(fencing.Fenced, match="attempt 2 has begun"):
        old.attempt(1, 0, {"cause": "succeeded", "started": 1.0, "last_iteration": None})
    with pytest.raises(fencing.Fenced, match="attempt 2 has begun"):
        old.summary({"state": "succeeded"})
    with pytest.raises(fencing.Fenced, match="attempt 2 has begun"):
        old.event("succeeded")
    old.close()

    assert sorted(path for path in tmp_path.rglob("*")) == files, "not even the reserve of its successor is taken away"
    new.event("succeeded")
    new.close()


def test_a_newer_attempt_is_seen_where_a_listing_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux keeps what it knows of a folder on NFS for 30 to 60 s (acdirmin and acdirmax, nfs(5))."""
    old = PodRecord(str(tmp_path))
    old.take_attempt()
    listdir = os.listdir
    PodRecord(str(tmp_path)).take_attempt()
    monkeypatch.setattr(os, "listdir", lambda path: ["1"] if str(path).endswith("attempts") else listdir(path))

    with pytest.raises(fencing.Fenced):
        old.event("succeeded")


def test_a_newer_attempt_is_seen_where_two_were_taken_at_once(tmp_path: Path) -> None:
    old, new = PodRecord(str(tmp_path)), PodRecord(str(tmp_path))
    old.take_attempt()
    new.take_attempt()
    fencing.announce(str(tmp_path), 1)  # written last

    with pytest.raises(fencing.Fenced):
        old.event("succeeded")
    new.event("started")


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_text("")])
def test_a_number_that_cannot_be_read_fences_nobody_off(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    ours = PodRecord(str(tmp_path))
    ours.take_attempt()
    damage(tmp_path / fencing.NEWEST)

    ours.event("started")
