"""How long an agent waits before an error of its machine restarts the run once more."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from spotmpi.agent import node


@pytest.fixture
def notice(monkeypatch: pytest.MonkeyPatch) -> Iterator[node.Notice]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield node.Notice()
    for number, handler in before.items():
        signal.signal(number, handler)


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slept = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.slept)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


@pytest.mark.parametrize(("restarts", "seconds"), [(0, 0), (1, 1), (2, 2), (5, 16), (7, 60), (100_000, 60)])
def test_each_restart_by_an_error_comes_after_a_longer_pause_up_to_a_minute(
    notice: node.Notice, monkeypatch: pytest.MonkeyPatch, restarts: int, seconds: float
) -> None:
    """JobSet restarts a gang at once, however often: an error that stays would take all restarts within minutes."""
    clock, served = Clock(monkeypatch), []
    notice.wait(restarts, lambda: served.append(clock.slept))
    assert clock.slept == pytest.approx(seconds, abs=0.06) and bool(served) == bool(seconds)


def test_a_pod_that_is_to_end_does_not_wait(notice: node.Notice, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    notice.wait(9, lambda: notice._handle_signal(signal.SIGTERM, None))
    assert clock.slept < 1
