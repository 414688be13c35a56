"""Fault injection into the pods of a run, as a reclaimed node or a crash would cause it."""

from __future__ import annotations

from spotmpi.agent.plan import Member
from spotmpi.backends.kill_ranks import PROGRAM, NotRunning, require_killed
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import translate_errors
from spotmpi.backends.kubernetes.follow.jobset import member_of
from spotmpi.core import names
from spotmpi.plan import pods


async def pod_of(api: ClusterApi, run: str, member: Member) -> Object:
    """The running pod of a member of *run*; NotRunning if there is none."""
    with translate_errors(f"find {member} of run {run}"):
        listed = await api.list(cluster_api.POD, {names.LABEL_RUN: run, names.LABEL_ROLE: member.role})
    running = [pod for pod in listed if member_of(pod) == member and pod["status"].get("phase") == "Running"]
    if not running:
        raise NotRunning(f"{member} of run {run} has no running pod; see `spotmpi status {run}`")
    return running[0]


async def inject_fault(api: ClusterApi, run: str, member: Member, how: str) -> None:
    """Evict a member's pod as a drain does, delete it, or kill the ranks in it (*how*: evict, delete or kill)."""
    pod = str((await pod_of(api, run, member))["metadata"]["name"])
    with translate_errors(f"{how} pod {pod}"):
        if how == "evict":
            await api.evict(pod)
        elif how == "delete":
            await api.delete(cluster_api.POD, pod)
        else:
            require_killed(await api.execute(pod, pods.python(PROGRAM, run)), run, member)
