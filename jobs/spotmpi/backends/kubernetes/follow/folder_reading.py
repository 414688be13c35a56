"""The output of pods whose logs may not be read, as far as the run folder holds it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from spotmpi.agent import record
from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.follow.pod_log import Source
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.events import Event
from spotmpi.runs.pod_output import Entry

LOOK = 10.0  # seconds between looks into the run folder


class FolderReading:
    """Reads the run folder in place of logs; says once which right is missing, and once where the folder is no help."""

    def __init__(self, client: ClusterApi) -> None:
        self._client = client
        self._said: list[str] = []
        self.failure: str | None = None  # why nothing of the output can be had

    async def entries(self, source: Source, follow: bool) -> AsyncIterator[list[Entry]]:
        """What the run folder holds of a pod's node, with *follow* until the pod has ended; lines may come twice."""
        right = f"you may not read logs of pods in namespace {self._client.namespace}: ask for `get` on `pods/log`"
        for entries in self._say(f"{right}; until then output comes from the run folder alone"):
            yield entries
        since, over = source.began, False
        while not over:
            over = not follow or source.finished()
            try:
                found = await source.replay(source.pod, source.node, since, self._client.now())
            except SpotmpiError as error:
                self.failure = f"{right} ({error})"
                for entries in self._say(f"the run folder cannot be read either: {error}"):
                    yield entries
                return
            if found:
                since = max(since, *(entry.time or 0.0 for entry in found))
                yield found
            if not over:
                await asyncio.sleep(LOOK)

    def _say(self, reason: str) -> list[list[Entry]]:
        """The entries that say *reason*, unless it has been said of another pod."""
        if self._said and reason.partition(":")[0] in self._said:
            return []
        self._said.append(reason.partition(":")[0])
        return [[Entry(0, event=Event(self._client.now(), record.GAP, values={"reason": reason}))]]
