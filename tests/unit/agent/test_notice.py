"""How long an agent waits before an error of its machine restarts the run once more."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from spotmpi.agent import node
from tests.clocks import SetClock


@pytest.fixture
def clock() -> SetClock:
    return SetClock(0.0)


@pytest.fixture
def notice(clock: SetClock) -> Iterator[node.Notice]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield node.Notice(clock)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("restarts", "seconds"), [(0, 0), (1, 1), (2, 2), (5, 16), (7, 60), (100_000, 60)])
def test_each_restart_by_an_error_comes_after_a_longer_pause_up_to_a_minute(
    notice: node.Notice, clock: SetClock, restarts: int, seconds: float
) -> None:
    """JobSet restarts a gang at once, however often: an error that stays would take all restarts within minutes."""
    served = []
    notice.wait(restarts, lambda: served.append(clock.seconds))
    assert clock.seconds == pytest.approx(seconds, abs=0.06) and bool(served) == bool(seconds)


def test_a_pod_that_is_to_end_does_not_wait(notice: node.Notice, clock: SetClock) -> None:
    notice.wait(9, lambda: notice._handle_signal(signal.SIGTERM, None))
    assert clock.seconds < 1
