"""Reading and filling a run volume from here: by a pod of its own, which goes when its user does."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import BinaryIO

from lightkube import ApiError

from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.client.errors import translate_errors
from spotmpi.backends.kubernetes.follow.waiting import Seen, why_waiting
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.progress import Say
from spotmpi.plan import volume_pod

PATIENCE = 300.0  # seconds for a node to take the pod and pull its image
_LOOK = 0.3  # seconds between looks at the pod


@dataclass(frozen=True)
class Volume:
    """A claim, and an image that has ``sleep`` and ``python3`` and can be pulled."""

    claim: str
    image: str
    pull_secrets: tuple[str, ...] = ()


class VolumeAccess:
    """A pod in which commands see the volume; `volume_access` makes one."""

    def __init__(self, api: ClusterApi, pod: str) -> None:
        self._api = api
        self.pod = pod

    async def read(self, command: Sequence[str], into: BinaryIO) -> None:
        """Write what *command* prints to *into*; SpotmpiError with its last words where it fails."""
        await self._done(command, None, into)

    async def run(self, command: Sequence[str], given: BinaryIO | None = None) -> None:
        """Run *command* with *given* on its standard input; SpotmpiError with its last words where it fails."""
        await self._done(command, given, None)

    async def ask(self, command: Sequence[str], given: BinaryIO, into: BinaryIO) -> None:
        """Both: *given* on the standard input of *command*, what it prints to *into*."""
        await self._done(command, given, into)

    async def _done(self, command: Sequence[str], given: BinaryIO | None, into: BinaryIO | None) -> None:
        with translate_errors("reach the files on the run volume"):
            status, said = await self._api.stream(self.pod, command, given, into)
        if status:
            words = said.strip().splitlines() or [f"it ended with {status}"]
            raise SpotmpiError(f"could not reach the files on the run volume: {words[-1]}")


@asynccontextmanager
async def volume_access(api: ClusterApi, volume: Volume, say: Say) -> AsyncIterator[VolumeAccess]:
    """A `VolumeAccess` whose pod is gone afterwards; *say* hears why it takes its time.

    Raises:
        SpotmpiError: the pod could not be made, or does not run within five minutes; it says why.
    """
    name = f"spotmpi-volume-{secrets.token_hex(4)}"
    with translate_errors("start a pod that reads the run volume"):
        uid = await _uid_of(api, volume.claim)
        pod = volume_pod.volume_pod(name, api.namespace, volume.claim, volume.image, volume.pull_secrets, uid)
        await api.create(pod)
    try:
        await _until_running(api, name, say)
        yield VolumeAccess(api, name)
    finally:
        with translate_errors("delete the pod that read the run volume"):
            await api.delete(cluster_api.POD, name)


async def _uid_of(api: ClusterApi, claim: str) -> str | None:
    """The uid of a claim; None where it may not be read. SpotmpiError where there is none of that name."""
    try:
        found = await api.find(cluster_api.CLAIM, claim)
    except ApiError as error:
        if error.status.code == 403:
            return None
        raise
    if found is None:
        raise SpotmpiError(
            f"namespace {api.namespace} has no PersistentVolumeClaim {claim}; `kubectl get pvc` lists those there are"
        )
    return str(found["metadata"]["uid"])


async def _until_running(api: ClusterApi, name: str, say: Say) -> None:
    deadline, told_already = time.monotonic() + PATIENCE, ""
    while True:
        with translate_errors("wait for the pod that reads the run volume"):
            pod = await api.find(cluster_api.POD, name)
            phase = pod["status"].get("phase") if pod else None
            if phase == "Running":
                return
            reason = await why_not(api, name, pod)
        if pod is None or phase in ("Failed", "Succeeded"):
            raise SpotmpiError(f"the pod that was to read the run volume is gone ({reason}); try again")
        if time.monotonic() > deadline:
            raise SpotmpiError(f"no pod could read the run volume within {PATIENCE:g} s: {reason}")
        if reason != told_already:
            say(f"waiting for a pod that reads the run volume: {reason} (gives up after {PATIENCE:g} s)")
            told_already = reason
        await asyncio.sleep(_LOOK)


async def why_not(api: ClusterApi, name: str, pod: cluster_api.Object | None) -> str:
    """Why the pod of that name does not run."""
    if pod is None:
        return "somebody deleted it"
    seen = Seen(pods={name: pod})
    for event in await api.list(cluster_api.EVENT, about=name):
        seen.take_event(event)
    return why_waiting(seen, name, 1) or pod["status"].get("message") or "it ended by itself"
