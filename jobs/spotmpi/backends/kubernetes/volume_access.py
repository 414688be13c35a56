"""Access to the files of a run volume, through a pod that exists as long as it is used."""

from __future__ import annotations

import asyncio
import io
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import BinaryIO, TypeVar

from spotmpi.agent.files import error_text
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.answers import Answer
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import permitted, translate_errors
from spotmpi.backends.kubernetes.follow.waiting import Observations, waiting_reason
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.wording import Echo
from spotmpi.plan.volume_pod import Volume, volume_pod

T = TypeVar("T")
START_TIMEOUT = 300.0  # seconds for a node to take the pod and pull its image
_POLL_INTERVAL = 0.3  # seconds
_SPACE = "free space on the volume (`spotmpi data clean` lists copies that no run names), then try again"
_REMEDIES = {  # by what programs in pods say
    "Permission denied": "make the volume writable for user or group 1000",
    "No space left on device": _SPACE,
    "Disk quota exceeded": _SPACE,
}


class VolumeAccess:
    """A pod that mounts the volume; `volume_access` creates one."""

    def __init__(self, api: ClusterApi, pod: str) -> None:
        self._api = api
        self.pod = pod

    async def read(self, command: Sequence[str], stdout: BinaryIO) -> None:
        """Write what *command* prints to *stdout*; SpotmpiError with its last line of errors where it fails."""
        await self._execute(command, None, stdout)

    async def run(self, command: Sequence[str], stdin: BinaryIO | None = None) -> None:
        """Run *command* with *stdin*; SpotmpiError with its last line of errors where it fails."""
        await self._execute(command, stdin, None)

    async def exchange(self, command: Sequence[str], stdin: BinaryIO, stdout: BinaryIO) -> None:
        """Both: run *command* with *stdin*, and write what it prints to *stdout*."""
        await self._execute(command, stdin, stdout)

    async def output(self, command: Sequence[str], stdin: bytes = b"") -> bytes:
        """What *command* prints, after it has read *stdin*; OversizedAnswer where that is too much for the memory."""
        output = Answer(self.pod)
        await self._execute(command, io.BytesIO(stdin), output)
        return output.getvalue()

    async def _execute(self, command: Sequence[str], stdin: BinaryIO | None, stdout: BinaryIO | None) -> None:
        with translate_errors("access the files on the run volume"):
            status, errors = await self._api.stream(self.pod, command, stdin, stdout)
        if status:
            reason = error_text((errors.strip().splitlines() or [f"exit code {status}"])[-1])
            remedy = next((f"; {remedy}" for problem, remedy in _REMEDIES.items() if problem in reason), "")
            raise SpotmpiError(f"could not access the files on the run volume: {reason}{remedy}")


def json_answer(output: bytes, kind: type[T]) -> T:
    """The JSON value that a program printed in a pod, whose image may be anybody's; SpotmpiError where it is none."""
    try:
        value = json.loads(output)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        raise unreadable_answer()
    return value


def unreadable_answer() -> SpotmpiError:
    """The error for an answer that no program of ours gives."""
    return SpotmpiError("the answer of a pod with the run volume cannot be read; check its image, and try again")


@asynccontextmanager
async def volume_access(api: ClusterApi, volume: Volume, echo: Echo) -> AsyncIterator[VolumeAccess]:
    """A `VolumeAccess` whose pod is deleted afterwards; *echo* reports why it takes its time.

    Raises:
        SpotmpiError: the pod could not be created, or does not run within five minutes; it says why.
    """
    name = f"spotmpi-volume-{secrets.token_hex(4)}"
    with translate_errors("start a pod that reads the run volume"):
        uid = await _claim_uid(api, volume.claim)
        await api.create(volume_pod(name, api.namespace, volume, uid))
    try:
        await _wait_until_running(api, name, echo)
        yield VolumeAccess(api, name)
    finally:
        with translate_errors("delete the pod that read the run volume"):
            await api.delete(cluster_api.POD, name)


async def _claim_uid(api: ClusterApi, name: str) -> str | None:
    """The uid of a claim; None where it may not be read. SpotmpiError where there is none of that name."""
    claim = await permitted(api.find(cluster_api.CLAIM, name), {})
    if claim is None:
        raise SpotmpiError(
            f"namespace {api.namespace} has no PersistentVolumeClaim {name}; `kubectl get pvc` lists the existing ones"
        )
    return str(claim["metadata"]["uid"]) if claim else None


async def _wait_until_running(api: ClusterApi, name: str, echo: Echo) -> None:
    """Return once the pod *name* runs; SpotmpiError where it ends before or does not start in time."""
    deadline, reported = time.monotonic() + START_TIMEOUT, ""
    while True:
        with translate_errors("wait for the pod that reads the run volume"):
            pod = await api.find(cluster_api.POD, name)
            phase = pod["status"].get("phase") if pod else None
            if phase == "Running":
                return
            reason = await pending_reason(api, name, pod)
        if pod is None or phase in ("Failed", "Succeeded"):
            raise SpotmpiError(f"the pod that reads the run volume is gone ({reason}); try again")
        if time.monotonic() > deadline:
            raise SpotmpiError(f"no pod could read the run volume within {START_TIMEOUT:g} s: {reason}")
        if reason != reported:
            echo(f"waiting for a pod that reads the run volume: {reason} (gives up after {START_TIMEOUT:g} s)")
            reported = reason
        await asyncio.sleep(_POLL_INTERVAL)


async def pending_reason(api: ClusterApi, name: str, pod: Object | None) -> str:
    """Why the pod of that name does not run."""
    if pod is None:
        return "somebody deleted it"
    seen = Observations(pods={name: pod})
    for event in await api.list(cluster_api.EVENT, about=name):
        seen.add_event(event)
    return waiting_reason(seen, name, 1) or pod["status"].get("message") or "it has ended"
