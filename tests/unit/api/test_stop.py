"""What `stop` says while it waits."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from spotmpi.api import runs
from spotmpi.runs.reader import RunState


class SlowBackend:
    """A backend with one run that ends once somebody has said why it is waited for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ended = threading.Event()
        self.messages: list[str] = []

    def say(self, text: str) -> None:
        self.messages.append(text)
        self.ended.set()

    def stop(self, run: str, reason: str, now: bool) -> None:
        assert self.ended.wait(30)

    def state(self, run: str) -> RunState:
        return RunState("scan-1", str(self.folder), "scan", "stopped" if self.ended.is_set() else "running")


def test_a_stop_says_nothing_unless_it_takes_longer_and_then_why_and_for_how_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spec.toml").write_text('command = ["x"]\n[checkpoint]\ngrace = "90s"\n')
    quick: Any = SlowBackend(tmp_path)
    quick.stop = lambda run, reason, now: quick.ended.set()
    assert runs.stop_run(quick, "scan", "enough", quick.say).state == "stopped"
    assert quick.messages == []

    monkeypatch.setattr(runs, "_NOTICEABLE", 0.01)
    backend: Any = SlowBackend(tmp_path)
    assert runs.stop_run(backend, "scan", "enough", backend.say).state == "stopped"
    assert backend.messages == [
        "waiting until run scan-1 has written what it has to, and its processes have ended, for at most 90s "
        "(checkpoint.grace)"
    ]
