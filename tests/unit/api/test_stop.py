"""What `stop` and Ctrl-C say while they wait, and where a run cannot be stopped."""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotmpi.api import stopping
from spotmpi.backends.targets import follow
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.events import Event
from spotmpi.runs.reader import RunState


class SlowBackend:
    """A backend with one run that ends once somebody has said why it is waited for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ended = threading.Event()
        self.messages: list[str] = []

    def echo(self, text: str) -> None:
        self.messages.append(text)
        self.ended.set()

    def stop(self, run: str, reason: str, now: bool) -> None:
        assert self.ended.wait(60)

    def state(self, run: str) -> RunState:
        return RunState("scan-1", str(self.folder), "scan", "stopped" if self.ended.is_set() else "running")


def test_a_stop_says_nothing_unless_it_takes_longer_and_then_why_and_for_how_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spec.toml").write_text('command = ["x"]\n[checkpoint]\ngrace = "90s"\n')
    quick: Any = SlowBackend(tmp_path)
    quick.stop = lambda run, reason, now: quick.ended.set()
    assert stopping.stop_run(quick, "scan", "enough", quick.echo).state == "stopped"
    assert quick.messages == []

    monkeypatch.setattr(stopping, "_NOTICEABLE", 0.01)
    backend: Any = SlowBackend(tmp_path)
    assert stopping.stop_run(backend, "scan", "enough", backend.echo).state == "stopped"
    assert backend.messages == [
        "waiting until run scan-1 has written what it has to, and its processes have ended, for at most 90s "
        "(checkpoint.grace)"
    ]


def test_a_limit_of_threads_lets_no_run_go_on_that_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that could not close its pool left it running for half an hour."""

    def refuse(timer: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", refuse)
    backend: Any = SlowBackend(tmp_path)
    backend.stop = lambda run, reason, now: backend.ended.set()
    assert stopping.stop_run(backend, "scan", "enough").state == "stopped"


@pytest.mark.parametrize(
    ("now", "waits_for"),
    [
        (False, "run scan-1 has written what it has to, and its processes have ended, for at most 0.5s "),
        (True, "the processes of run scan-1 have ended"),
    ],
)
def test_a_stop_that_nothing_answers_says_so_once_the_promised_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: bool, waits_for: str
) -> None:
    (tmp_path / "spec.toml").write_text('command = ["x"]\n[checkpoint]\ngrace = "0.5s"\n')
    monkeypatch.setattr(stopping, "_NOTICEABLE", 0.01)
    monkeypatch.setattr(stopping, "_OVERDUE", 0.2)
    backend: Any = FrozenBackend(tmp_path)

    stopping.stop_run(backend, "scan", "enough", backend.echo, now)

    first, second = backend.messages
    assert first == f"waiting until {waits_for}" + ("" if now else "(checkpoint.grace)")
    assert second == (
        f"run scan-1 has not ended after {0 if now else 1} s: its agent may be stopped (SIGSTOP), or its machine or "
        "disk may not respond; Ctrl-C ends only this wait, and the run ends once its agent continues"
    )


class FrozenBackend(SlowBackend):
    """A backend with one run that ends only after somebody has said that nothing answers, or at the 200th look."""

    looks = 0

    def stop(self, run: str, reason: str, now: bool) -> None:
        pass

    def state(self, run: str) -> RunState:
        self.looks += 1
        if self.looks > 200:
            self.ended.set()
        return super().state(run)

    def echo(self, text: str) -> None:
        self.messages.append(text)
        if len(self.messages) == 2:
            self.ended.set()


class UnreachableBackend(SlowBackend):
    """A backend whose run can be stopped at the second try only."""

    tries = 0

    def stop(self, run: str, reason: str, now: bool) -> None:
        self.tries += 1
        if self.tries == 1:
            raise SpotmpiError("no answer from the cluster")
        self.ended.set()

    def echo(self, text: str) -> None:
        self.messages.append(text)

    def events(self, run: str, follow: bool) -> Iterator[Event]:
        signal.raise_signal(signal.SIGINT)
        while len(self.messages) < 2:
            yield Event(0.0, "waiting")
        signal.raise_signal(signal.SIGINT)
        assert self.ended.wait(60)
        yield Event(1.0, "stopped")


def test_ctrl_c_that_cannot_stop_a_run_says_why_and_the_next_one_tries_again(tmp_path: Path) -> None:
    backend: Any = UnreachableBackend(tmp_path)

    assert follow(backend, "scan-1", lambda event: None, backend.echo).state == "stopped"

    assert backend.messages == [
        "stopping after a checkpoint; Ctrl-C again kills",
        "the run continues; Ctrl-C tries again to stop it: no answer from the cluster",
        "killing the run",
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_what_ends_the_command_leaves_the_run_alone_and_says_so(tmp_path: Path, number: signal.Signals) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which tests under nohup inherit as ignored
    backend: Any = SlowBackend(tmp_path)
    backend.events = lambda run, follow: iter([Event(0.0, "started"), Event(1.0, "stopped")])

    with pytest.raises(SystemExit) as ended:
        follow(backend, "scan-1", lambda event: signal.raise_signal(number), backend.echo)

    assert ended.value.code == 128 + number and signal.getsignal(number) == signal.SIG_DFL
    assert backend.messages == [
        f"{number.name} ends only this command, and run scan-1 continues: `spotmpi stop scan-1` stops it"
    ]


def test_a_closed_terminal_ends_the_command_though_it_takes_no_message(tmp_path: Path) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    backend: Any = SlowBackend(tmp_path)
    backend.events = lambda run, follow: iter([Event(0.0, "started"), Event(1.0, "stopped")])

    def echo(text: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(SystemExit) as ended:
        follow(backend, "scan-1", lambda event: signal.raise_signal(signal.SIGHUP), echo)
    assert ended.value.code == 129
