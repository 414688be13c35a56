"""Submits a run and follows it until it ends; Ctrl-C stops it, a second Ctrl-C stops it without a checkpoint."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from spotmpi.backends.base import Backend, Plan
from spotmpi.core.errors import SpotmpiError, UnknownRun
from spotmpi.core.events import Event
from spotmpi.core.progress import Echo
from spotmpi.runs.reader import RunState

if TYPE_CHECKING:
    from spotmpi.spec.job import JobSpec

Watch = Callable[[Event], None]


class Messages(NamedTuple):
    """The messages on Ctrl-C, on a further one, and what to do if the events of the run end before it does."""

    stopping: str
    killing: str
    remedy: str


RUN = Messages(
    "stopping after a checkpoint; Ctrl-C again kills", "killing the run", "follow it again: spotmpi logs -f {run}"
)


def submit(backend: Backend, spec: JobSpec, plan: Plan, echo: Echo) -> None:
    """Start the run that *plan* describes; Ctrl-C meanwhile kills what was started."""
    try:
        backend.submit(spec, plan, echo)
    except KeyboardInterrupt:
        with contextlib.suppress(UnknownRun):
            backend.stop(plan["run"], "Ctrl-C", True)
        raise


def follow(backend: Backend, run: str, on_event: Watch, echo: Echo, messages: Messages = RUN) -> RunState:
    """Pass every event of *run* to *on_event* until it ends; its final state.

    Raises:
        UnknownRun: there is no such run.
        SpotmpiError: the events ended before the run did.
    """

    def on_interrupt(again: bool) -> None:
        echo(messages.killing if again else messages.stopping)
        try:
            backend.stop(run, "Ctrl-C", again)
        except SpotmpiError as error:
            echo(f"the run continues; Ctrl-C tries again to stop it: {error}")

    last = None
    events = backend.events(run, True)
    with _interrupts(on_interrupt):
        for event in events:
            on_event(event)
            last = event
    if last is None or not last.terminal:
        raise SpotmpiError(f"the events of run {run} ended before the run did; {messages.remedy.format(run=run)}")
    return backend.state(run)


@contextmanager
def _interrupts(stop: Callable[[bool], None]) -> Iterator[None]:
    """In the context, the first Ctrl-C calls stop(False), every further one stop(True).

    *stop* runs in its own thread, since a signal may arrive in the middle of output. Outside the main thread, which
    alone gets signals, nothing changes.
    """
    pressed = 0
    calls: list[threading.Thread] = []

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1
        calls.append(threading.Thread(target=stop, args=(pressed > 1,)))
        calls[-1].start()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        for call in calls:
            call.join()
