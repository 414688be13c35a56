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


def test_a_stop_that_takes_longer_says_why_and_for_how_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_NOTICEABLE", 0.01)
    (tmp_path / "spec.toml").write_text('command = ["x"]\n[checkpoint]\ngrace = "90s"\n')
    backend: Any = SlowBackend(tmp_path)
    assert runs.stop_run(backend, "scan", "enough", backend.say).state == "stopped"
    assert backend.messages == [
        "waiting until run scan-1 has written what it has to, and its processes have ended, for at most 90s "
        "(checkpoint.grace)"
    ]


def test_a_stop_at_once_says_nothing(tmp_path: Path) -> None:
    backend: Any = SlowBackend(tmp_path)
    backend.stop = lambda run, reason, now: backend.ended.set()
    assert runs.stop_run(backend, "scan", "enough", backend.say).state == "stopped"
    assert backend.messages == []
