"""The end of a run on a cluster that somebody asks for, and room for its continuation."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

from lightkube import ApiError

from spotmpi.agent import pod_context
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import translate_errors
from spotmpi.backends.kubernetes.follow import start_limit
from spotmpi.core import names
from spotmpi.core.errors import UnreadableRun
from spotmpi.plan import manifests

_SUBMITTING = 300.0  # seconds within which a submission has made all its objects, or has broken off
_ROOM = 150.0  # seconds that the pods of a deleted run may take to go; the longest grace is less


async def ask(api: ClusterApi, run: str, reason: str) -> None:
    """Tell node 0's agent to stop, and wait until its pod has ended or its grace is over."""
    with translate_errors(f"stop run {run}"):
        for pod in await api.list(cluster_api.POD, {names.LABEL_RUN: run, manifests.LABEL_INDEX: "0"}):
            if pod["status"]["phase"] == "Running":
                await _ask_agent(api, pod, reason)


async def delete(api: ClusterApi, run: str, reason: str, now: bool) -> float:
    """Delete the JobSet and all it owns, with a word to those who follow it; *now* leaves its pods no time.

    Gives the moment by the cluster's clock, Unix seconds.
    """
    with translate_errors(f"stop run {run}"):
        if await api.find(cluster_api.JOBSET, run):
            note = {"metadata": {"annotations": {manifests.ANNOTATION_STOPPED: reason}}}
            await api.patch(cluster_api.JOBSET, run, note)
        await api.delete(cluster_api.JOBSET, run, wait=True, now=now)
        return api.now()


async def make_room(api: ClusterApi, run: str) -> None:
    """Delete what is left of a run that is over, for it is to be continued; one that goes on stays."""
    found = await api.find(cluster_api.JOBSET, run)
    if found is None or not (_is_over(found) or found["metadata"].get("deletionTimestamp")):
        return
    await until_gone(api, run)


async def until_gone(api: ClusterApi, run: str) -> None:
    """Delete the JobSet of a run with all it owns, and wait for it."""
    await api.delete(cluster_api.JOBSET, run, wait=True)
    limit = time.monotonic() + _ROOM
    while time.monotonic() < limit and await api.find(cluster_api.JOBSET, run):
        await asyncio.sleep(0.2)


async def without_strays(api: ClusterApi, jobsets: Sequence[Object]) -> Sequence[Object]:
    """*jobsets* but for those whose submission broke off minutes ago: they would wait for ever, and are deleted."""
    strays = [jobset["metadata"]["name"] for jobset in jobsets if await _is_stray(api, jobset)]
    for run in strays:
        with contextlib.suppress(ApiError):  # Whoever may not delete it leaves it to others.
            await api.delete(cluster_api.JOBSET, run)
    return [jobset for jobset in jobsets if jobset["metadata"]["name"] not in strays]


async def _is_stray(api: ClusterApi, jobset: Object) -> bool:
    """Whether a JobSet is held back and has not got its parts in the time in which any submission ends."""
    made = start_limit.unix(jobset["metadata"]["creationTimestamp"])
    if not jobset["spec"].get("suspend") or api.now() < made + _SUBMITTING:
        return False
    try:
        manifests.spec_of(jobset)  # another version may call a run's parts otherwise
        return await api.find(cluster_api.CONFIG_MAP, names.parts_name(jobset["metadata"]["name"])) is None
    except (ApiError, UnreadableRun):
        return False


async def _ask_agent(api: ClusterApi, pod: Object, reason: str) -> None:
    name = pod["metadata"]["name"]
    await api.patch(cluster_api.POD, name, {"metadata": {"annotations": {pod_context.STOP_ANNOTATION: reason}}})
    limit = time.monotonic() + pod["spec"].get("terminationGracePeriodSeconds", 30) + 10
    while time.monotonic() < limit and await _running(api, name):
        await asyncio.sleep(0.2)


async def _running(api: ClusterApi, pod: str) -> bool:
    found = await api.find(cluster_api.POD, pod)
    return found is not None and found["status"]["phase"] == "Running"


def _is_over(jobset: Object) -> bool:
    conditions = jobset.get("status", {}).get("conditions") or []
    return any(each["type"] in ("Completed", "Failed") and each["status"] == "True" for each in conditions)
