"""Data from elsewhere brought to a run volume by a Job of the cluster, which needs no terminal to go on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx2
from lightkube import ApiError

from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import already_exists, translate_errors
from spotmpi.backends.kubernetes.volume_access import Volume, pending_reason
from spotmpi.core.errors import NotPermitted, SpotmpiError
from spotmpi.core.progress import Say
from spotmpi.core.redaction import redacted
from spotmpi.data import fetch_job
from spotmpi.data.remote_source import Order
from spotmpi.data.store import Moved, size_of

LOOK = 1.0  # seconds between looks at the Job
PATIENCE = 120.0  # seconds for which the cluster may be out of reach
_PREPARED = 60.0  # seconds in which whoever made a Job gives it its orders


async def fetch(
    api: ClusterApi,
    volume: Volume,
    sources: Sequence[Sequence[Order]],
    folder: str,
    say: Say,
    authority: str = "",
) -> list[Moved]:
    """Have the files of each source fetched below *folder*, by the Job that is at it already or by a new one.

    *authority* are certificates (PEM) that a new one trusts besides the usual ones. The Job goes on whatever becomes of
    this process. SpotmpiError tells why it ended without all files.
    """
    name = fetch_job.name_of(sources, folder, volume.claim)
    while True:
        with translate_errors(f"start the Job {name}"):
            if await _is_at_it(api, name):
                say(f"Job {name} is fetching this already")
            else:
                job = fetch_job.fetch_job(name, api.namespace, volume.claim, volume.image, volume.pull_secrets)
                await _start(api, job, lambda made: _parts(made, sources, folder, authority))
                say(f"Job {name} fetches it, also when this terminal is closed; the same command shows how far it is")
        moved = await _watched(api, name, say)
        if moved is not None:
            return moved
        say(f"Job {name} is done; its pod is gone with the numbers, so what is there is counted once more")


async def _is_at_it(api: ClusterApi, name: str) -> bool:
    """Whether a Job of that name is at work; one that has ended, or never got its orders, is removed."""
    while found := await api.find(cluster_api.JOB, name):
        if _ending(found) is None and not _abandoned(found) and not found["metadata"].get("deletionTimestamp"):
            return True
        await api.delete(cluster_api.JOB, name, wait=True)
        await asyncio.sleep(LOOK / 2)
    return False


def _parts(made: Object, sources: Sequence[Sequence[Order]], folder: str, authority: str) -> list[Object]:
    """What the made Job owns."""
    return [
        fetch_job.network_policy(made, sources),
        fetch_job.orders_secret(made, sources, folder, authority),
    ]


async def _start(api: ClusterApi, job: Object, parts_of: Callable[[Object], Sequence[Object]]) -> None:
    name = job["metadata"]["name"]
    try:
        made = await api.create(job)
    except ApiError as error:
        if already_exists(error):
            return  # another terminal was faster
        raise
    try:
        for part in parts_of(made):
            await api.create(part)
        await api.patch(cluster_api.JOB, name, {"spec": {"suspend": False}})
    except BaseException:
        await api.delete(cluster_api.JOB, name)
        raise


async def _watched(api: ClusterApi, name: str, say: Say) -> list[Moved] | None:
    """What the Job came to, once it has ended, None where nobody knows; *say* hears what is new on the way."""
    said, seen = "", time.monotonic()
    while True:
        try:
            with translate_errors(f"look at the Job {name}, which goes on by itself"):
                look = await _look(api, name)
            seen = time.monotonic()
        except NotPermitted:
            raise
        except SpotmpiError:
            if time.monotonic() > seen + PATIENCE:
                raise
            look = _Look()
        if look.done:
            return look.moved
        if look.failed is not None:
            raise SpotmpiError(f"could not fetch {redacted(look.failed)}; the same command goes on where it stopped")
        if look.said and look.said != said:
            said = look.said
            say(said)
        await asyncio.sleep(LOOK)


@dataclass(frozen=True)
class _Look:
    """What a look at the Job gave: its end, or something to say."""

    done: bool = False
    moved: list[Moved] | None = None
    failed: str | None = None
    said: str | None = None


async def _look(api: ClusterApi, name: str) -> _Look:
    job = await api.find(cluster_api.JOB, name)
    if job is None:
        return _Look(failed=f"it all: somebody deleted the Job {name}")
    if _abandoned(job):
        return _Look(failed=f"it: the Job {name} never got its orders")
    pods = await api.list(cluster_api.POD, {"batch.kubernetes.io/job-name": name})
    newest = max(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)
    word = _last_word(newest)
    ending = _ending(job)
    if ending is None:
        return _Look(said=await _progress(api, newest, word))
    if ending["type"] == "Failed":
        return _Look(failed=str(word.get("failed") or f"it all: {ending.get('message') or 'the Job failed'}"))
    numbers = next((word["done"] for word in map(_last_word, pods) if "done" in word), None)
    return _Look(done=True, moved=numbers and [Moved(*each) for each in numbers])


async def _progress(api: ClusterApi, pod: Object | None, word: dict[str, Any]) -> str | None:
    if pod is None:
        return "waiting for the Job's first pod"
    name, phase = pod["metadata"]["name"], pod["status"].get("phase")
    if phase == "Pending":
        return f"waiting for the Job's pod: {await pending_reason(api, name, pod)}"
    if phase == "Failed":
        return f"broke off ({redacted(str(word.get('failed') or 'its pod was lost'))}); Kubernetes tries again"
    try:
        line = await api.last_line(name)
    except (ApiError, httpx2.HTTPError):
        return None
    return _told(json.loads(line)) if line.startswith("{") else None


def _told(line: dict[str, Any]) -> str | None:
    if "got" not in line:
        return None
    text = f"{line['name']}: {size_of(line['got'])} of {size_of(line['of'])}"
    return text if line["all"] == 1 else f"{text}; {line['whole']} of {line['all']} files are there"


def _last_word(pod: Object | None) -> dict[str, Any]:
    """What the pod's program left as it ended."""
    for each in ((pod or {}).get("status") or {}).get("containerStatuses") or []:
        message = ((each.get("state") or {}).get("terminated") or {}).get("message") or ""
        if message.startswith("{"):
            found: dict[str, Any] = json.loads(message)
            return found
    return {}


def _ending(job: Object) -> Object | None:
    for each in (job.get("status") or {}).get("conditions") or []:
        if each["type"] in ("Complete", "Failed") and each["status"] == "True":
            ending: Object = each
            return ending
    return None


def _abandoned(job: Object) -> bool:
    """Whether whoever made it was gone before it could begin."""
    made = datetime.fromisoformat(str(job["metadata"]["creationTimestamp"]))
    return bool(job["spec"].get("suspend")) and (datetime.now(UTC) - made).total_seconds() > _PREPARED
