"""What the cloud behind a cluster says while pods wait for nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jobs.errors import SpotmpiError

Ask = Callable[[], str | None]  # blocks; SpotmpiError where it can't be asked
LOOK = 30.0  # seconds between questions


class Beyond:
    """Asks now and then, and only while a pod has no node; without anybody to *ask* it knows nothing."""

    def __init__(self, ask: Ask | None) -> None:
        self._ask = ask
        self._asked = float("-inf")
        self._word: str | None = None

    async def word(self, pods: Iterable[Mapping[str, Any]]) -> str | None:
        """Why there are no nodes, as far as is known."""
        if self._ask is None or not any(map(_lacks_node, pods)):
            return None
        if time.monotonic() > self._asked + LOOK:
            self._asked = time.monotonic()
            try:
                self._word = await asyncio.to_thread(self._ask)
            except SpotmpiError:
                self._word = None  # The pods' own words remain.
        return self._word


def _lacks_node(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)
