"""How long an agent waits before an error of its machine leads to another attempt."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from spotmpi.agent import protocol
from spotmpi.agent import worker as worker_module
from spotmpi.agent.context import AgentContext
from spotmpi.agent.outcomes import STOPPED
from spotmpi.agent.plan import NODE, WORKER, Member
from spotmpi.agent.pod_context import END_TIME
from spotmpi.agent.stop_requests import PreemptionNotice
from spotmpi.agent.tcp import Admission, Welcome
from spotmpi.agent.worker import CoordinatorClient, Worker, run
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


def context_of(node: int, clock: SetClock, **plan: Any) -> AgentContext:
    values: Any = {"grace": 6.0 - END_TIME / 2, "environment": {}, **plan}
    return AgentContext(values, Member(NODE, node), 0, None, mounts_below("/nowhere"), clock)


def wait_after(
    errors: int, notice: PreemptionNotice, clock: SetClock, served: Callable[[], object] = lambda: None
) -> list[int]:
    """Wait as a worker does that met an error in so many attempts before; what it reports."""
    reported: list[int] = []

    def wait() -> None:
        clock.sleep(0.05)
        served()

    def report_end(code: int, reason: str) -> None:
        reported.append(code)

    connection = SimpleNamespace(address=None)
    coordinator: Any = SimpleNamespace(notice=notice, ends=False, wait=wait, connection=connection)
    coordinator.report_end = report_end
    worker = Worker(context_of(1, clock))
    worker._coordinator = coordinator
    worker._errors = errors
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_module, "prepare", MagicMock(side_effect=OSError(errno.ESTALE, "Stale file handle")))
        worker._take_part()
    return reported


@pytest.mark.parametrize(("errors", "seconds"), [(0, 0), (1, 1), (2, 2), (5, 16), (7, 60), (100_000, 60)])
def test_each_attempt_after_an_error_comes_after_a_longer_pause_up_to_a_minute(
    notice: PreemptionNotice, clock: SetClock, errors: int, seconds: float
) -> None:
    """Attempts follow each other at once: an error that stays would take all that are allowed within seconds."""
    served = []
    assert wait_after(errors, notice, clock, lambda: served.append(clock.seconds)) == [protocol.INTERRUPTED]
    assert clock.seconds == pytest.approx(seconds, abs=0.06) and bool(served) == bool(seconds)


def test_a_pod_that_is_to_end_does_not_wait(notice: PreemptionNotice, clock: SetClock) -> None:
    wait_after(9, notice, clock, lambda: notice._handle_signal(signal.SIGTERM, None))
    assert notice.reason == "the pod of this node received SIGTERM"
    assert clock.seconds < 1


@pytest.mark.parametrize("by_signal", [True, False], ids=["a signal", "node 0 lets it leave"])
def test_a_node_with_notice_leaves_at_the_end_of_its_grace_whatever_node_0_does(
    notice: PreemptionNotice, clock: SetClock, by_signal: bool
) -> None:
    """Node 0 may stall: a pod that is killed in place of that counts as failed, of which none may be allowed."""
    sent: list[Any] = []
    connection: Any = SimpleNamespace(
        lost=False, silence=0.0, receive=list, send=lambda **message: sent.append(message)
    )
    coordinator = CoordinatorClient((connection, Welcome(1, Member(NODE, 1))), notice, context_of(1, clock))
    coordinator.poll()
    clock.sleep(100.0)
    assert not coordinator.ends, "nothing has come"
    if by_signal:
        notice._handle_signal(signal.SIGTERM, None)
        coordinator.poll()
    else:
        coordinator.leave("it is unfit")
    clock.sleep(5.9)
    coordinator.poll()
    assert not coordinator.ends and len(sent) == 1 and sent[0]["notice"] == notice.reason
    clock.sleep(0.2)
    assert coordinator.ends and coordinator.is_closed and coordinator.kill_requested()


def test_a_worker_with_notice_leaves_at_once_and_its_process_ends_by_itself(
    notice: PreemptionNotice, clock: SetClock
) -> None:
    """Node 0 ends the connection as soon as it reads the notice, which is no reason to kill the process."""
    sent: list[Any] = []
    connection: Any = SimpleNamespace(
        lost=False, silence=0.0, receive=list, send=lambda **message: sent.append(message)
    )
    context = context_of(1, clock)._replace(member=Member(WORKER, 1))
    coordinator = CoordinatorClient((connection, Welcome(1, context.member)), notice, context)
    assert coordinator.pending() is None
    notice._handle_signal(signal.SIGTERM, None)
    assert not coordinator.kill_requested() and sent == [{"notice": notice.reason}]
    connection.lost = True
    request = coordinator.pending()
    assert request is not None and (request.outcome.cause, request.checkpoint_first) == (STOPPED, False)
    assert coordinator.is_closed and not coordinator.kill_requested()


def test_a_node_tells_the_states_of_its_ranks_where_they_have_changed(
    notice: PreemptionNotice, clock: SetClock
) -> None:
    sent: list[Any] = []
    connection: Any = SimpleNamespace(
        lost=False, silence=0.0, receive=list, send=lambda **message: sent.append(message)
    )
    coordinator = CoordinatorClient((connection, Welcome(1, Member(NODE, 1))), notice, context_of(1, clock))
    for states in ({}, {3: "busy"}, {3: "busy"}, {3: "idle"}, {}):
        coordinator._ranks.states = states
        coordinator.poll()
    assert sent == [{"attempt": 1, "ranks": states} for states in ({3: "busy"}, {3: "idle"}, {})]
    coordinator._ranks.states = {3: "busy"}
    coordinator.poll()
    coordinator.newest = Welcome(2, Member(NODE, 1))
    coordinator.begin()
    coordinator.poll()
    assert sent[-1]["attempt"] == 1, "they were those of the attempt before"
    coordinator._ranks.states = {3: "busy"}
    coordinator.poll()
    assert sent[-2:] == [{"attempt": attempt, "ranks": {3: "busy"}} for attempt in (1, 2)], "node 0 has forgotten them"


def test_a_connection_that_has_fallen_silent_is_closed_before_the_next(
    notice: PreemptionNotice, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its descriptor, and the thread of its heartbeat, would stay for as long as the agent."""
    context = context_of(1, clock, replaces_nodes=True, limits={"start": 60.0}, hosts=["a", "b"])
    opened: list[Any] = []

    def join(*arguments: Any) -> Admission:
        assert [each.closed for each in opened] == [True] * len(opened)
        connection: Any = SimpleNamespace(closed=False, lost=True)
        connection.close = lambda: setattr(connection, "closed", True)
        opened.append(connection)
        return (connection, Welcome(1, Member(NODE, 1)))

    def take_part(worker: Worker, coordinator: CoordinatorClient) -> None:
        if len(opened) == 3:
            notice._handle_signal(signal.SIGTERM, None)

    monkeypatch.setattr(Worker, "run", take_part)
    transport: Any = SimpleNamespace(join=join, exchange=None)
    assert run(context, transport, notice, 0.0) == protocol.INTERRUPTED
    assert len(opened) == 3
