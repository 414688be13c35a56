"""How long an agent waits before an error of its machine restarts the run once more."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from spotmpi.agent.context import AgentContext
from spotmpi.agent.notice import Notice
from spotmpi.agent.worker import wait_for_restart
from tests.clocks import SetClock
from tests.unit.agent.agent_process import mounts_below


@pytest.fixture
def clock() -> SetClock:
    return SetClock(0.0)


@pytest.fixture
def notice(clock: SetClock) -> Iterator[Notice]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield Notice("the pod of this node")
    for number, handler in before.items():
        signal.signal(number, handler)


def context_of(restarts: int, clock: SetClock) -> AgentContext:
    plan: Any = {}
    return AgentContext(plan, 1, restarts, "", mounts_below(""), clock)


@pytest.mark.parametrize(("restarts", "seconds"), [(0, 0), (1, 1), (2, 2), (5, 16), (7, 60), (100_000, 60)])
def test_each_restart_by_an_error_comes_after_a_longer_pause_up_to_a_minute(
    notice: Notice, clock: SetClock, restarts: int, seconds: float
) -> None:
    """JobSet restarts a gang at once, however often: an error that stays would take all restarts within minutes."""
    served = []
    wait_for_restart(context_of(restarts, clock), notice, lambda: served.append(clock.seconds))
    assert clock.seconds == pytest.approx(seconds, abs=0.06) and bool(served) == bool(seconds)


def test_a_pod_that_is_to_end_does_not_wait(notice: Notice, clock: SetClock) -> None:
    wait_for_restart(context_of(9, clock), notice, lambda: notice._handle_signal(signal.SIGTERM, None))
    assert notice.reason == "the pod of this node received SIGTERM"
    assert clock.seconds < 1
