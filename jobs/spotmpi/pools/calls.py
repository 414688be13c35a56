"""Calls of a pool as the driver holds them."""

from __future__ import annotations

import secrets
from concurrent.futures import Future
from typing import Any

from spotmpi.programs.pool.call import KEY_MARK

LARGE = 10 << 20  # bytes of the arguments or the result of one call, above which there is a warning
_SESSION = secrets.token_hex(4)  # of this process: keys of different drivers must differ


class Call(Future[Any]):
    """One call: a future of `concurrent.futures`, with what is needed to send it again.

    Without *payload* it is a call of another driver, whose result is collected. *worker* is the number of the only
    worker that shall execute it, or None.
    """

    def __init__(self, key: str, payload: bytes = b"", asynchronous: bool = False, worker: int | None = None) -> None:
        super().__init__()
        self.key, self.payload, self.asynchronous, self.worker = key, payload, asynchronous, worker

    @property
    def name(self) -> str:
        """The name of the function."""
        return split_key(self.key)[0]

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled() else "finished" if self.done() else "under way"
        return f"<call of {self.name}: {state}>"


def key(name: str, serial: int, index: int) -> str:
    """The key of call *index* of the map, or the call, that is number *serial* in this process."""
    return f"{name}{KEY_MARK}{_SESSION}-{serial}-{index}"


def split_key(text: str) -> tuple[str, tuple[str, int], int]:
    """The function's name, what all calls of one map have in common, and the index among them."""
    name, _, rest = text.partition(KEY_MARK)
    session, serial, index = rest.split("-")
    return name, (session, int(serial)), int(index)


def is_foreign(text: str) -> bool:
    """Whether the key is one of another process."""
    return f"{KEY_MARK}{_SESSION}-" not in text
