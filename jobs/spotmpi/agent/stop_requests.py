"""Requests to end a local run: files in its folder, which any terminal may write, and signals to its supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from types import FrameType

from . import protocol
from .files import mode, write_atomically
from .outcomes import INTERRUPTION, NOT_RETRYABLE, STOPPED, Outcome, StopRequest

STOP = "stop"  # end after a checkpoint
KILL = "kill"  # end now
FOLDER = "control"


def path(folder: str, request: str) -> str:
    """The file in a run folder that stands for *request*."""
    return os.path.join(folder, FOLDER, request)


def submit(folder: str, request: str, reason: str) -> None:
    """Request `STOP` or `KILL` of the supervisor of a run folder, with the reason; safe to call concurrently."""
    os.makedirs(os.path.join(folder, FOLDER), exist_ok=True)
    write_atomically(path(folder, request), json.dumps({"reason": reason}))


def clear(folder: str) -> None:
    """Remove the requests to an earlier supervisor of a run folder, before a new one is started."""
    for request in (STOP, KILL):
        with contextlib.suppress(FileNotFoundError):
            os.remove(path(folder, request))


def reason(folder: str) -> str | None:
    """The reason of the request that is pending in a run folder, or None."""
    return _read_reason(folder, KILL) or _read_reason(folder, STOP)


def _read_reason(folder: str, request: str) -> str | None:
    try:
        with open(path(folder, request)) as file:
            return str(json.load(file)["reason"])
    except (OSError, ValueError, KeyError):
        return None


class FolderStopSource:
    """The `StopSource` of the supervisor of *folder*: request files, SIGTERM, and the deletion of the folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._signal: int | None = None

    def install_handlers(self) -> None:
        """From now on take SIGTERM as notice that the machine goes away, and ignore SIGINT and SIGHUP."""
        signal.signal(signal.SIGTERM, self._handle_signal)
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)

    def pending(self) -> StopRequest | None:
        """The `StopRequest` that is pending, or None."""
        if self.kill_requested():
            return StopRequest(Outcome(STOPPED, _read_reason(self._folder, KILL), 0), False)
        if self._is_there(path(self._folder, STOP)):
            return StopRequest(Outcome(STOPPED, _read_reason(self._folder, STOP), 0), True)
        if self._signal:
            reason = "the supervisor received %s" % signal.Signals(self._signal).name
            return StopRequest(Outcome(INTERRUPTION, reason, protocol.INTERRUPTED), True)
        if self._is_there(os.path.join(self._folder, "events.jsonl")) is False:
            return StopRequest(Outcome(NOT_RETRYABLE, "the run folder was deleted", protocol.NOT_RETRYABLE), False)
        return None

    def kill_requested(self) -> bool:
        """Whether to kill all processes at once."""
        return bool(self._is_there(path(self._folder, KILL)))

    def _is_there(self, name: str) -> bool | None:
        """Whether the file exists; None where a disk does not tell: the next poll asks again."""
        try:
            return mode(name) is not None
        except OSError:
            return None

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
