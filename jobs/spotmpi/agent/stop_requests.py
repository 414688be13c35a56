"""Who wants a run to end: files in its folder (from any terminal) and signals to its supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import uuid
from types import FrameType
from typing import Protocol

from . import protocol
from .outcomes import INTERRUPTION, NOT_RETRYABLE, STOPPED, Outcome, StopRequest

STOP = "stop"  # end after a checkpoint
KILL = "kill"  # end now
FOLDER = "control"


def path(folder: str, request: str) -> str:
    """The file by which *request* is made in a run folder."""
    return os.path.join(folder, FOLDER, request)


def make(folder: str, request: str, reason: str) -> None:
    """Ask the supervisor of a run folder for *request*, saying why; several may ask at once."""
    os.makedirs(os.path.join(folder, FOLDER), exist_ok=True)
    aside = "%s.%s.part" % (path(folder, request), uuid.uuid4().hex)
    with open(aside, "w") as file:
        json.dump({"reason": reason}, file)
    os.replace(aside, path(folder, request))


class StopSource(Protocol):
    """What an attempt asks at every look."""

    def wanted(self) -> StopRequest | None:
        """The `StopRequest` that somebody asks for, or None."""
        ...

    def urgent(self) -> bool:
        """Whether everything has to end now."""
        ...


def clear(folder: str) -> None:
    """Forget what was asked of an earlier supervisor of a run folder; before a new one is started."""
    for request in (STOP, KILL):
        with contextlib.suppress(FileNotFoundError):
            os.remove(path(folder, request))


class Requests:
    """What is asked of the supervisor of *folder*."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._signal: int | None = None

    def listen(self) -> None:
        """From now on hear SIGTERM as notice that the machine goes away."""
        signal.signal(signal.SIGTERM, self._hear)
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)

    def wanted(self) -> StopRequest | None:
        """The `StopRequest` that is asked for, or None."""
        if self.urgent():
            return StopRequest(Outcome(STOPPED, self._reason(KILL), 0), False)
        if os.path.exists(path(self._folder, STOP)):
            return StopRequest(Outcome(STOPPED, self._reason(STOP), 0), True)
        if self._signal:
            reason = "the supervisor got %s" % signal.Signals(self._signal).name
            return StopRequest(Outcome(INTERRUPTION, reason, protocol.INTERRUPTED), True)
        if not os.path.exists(os.path.join(self._folder, "events.jsonl")):
            return StopRequest(Outcome(NOT_RETRYABLE, "its folder was deleted", protocol.NOT_RETRYABLE), False)
        return None

    def urgent(self) -> bool:
        """Whether everything has to end now."""
        return os.path.exists(path(self._folder, KILL))

    def told_to_end(self) -> bool:
        """Whether no further attempt may start here."""
        return self.wanted() is not None

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._signal = number

    def _reason(self, request: str) -> str | None:
        try:
            with open(path(self._folder, request)) as file:
                return str(json.load(file)["reason"])
        except (OSError, ValueError, KeyError):
            return None
