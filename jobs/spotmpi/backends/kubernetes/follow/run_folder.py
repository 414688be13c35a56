"""A run's output from its run folder: what logs have lost, or all of it where logs are forbidden."""

from __future__ import annotations

import asyncio
import io
import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack

from spotmpi.agent import boot, pod_context, record
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import translate_errors
from spotmpi.backends.kubernetes.follow.pod_log import Source
from spotmpi.backends.kubernetes.volume_access import Volume, VolumeAccess, volume_access
from spotmpi.core import archives, names
from spotmpi.core.errors import NotPermitted, SpotmpiError
from spotmpi.core.events import Event
from spotmpi.core.progress import Say
from spotmpi.plan import manifests
from spotmpi.plan.pods import module
from spotmpi.plan.volume_pod import store_command
from spotmpi.runs import pod_output
from spotmpi.runs.pod_output import Entry

RETRY_DELAYS = (0.5, 1.0, 2.0)  # seconds until another pod may run, where one could not be read
POLL_INTERVAL = 10.0  # seconds between two readings of the folder in place of a log
_END_MARK = "that is all"
_CODE = "/tmp/spotmpi"  # in a pod that is not of the run


class RunFolder:
    """Reads the folder of one run in a running pod or, where none runs, in one created for that."""

    def __init__(self, client: ClusterApi, jobset: Object, say: Say) -> None:
        self._client = client
        self._say = say
        self._run = jobset["metadata"]["name"]
        mounted = manifests.run_volume(jobset)
        self._volume = Volume(*mounted) if mounted else None
        self._access: VolumeAccess | None = None
        self._stack = AsyncExitStack()

    async def entries(self, pods: Callable[[], Sequence[str]], node: int, since: float, until: float) -> list[Entry]:
        """What the folder holds of *node* between two Unix times; *pods* names those that run and see it now.

        Raises:
            SpotmpiError: no pod can read it.
        """
        arguments = (f"{pod_context.RUNS}/{self._run}", str(node), repr(since), repr(until))
        why = ""
        for delay in RETRY_DELAYS:
            running = pods()
            if not running:
                why = "no pod that holds its output is running"
                break
            try:
                return await self._read(running[0], boot.CODE, arguments)
            except NotPermitted:
                raise
            except SpotmpiError as error:
                why = f"its pod {running[0]} failed: {error}"
                await asyncio.sleep(delay)  # a pod may end while it reads
        if self._volume is None:
            raise SpotmpiError(f"the run has no run volume, and {why}")
        return await self._read((await self._open(self._volume)).pod, _CODE, arguments)

    async def _read(self, pod: str, code: str, arguments: Sequence[str]) -> list[Entry]:
        command = f"{shlex.join(module(code, 'spotmpi.agent.replay', *arguments))} && echo {_END_MARK}"
        with translate_errors("read the run folder"):
            *lines, last = (await self._client.execute(pod, ["sh", "-c", command])).splitlines() or [""]
        if last != _END_MARK:
            raise SpotmpiError(f"could not read the run folder: the output of {pod} is incomplete")
        return [entry for line in lines if (entry := pod_output.parse(line))]

    async def close(self) -> None:
        """Delete the pod that was created, if any."""
        await self._stack.aclose()

    async def _open(self, volume: Volume) -> VolumeAccess:
        if self._access is None:
            access = await self._stack.enter_async_context(volume_access(self._client, volume, self._say))
            await access.run(store_command("take", _CODE), io.BytesIO(archives.pod_side(names.SOURCE)))
            self._access = access
        return self._access


class FolderLog:
    """Reads the run folder in place of logs that are forbidden; reports the missing right once for all pods."""

    def __init__(self, client: ClusterApi) -> None:
        self._client = client
        self._reported: set[str] = set()
        self.failure: str | None = None  # why no output can be read at all

    async def entries(self, source: Source, follow: bool) -> AsyncIterator[list[Entry]]:
        """What the run folder holds of a pod's node, with *follow* until the pod has ended; lines may be repeated."""
        right = f"you may not read logs of pods in namespace {self._client.namespace}: ask for `get` on `pods/log`"
        for entries in self._report(f"{right}; until then output comes from the run folder alone"):
            yield entries
        since, over = source.since, False
        while not over:
            over = not follow or source.is_finished()
            try:
                found = await source.read_folder(source.pod, source.node, since, self._client.now())
            except SpotmpiError as error:
                self.failure = f"{right} ({error})"
                for entries in self._report(f"the run folder cannot be read either: {error}"):
                    yield entries
                return
            if found:
                since = max(since, *(entry.time or 0.0 for entry in found))
                yield found
            if not over:
                await asyncio.sleep(POLL_INTERVAL)

    def _report(self, reason: str) -> list[list[Entry]]:
        """The entries for *reason*, unless it was reported for another pod."""
        gist = reason.partition(":")[0]
        if gist in self._reported:
            return []
        self._reported.add(gist)
        return [[Entry(0, event=Event(self._client.now(), record.GAP, values={"reason": reason}))]]
