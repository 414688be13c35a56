"""Requests by users to end a run: files in the run folder, which any terminal may write, or a pod's annotation."""

from __future__ import annotations

import contextlib
import json
import os
from typing import NamedTuple, Optional

from .context import REQUESTS, Mounts
from .files import exists, write_atomically

STOP = "stop"  # end after a checkpoint
KILL = "kill"  # end now


class Request(NamedTuple):
    """A request of a user, and why it was made."""

    kind: str  # `STOP` or `KILL`
    reason: Optional[str]


def path(folder: str, request: str) -> str:
    """The file in a run folder that stands for *request*."""
    return os.path.join(folder, REQUESTS, request)


def submit(folder: str, request: str, reason: str) -> None:
    """Request `STOP` or `KILL` of the agent of a run folder, with the reason; safe to call concurrently."""
    os.makedirs(os.path.join(folder, REQUESTS), exist_ok=True)
    write_atomically(path(folder, request), json.dumps({"reason": reason}))


def clear(folder: str) -> None:
    """Remove the requests to an earlier agent of a run folder, before a new one is started."""
    for request in (STOP, KILL):
        with contextlib.suppress(FileNotFoundError):
            os.remove(path(folder, request))


def reason(folder: str) -> str | None:
    """The reason of the most urgent request in a run folder, or None."""
    return _reason(path(folder, KILL)) or _reason(path(folder, STOP))


def pending(mounts: Mounts, kinds: tuple[str, ...] = (KILL, STOP)) -> Request | None:
    """The request that an agent with these *mounts* has to follow, the most urgent of *kinds*; or None."""
    if mounts.requests is not None:
        for kind in kinds:
            name = os.path.join(mounts.requests, kind)
            if file_exists(name):
                return Request(kind, _reason(name))
    if mounts.pod_info is not None and STOP in kinds:
        from . import pod_context  # delays no start of a local run

        reason = pod_context.stop_reason(mounts.pod_info)
        return None if reason is None else Request(STOP, reason)
    return None


def file_exists(name: str) -> bool | None:
    """Whether a file exists; None where a disk does not tell: the next poll asks again."""
    try:
        return exists(name)
    except OSError:
        return None


def _reason(name: str) -> str | None:
    try:
        with open(name) as file:
            return str(json.load(file)["reason"])
    except (OSError, ValueError, KeyError, TypeError):  # written by hand, it may say anything
        return None
