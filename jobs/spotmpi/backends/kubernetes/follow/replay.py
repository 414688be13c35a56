"""What followers missed of a run's output, read back from its run folder."""

from __future__ import annotations

import asyncio
import io
import shlex
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from spotmpi.agent import boot, pod_context
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import translate_errors
from spotmpi.backends.kubernetes.volume_access import Volume, VolumeAccess, volume_access
from spotmpi.core import archives, names
from spotmpi.core.errors import NotPermitted, SpotmpiError
from spotmpi.core.progress import Say
from spotmpi.plan import manifests
from spotmpi.runs import pod_output
from spotmpi.runs.pod_output import Entry

PAUSES = (0.5, 1.0, 2.0)  # seconds after which another pod may live, where one could not be read
_WHOLE = "that is all"
_CODE = "/tmp/spotmpi"  # in a pod that is not of the run


class Replayer:
    """Reads the folder of one run by way of a pod that lives or, once none does, of one made for the purpose."""

    def __init__(self, client: ClusterApi, jobset: Object, say: Say) -> None:
        self._client = client
        self._say = say
        self._run = jobset["metadata"]["name"]
        mounted = manifests.run_volume(jobset)
        self._volume = Volume(*mounted) if mounted else None
        self._own: VolumeAccess | None = None
        self._open = AsyncExitStack()

    async def entries(self, living: Callable[[], Sequence[str]], node: int, since: float, until: float) -> list[Entry]:
        """What the run folder holds of *node* between two Unix times; *living* tells pods that run and see it now.

        Raises:
            SpotmpiError: no pod can read it.
        """
        words = f"{shlex.quote(f'{pod_context.RUNS}/{self._run}')} {node} {since!r} {until!r}"
        why = ""
        for pause in PAUSES:
            pods = living()
            if not pods:
                why = "no pod that holds its output lives"
                break
            try:
                return await self._read(pods[0], boot.CODE, words)
            except NotPermitted:
                raise
            except SpotmpiError as error:
                why = f"its pod {pods[0]} did not tell: {error}"
                await asyncio.sleep(pause)  # a pod may end while it is asked
        if self._volume is None:
            raise SpotmpiError(f"the run has no run volume, and {why}")
        return await self._read((await self._own_access(self._volume)).pod, _CODE, words)

    async def _read(self, pod: str, code: str, words: str) -> list[Entry]:
        command = f"cd {code} && python3 -m spotmpi.agent.replay {words} && echo {_WHOLE}"
        with translate_errors("read the run folder"):
            *lines, last = (await self._client.execute(pod, ["sh", "-c", command])).splitlines() or [""]
        if last != _WHOLE:
            raise SpotmpiError(f"could not read the run folder: {pod} broke off")
        return [entry for line in lines if (entry := pod_output.parse(line))]

    async def close(self) -> None:
        """Delete the pod that was made, if any."""
        await self._open.aclose()

    async def _own_access(self, volume: Volume) -> VolumeAccess:
        if self._own is None:
            own = await self._open.enter_async_context(volume_access(self._client, volume, self._say))
            unpack = f"mkdir -p {_CODE} && tar xzf - -C {_CODE}"
            await own.run(["sh", "-c", unpack], io.BytesIO(archives.pod_side(names.SOURCE)))
            self._own = own
        return self._own
