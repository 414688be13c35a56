"""The environment of an image on this machine, while another process installs it."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from spotmpi.core import names
from spotmpi.images import environment


def test_whoever_waits_for_the_install_of_another_process_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "cache_folder", lambda: tmp_path)
    folder = environment.location("pytorch")
    folder.mkdir(parents=True)
    messages = []

    with (folder.parent / f".{folder.name}.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)

        def finish_install(text: str) -> None:
            messages.append(text)
            (folder / ".ready").touch()
            fcntl.flock(turn, fcntl.LOCK_UN)

        assert environment.prepare("pytorch", finish_install) == folder

    assert messages == ["waiting for another process that installs the pytorch image"]
