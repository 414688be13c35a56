"""Fault injection into the pods of a run, as a reclaimed node or a crash would cause it."""

from __future__ import annotations

from spotmpi.backends.kill_ranks import PROGRAM, NotRunning, require_killed
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import translate_errors
from spotmpi.backends.kubernetes.follow.jobset import node_index
from spotmpi.core import names
from spotmpi.plan import manifests, pods


async def pod_of(api: ClusterApi, run: str, node: int) -> Object:
    """The running pod of a node of *run*; NotRunning if there is none."""
    labels = {names.LABEL_RUN: run, manifests.LABEL_INDEX: str(node)}
    with translate_errors(f"find node {node} of run {run}"):
        if jobset := await api.find(cluster_api.JOBSET, run):
            labels |= manifests.labels_of_node(jobset, node)
        listed = await api.list(cluster_api.POD, labels)
    running = [pod for pod in listed if node_index(pod) == node and pod["status"].get("phase") == "Running"]
    if not running:
        raise NotRunning(f"node {node} of run {run} has no running pod; see `spotmpi status {run}`")
    return running[0]


async def inject_fault(api: ClusterApi, run: str, node: int, how: str) -> None:
    """Evict a node's pod as a drain does, delete it, or kill the ranks in it (*how*: evict, delete or kill)."""
    pod = str((await pod_of(api, run, node))["metadata"]["name"])
    with translate_errors(f"{how} pod {pod}"):
        if how == "evict":
            await api.evict(pod)
        elif how == "delete":
            await api.delete(cluster_api.POD, pod)
        else:
            require_killed(await api.execute(pod, pods.python(PROGRAM, run)), run, node)
