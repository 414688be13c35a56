"""The stop of a run, and the wait for its end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from spotmpi.agent import record
from spotmpi.backends import targets
from spotmpi.backends.base import Backend
from spotmpi.backends.targets import TargetLike
from spotmpi.core.errors import SpotmpiError, UnknownRun
from spotmpi.core.names import RunPaths
from spotmpi.core.wording import Echo, duration, silent
from spotmpi.runs.reader import RunState

_NOTICEABLE = 2.0  # seconds of waiting without a word
_OVERDUE = 30.0  # seconds that the end of a run may take beyond its grace before that is said
_STOPPED = "stopped by its user"


def stop(run: str, now: bool = False, wait: bool = True, on: TargetLike = None, echo: Echo = silent) -> RunState:
    """Stop a run after a checkpoint, or *now* without one; no effect on a run that has ended.

    *echo* gets a message with what it waits for, and for how long, if that takes time.
    """
    return stop_run(targets.backend_of(run, on), run, _STOPPED, echo, now, wait)


def stop_run(
    backend: Backend, run: str, reason: str, echo: Echo = silent, now: bool = False, wait: bool = True
) -> RunState:
    """Stop a run of *backend* for *reason*, as `stop` does."""
    before = backend.state(run)
    if before.over:
        return before
    with _waiting_notes(before, now, echo):
        backend.stop(before.id, reason, now)
        try:
            while wait and not backend.state(before.id).over:
                time.sleep(0.05)
            return backend.state(before.id)
        except UnknownRun:
            return replace(before, state=record.STOPPED, reason=reason)  # one that left no record here


@contextlib.contextmanager
def _waiting_notes(state: RunState, now: bool, echo: Echo) -> Iterator[None]:
    """Say what the end of a run is waited for, and for how long, if the context lasts longer than people notice.

    *now* is without a checkpoint. Once it takes longer than that, nothing may ever answer.
    """
    from spotmpi.spec.source import load_spec

    grace, text = 0.0, f"waiting until the processes of run {state.id} have ended"
    if not now:
        text = f"waiting until run {state.id} has written what it has to, and its processes have ended"
        with contextlib.suppress(SpotmpiError, OSError):
            grace = load_spec(RunPaths(Path(state.folder)).spec).checkpoint.grace
            text += f", for at most {duration(grace)} (checkpoint.grace)"
    late = _NOTICEABLE + grace + _OVERDUE
    overdue = (
        f"run {state.id} has not ended after {late:.0f} s: its agent may be stopped (SIGSTOP), or its machine or disk "
        "may not respond; Ctrl-C ends only this wait, and the run ends once its agent continues"
    )
    timers = [threading.Timer(_NOTICEABLE, echo, [text]), threading.Timer(late, echo, [overdue])]
    for timer in timers:
        timer.daemon = True
        with contextlib.suppress(RuntimeError):  # a limit of threads ends no stop
            timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
