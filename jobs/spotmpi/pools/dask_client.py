"""Dask's client with the one change that a pool needs: a cut connection is reported instead of mended.

Dask would cancel all futures and connect again; the engine has to find its calls again meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from distributed import Client

_QUIET = ("distributed.batched", "distributed.client", "distributed.core")  # they log a cut connection with tracebacks


class PoolClient(Client):
    """A client that calls *on_cut* when its connection breaks, and is of no use after that."""

    def __init__(self, url: str, on_cut: Callable[[], None], **options: Any) -> None:
        self._on_cut = on_cut
        for name in _QUIET:
            logging.getLogger(name).setLevel(logging.ERROR)
        super().__init__(  # type: ignore[no-untyped-call]
            url, asynchronous=True, set_as_default=False, **options
        )

    async def _reconnect(self) -> None:
        self.scheduler_comm = None  # ends the reader of messages
        self._on_cut()
