"""Downloads data to a run volume with a Job of the cluster, which does not need this terminal."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
from lightkube import ApiError

from spotmpi.agent.schema import read_object
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import already_exists, translate_errors
from spotmpi.backends.kubernetes.follow.jobset import agent_end, creation_time, terminal_condition
from spotmpi.backends.kubernetes.volume_access import pending_reason
from spotmpi.core.errors import NotPermitted, SpotmpiError
from spotmpi.core.redaction import redacted
from spotmpi.core.reminders import Wait
from spotmpi.core.wording import Echo, format_size
from spotmpi.data import fetch_job
from spotmpi.data.remote_source import Download
from spotmpi.data.store import Transfer
from spotmpi.plan.volume_pod import Volume

POLL_INTERVAL = 1.0  # seconds between requests for the Job's status
UNREACHABLE_TIMEOUT = 120.0  # seconds for which the cluster may be unreachable
_FORGED = "the data: its pod ended with a message that its program does not write; check its image"
_DELETION_LIMIT = 120.0  # seconds that an earlier Job is waited for
_PREPARATION = 60.0  # seconds in which the creator of a Job gives it its downloads


async def fetch(
    api: ClusterApi,
    volume: Volume,
    sources: Sequence[Sequence[Download]],
    folder: str,
    echo: Echo,
    authority: str = "",
) -> list[Transfer]:
    """Have the files of each source fetched below *folder*, by the Job that does so already or by a new one.

    *authority* are certificates (PEM) that a new one trusts besides the usual ones. The Job does not need this
    process. SpotmpiError says why it ended without all files.
    """
    name = fetch_job.name_of(sources, folder, volume.claim)
    while True:
        with translate_errors(f"start the Job {name}"):
            if await _is_active(api, name, echo):
                echo(f"Job {name} is fetching this already")
            else:
                job = fetch_job.fetch_job(name, api.namespace, volume)
                await _start(api, job, lambda created: _parts(created, sources, folder, authority))
                echo(f"Job {name} fetches it, also when this terminal is closed; the same command shows its progress")
        transfers = await _watch(api, name, echo)
        if transfers is not None and len(transfers) != len(sources):
            raise SpotmpiError(f"could not fetch {_FORGED}")
        if transfers is not None:
            return transfers
        echo(f"Job {name} has succeeded, but its pod is gone; counting the files again")


async def _is_active(api: ClusterApi, name: str, echo: Echo) -> bool:
    """Whether a Job of that name is active; one that has ended, or never received its instructions, is deleted."""
    wait = Wait(_DELETION_LIMIT, echo)
    while found := await api.find(cluster_api.JOB, name):
        is_deleted = found["metadata"].get("deletionTimestamp")
        if terminal_condition(found, "Complete") is None and not _is_abandoned(found, api) and not is_deleted:
            return True
        await api.delete(cluster_api.JOB, name, wait=True)
        if wait.is_over(f"the earlier Job {name} is deleted"):
            remedy = f"`kubectl describe job {name}` shows what it waits for, perhaps a pod on a node that is gone"
            raise SpotmpiError(f"the earlier Job {name} is not deleted after {_DELETION_LIMIT:g} s: {remedy}")
        await asyncio.sleep(POLL_INTERVAL / 2)
    return False


def _parts(created: Object, sources: Sequence[Sequence[Download]], folder: str, authority: str) -> list[Object]:
    """The objects that the created Job owns."""
    return [
        fetch_job.network_policy(created, sources),
        fetch_job.downloads_secret(created, sources, folder, authority),
    ]


async def _start(api: ClusterApi, job: Object, parts_of: Callable[[Object], Sequence[Object]]) -> None:
    name = job["metadata"]["name"]
    try:
        created = await api.create(job)
    except ApiError as error:
        if already_exists(error):
            return  # another terminal was faster
        raise
    try:
        for part in parts_of(created):
            await api.create(part)
        await api.patch(cluster_api.JOB, name, {"spec": {"suspend": False}})
    except BaseException:
        await api.delete(cluster_api.JOB, name)
        raise


async def _watch(api: ClusterApi, name: str, echo: Echo) -> list[Transfer] | None:
    """The Job's transfers once it has ended, None if its pod is gone; *echo* gets its progress."""
    progress, answered = "", time.monotonic()
    while True:
        try:
            with translate_errors(f"look at the Job {name}, which continues by itself"):
                status = await _job_status(api, name)
            answered = time.monotonic()
        except NotPermitted:
            raise
        except SpotmpiError:
            if time.monotonic() > answered + UNREACHABLE_TIMEOUT:
                raise
            status = _JobStatus()
        if status.done:
            return status.transfers
        if status.failed is not None:
            raise SpotmpiError(f"could not fetch {redacted(status.failed)}; the same command continues")
        if status.progress and status.progress != progress:
            progress = status.progress
            echo(progress)
        await asyncio.sleep(POLL_INTERVAL)


@dataclass(frozen=True)
class _JobStatus:
    """The status of the Job: its end, or its progress."""

    done: bool = False
    transfers: list[Transfer] | None = None
    failed: str | None = None
    progress: str | None = None


async def _job_status(api: ClusterApi, name: str) -> _JobStatus:
    job = await api.find(cluster_api.JOB, name)
    if job is None:
        return _JobStatus(failed=f"the data: the Job {name} was deleted")
    if _is_abandoned(job, api):
        return _JobStatus(failed=f"the data: the Job {name} never received its instructions")
    pods = await api.list(cluster_api.POD, {"batch.kubernetes.io/job-name": name})
    newest = max(pods, key=creation_time, default=None)
    message = _termination_message(newest)
    condition = terminal_condition(job, "Complete")
    if condition is None:
        return _JobStatus(progress=await _progress(api, newest, message))
    if condition["type"] == "Failed":
        return _JobStatus(
            failed=str(message.get("failed") or f"the data: {condition.get('message') or 'the Job failed'}")
        )
    numbers = next((message["done"] for message in map(_termination_message, pods) if "done" in message), None)
    if numbers is None:
        return _JobStatus(done=True)
    transfers = _transfers(numbers)
    return _JobStatus(done=bool(transfers), transfers=transfers, failed=None if transfers else _FORGED)


def _transfers(numbers: Any) -> list[Transfer] | None:
    """What a pod, whose image may be anybody's, says that it fetched; None where no program of ours says that."""
    rows = numbers if isinstance(numbers, list) else []
    if not all(isinstance(each, list) and [*map(type, each)] == [int] * 3 for each in rows):
        return None
    return [Transfer(*each) for each in rows]


async def _progress(api: ClusterApi, pod: Object | None, message: dict[str, Any]) -> str | None:
    if pod is None:
        return "waiting for the Job's first pod"
    name, phase = pod["metadata"]["name"], pod["status"].get("phase")
    if phase == "Pending":
        return f"waiting for the Job's pod: {await pending_reason(api, name, pod)}"
    if phase == "Failed":
        return f"interrupted ({redacted(str(message.get('failed') or 'its pod was lost'))}); Kubernetes retries it"
    try:
        line = await api.last_line(name)
    except (ApiError, httpx2.HTTPError):
        return None
    with contextlib.suppress(KeyError, TypeError):  # a line that another program has printed
        return _progress_text(read_object(line))
    return None


def _progress_text(line: dict[str, Any]) -> str:
    text = f"{line['name']}: {format_size(line['got'])} of {format_size(line['of'])}"
    return text if line["all"] == 1 else f"{text}; {line['whole']} of {line['all']} files are complete"


def _termination_message(pod: Object | None) -> dict[str, Any]:
    """The termination message of the pod's program."""
    return read_object(agent_end(pod or {}).get("message") or "")


def _is_abandoned(job: Object, api: ClusterApi) -> bool:
    """Whether its creator ended before the Job could begin."""
    return bool(job["spec"].get("suspend")) and api.now() - creation_time(job) > _PREPARATION
