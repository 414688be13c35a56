"""What else knows why pods wait: the cloud, the cluster autoscaler, and the events of the pods' nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio.to_thread
import httpx2
from lightkube import ApiError

from spotmpi.backends.kubernetes.client import api
from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.follow import autoscaler
from spotmpi.backends.kubernetes.follow.waiting import Seen
from spotmpi.core.errors import SpotmpiError

Ask = Callable[[], str | None]  # blocks; SpotmpiError where it can't be asked
LOOK = 30.0  # seconds between questions


class PendingDiagnostics:
    """Asks now and then, and only while a pod waits; whoever may not be asked, or is not there, is done without."""

    def __init__(self, client: ClusterApi, ask: Ask | None) -> None:
        self._client = client
        self._ask = ask
        self._asked: dict[str, float] = {}  # when, by question

    async def look(self, seen: Seen, since: float) -> None:
        """Put what is known into *seen*; of nodes only what happened after *since*, Unix seconds."""
        pods = list(seen.pods.values())
        if not any(map(_lacks_node, pods)):
            seen.beyond = None
        elif self._is_time("machines"):
            seen.beyond = await self._cloud() or await self._autoscaler()
        if any(map(_waits_on_node, pods)) and self._is_time("nodes"):
            seen.take_node_events(await self._node_events(), since)

    def _is_time(self, question: str) -> bool:
        if time.monotonic() < self._asked.get(question, float("-inf")) + LOOK:
            return False
        self._asked[question] = time.monotonic()
        return True

    async def _cloud(self) -> str | None:
        try:
            return await anyio.to_thread.run_sync(self._ask, abandon_on_cancel=True) if self._ask else None
        except SpotmpiError:
            return None  # The pods' own words remain.

    async def _autoscaler(self) -> str | None:
        try:
            told = await self._client.find(api.CONFIG_MAP, autoscaler.NAME, autoscaler.NAMESPACE)
        except (ApiError, httpx2.HTTPError):
            return None
        return autoscaler.word_of(told, self._client.now()) if told else None

    async def _node_events(self) -> Sequence[Mapping[str, Any]]:
        try:
            return await self._client.node_events()
        except (ApiError, httpx2.HTTPError):
            return []


def _lacks_node(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)


def _waits_on_node(pod: Mapping[str, Any]) -> bool:
    """Whether the pod has a node and has not started there, or the node does not answer for it."""
    status = pod.get("status", {})
    if not pod.get("spec", {}).get("nodeName"):
        return False
    unready = any(each["type"] == "Ready" and each["status"] != "True" for each in status.get("conditions") or [])
    return status.get("phase") == "Pending" or (status.get("phase") == "Running" and unready)
