"""Fault injection into the pods of a run, as a reclaimed node or a crash would cause it."""

from __future__ import annotations

from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import translate_errors
from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError
from spotmpi.plan import manifests

_KILL_RANKS = """
import os, signal
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) != os.getpid():
        with open("/proc/%s/environ" % name, "rb") as file:
            if b"SPOTMPI_ATTEMPT=" in file.read():
                os.kill(int(name), signal.SIGKILL)
"""


async def pod_of(api: ClusterApi, run: str, node: int) -> Object:
    """The running pod of a node of *run*; SpotmpiError if there is none."""
    labels = {names.LABEL_RUN: run, manifests.LABEL_INDEX: str(node)}
    with translate_errors(f"find node {node} of run {run}"):
        pods = [pod for pod in await api.list(cluster_api.POD, labels) if pod["status"].get("phase") == "Running"]
    if not pods:
        raise SpotmpiError(f"node {node} of run {run} has no running pod; see `spotmpi status {run}`")
    return pods[0]


async def inject_fault(api: ClusterApi, run: str, node: int, how: str) -> None:
    """Evict a node's pod as a drain does, delete it, or kill the ranks in it (*how*: evict, delete or kill)."""
    pod = str((await pod_of(api, run, node))["metadata"]["name"])
    with translate_errors(f"{how} pod {pod}"):
        if how == "evict":
            await api.evict(pod)
        elif how == "delete":
            await api.delete(cluster_api.POD, pod)
        else:
            await api.execute(pod, ["python3", "-c", _KILL_RANKS])
