"""How long an agent waits before an error of its machine leads to another attempt."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from spotmpi.agent.context import AgentContext
from spotmpi.agent.plan import NODE, Member
from spotmpi.agent.stop_requests import PreemptionNotice
from spotmpi.agent.worker import Worker
from tests.clocks import SetClock
from tests.unit.agent.agent_process import mounts_below


@pytest.fixture
def clock() -> SetClock:
    return SetClock(0.0)


@pytest.fixture
def notice(clock: SetClock) -> Iterator[PreemptionNotice]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield PreemptionNotice("the pod of this node")
    for number, handler in before.items():
        signal.signal(number, handler)


def wait_after(
    errors: int, notice: PreemptionNotice, clock: SetClock, served: Callable[[], object] = lambda: None
) -> None:
    """Wait as a worker does that met an error in so many attempts before."""
    plan: Any = {}
    context = AgentContext(plan, Member(NODE, 1), 0, None, mounts_below(""), clock)

    def wait() -> None:
        clock.sleep(0.05)
        served()

    coordinator: Any = SimpleNamespace(notice=notice, ends=False, wait=wait)
    worker = Worker(context)
    worker._coordinator = coordinator
    worker._errors = errors
    worker._wait_after_error()


@pytest.mark.parametrize(("errors", "seconds"), [(0, 0), (1, 1), (2, 2), (5, 16), (7, 60), (100_000, 60)])
def test_each_attempt_after_an_error_comes_after_a_longer_pause_up_to_a_minute(
    notice: PreemptionNotice, clock: SetClock, errors: int, seconds: float
) -> None:
    """Attempts follow each other at once: an error that stays would take all that are allowed within seconds."""
    served = []
    wait_after(errors, notice, clock, lambda: served.append(clock.seconds))
    assert clock.seconds == pytest.approx(seconds, abs=0.06) and bool(served) == bool(seconds)


def test_a_pod_that_is_to_end_does_not_wait(notice: PreemptionNotice, clock: SetClock) -> None:
    wait_after(9, notice, clock, lambda: notice._handle_signal(signal.SIGTERM, None))
    assert notice.reason == "the pod of this node received SIGTERM"
    assert clock.seconds < 1
