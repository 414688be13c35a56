"""Stopping and deleting runs on a cluster, also to continue them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

from lightkube import ApiError

from spotmpi.agent import pod_context
from spotmpi.agent.plan import COORDINATOR, WORKERS
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import is_missing, translate_errors
from spotmpi.backends.kubernetes.follow.jobset import (
    creation_time,
    member_of,
    pod_phase,
    submission_time,
    terminal_condition,
    was_failed_by,
)
from spotmpi.core import names
from spotmpi.core.errors import UnreadableRun
from spotmpi.core.reminders import Wait
from spotmpi.core.wording import Echo
from spotmpi.plan import cluster_plan, manifests

_SUBMISSION_TIMEOUT = 300.0  # seconds within which a submission has created all its objects, or has failed
# Seconds from the end of a run, as its agent records it, to that of its JobSet. Where the API server was gone,
# JobSet's controller starts again, which takes half a minute on a busy cluster.
END_TIMEOUT = 90.0
_END_INTERVAL = 0.5  # seconds between looks
_LOOKS = 16  # at once, of many runs that wait
_DELETION_TIMEOUT = 150.0  # seconds that the pods of a deleted run may take; the longest grace period is less


async def request_stop(api: ClusterApi, run: str, reason: str) -> None:
    """Ask node 0's agent to stop, and wait until its pod has ended or its grace period is over."""
    with translate_errors(f"stop run {run}"):
        for pod in await api.list(cluster_api.POD, {names.LABEL_RUN: run, names.LABEL_ROLE: COORDINATOR.role}):
            if pod_phase(pod) == "Running" and member_of(pod) == COORDINATOR:
                await _stop_agent(api, pod, reason)


async def delete_run(api: ClusterApi, run: str, reason: str, now: bool) -> float:
    """Delete the JobSet and all it owns, with the *reason* for its followers; *now* gives its pods no grace period.

    Returns:
        The time of the deletion by the cluster's clock, Unix seconds.
    """
    with translate_errors(f"stop run {run}"):
        if await api.find(cluster_api.JOBSET, run):
            note = {"metadata": {"annotations": {manifests.ANNOTATION_STOPPED: reason}}}
            await api.patch(cluster_api.JOBSET, run, note)
        await api.delete(cluster_api.JOBSET, run, wait=True, now=now)
        return api.now()


async def delete_ended(api: ClusterApi, run: str, echo: Echo) -> None:
    """Delete the JobSet of a run that has ended, before it is resumed; that of an active run is kept.

    An agent records the end of its run before its pod ends, and JobSet sees that later: so it is waited for, but not
    where a pod shows that it has failed. Once an API server was gone for a while, the Job controller may take minutes.
    """
    wait = Wait(END_TIMEOUT, echo)
    while jobset := await api.find(cluster_api.JOBSET, run):
        has_ended = terminal_condition(jobset) or jobset["metadata"].get("deletionTimestamp")
        if has_ended or was_failed_by(await _gang(api, jobset)):
            await _delete_and_wait(api, run, echo)
            break
        if wait.is_over(f"JobSet has seen that run {run} has ended"):
            break
        await asyncio.sleep(_END_INTERVAL)


async def _gang(api: ClusterApi, jobset: Object) -> list[Object]:
    """The pods of a JobSet that are not workers, whose ends are not end of the run."""
    pods = await api.list(cluster_api.POD, {names.LABEL_RUN: jobset["metadata"]["name"]})
    since = submission_time(jobset)  # pods of one before it may be on their way out
    own = [pod for pod in pods if creation_time(pod) >= since]
    return [pod for pod in own if member_of(pod).role not in WORKERS]


async def _delete_and_wait(api: ClusterApi, run: str, echo: Echo) -> None:
    """Delete the JobSet of a run with all it owns, and wait until it is gone."""
    await api.delete(cluster_api.JOBSET, run, wait=True)
    wait = Wait(_DELETION_TIMEOUT, echo)
    while await api.find(cluster_api.JOBSET, run) and not wait.is_over(
        f"the pods of run {run} and its JobSet are deleted"
    ):
        await asyncio.sleep(0.2)


async def delete_abandoned(api: ClusterApi, jobsets: Sequence[Object]) -> Sequence[Object]:
    """*jobsets* without those whose submission failed minutes ago: they would wait for ever, and are deleted."""
    slots = asyncio.Semaphore(_LOOKS)

    async def is_abandoned(jobset: Object) -> bool:
        async with slots:
            return await _is_abandoned(api, jobset)

    answers = await asyncio.gather(*map(is_abandoned, jobsets))
    abandoned = [jobset["metadata"]["name"] for jobset, answer in zip(jobsets, answers, strict=True) if answer]
    for run in abandoned:
        with contextlib.suppress(ApiError):  # A user without the right leaves it to others.
            await api.delete(cluster_api.JOBSET, run)
    return [jobset for jobset in jobsets if jobset["metadata"]["name"] not in abandoned]


async def _is_abandoned(api: ClusterApi, jobset: Object) -> bool:
    """Whether a JobSet is suspended and still lacks its parts when its submission must have ended."""
    if not jobset["spec"].get("suspend") or api.now() < submission_time(jobset) + _SUBMISSION_TIMEOUT:
        return False
    try:
        cluster_plan.spec_of(jobset)  # another version may name a run's parts differently
        return await api.find(cluster_api.CONFIG_MAP, names.parts_name(jobset["metadata"]["name"])) is None
    except (ApiError, UnreadableRun):
        return False


async def _stop_agent(api: ClusterApi, pod: Object, reason: str) -> None:
    name = pod["metadata"]["name"]
    try:
        await api.patch(cluster_api.POD, name, {"metadata": {"annotations": {pod_context.STOP_ANNOTATION: reason}}})
    except ApiError as error:
        if not is_missing(error):  # else a reclaim or another terminal was faster
            raise
    limit = time.monotonic() + pod["spec"].get("terminationGracePeriodSeconds", 30) + 10
    while time.monotonic() < limit and pod_phase(await api.find(cluster_api.POD, name) or {}) == "Running":
        await asyncio.sleep(0.2)
