"""The scheduler of a pool from outside its cluster, and the number of its workers.

Users may create Secrets and not read them, so the TLS files come from node 0's pod, as its port does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from spotmpi.agent import pod_context, protocol
from spotmpi.agent.plan import COORDINATOR, WORKER
from spotmpi.backends.base import PoolAddress, no_workers, require_role
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.answers import OversizedAnswer
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import no_such_run, translate_errors
from spotmpi.backends.kubernetes.client.port_forward import forward_port
from spotmpi.backends.kubernetes.client.portal import call, serve
from spotmpi.backends.kubernetes.fault_injection import pod_of
from spotmpi.backends.kubernetes.follow.jobset import (
    creation_time,
    has_started,
    member_of,
    pod_phase,
    terminal_condition,
)
from spotmpi.core import certificates, names
from spotmpi.core.errors import NotPermitted, SpotmpiError, input_error
from spotmpi.plan import cluster_plan, pods, pool
from spotmpi.runs.reader import RunState

LONGEST_ANSWER = 1 << 20  # bytes: it has the files of TLS
LISTEN_TIMEOUT = 10  # seconds for which one look waits until the scheduler listens
_POLL_INTERVAL = 1.0  # seconds between looks, if no pod changes before
# Prints the TLS files once the scheduler listens: Dask's client does not survive a port without a listener.
_READ_FILES = f"""
import json, os, time
def listens():
    for table in ("tcp", "tcp6"):
        with open("/proc/net/" + table) as file:
            for line in list(file)[1:]:
                local, _, state = line.split()[1:4]
                if state == "0A" and int(local.rpartition(":")[2], 16) == {protocol.POOL_PORT}:
                    return True
until = time.monotonic() + {LISTEN_TIMEOUT}
while not listens() and time.monotonic() < until:
    time.sleep(0.05)
names = {protocol.TLS_FILES!r}
if listens():
    print(json.dumps({{name: open(os.path.join({pod_context.SECRET!r}, name)).read() for name in names}}))
"""


@contextmanager
def pool_address(open_api: Callable[[], ClusterApi], run: str, state: Callable[[], RunState]) -> Iterator[PoolAddress]:
    """The address of a pool's scheduler on this machine once it listens, through a tunnel that lasts for the context.

    *open_api* opens a client for each event loop: for the wait, and for the tunnel. *state* is the run's current state.

    Raises:
        UnknownRun: there is no such run.
        InputError: it is not a pool.
        SpotmpiError: it ended before.
    """
    files = call(_wait_for_files(open_api(), run, state))
    if missing := [name for name in protocol.TLS_FILES if name not in files]:
        remedy = "something else answers for it; submit the pool again with an image that you trust"
        raise SpotmpiError(f"node 0 of run {run} sent no {', '.join(missing)}: {remedy}")
    with tempfile.TemporaryDirectory(prefix="spotmpi-pool-") as folder:
        tls = certificates.write_certificates(Path(folder, "tls"), files)
        with forward_to_node_0(open_api(), run, protocol.POOL_PORT) as port:
            yield PoolAddress(f"tls://127.0.0.1:{port}", tls)


@contextmanager
def forward_to_node_0(api: ClusterApi, run: str, remote: int) -> Iterator[int]:
    """A port of this machine that leads to port *remote* of node 0's pod, of whichever runs, while in the context."""

    async def node_0() -> str:
        return str((await pod_of(api, run, COORDINATOR))["metadata"]["name"])

    with serve(forward_port(api, node_0, remote)) as forward:
        yield forward.port


async def _wait_for_files(api: ClusterApi, run: str, state: Callable[[], RunState]) -> dict[str, str]:
    """The TLS files by name, once the scheduler of a pool listens."""
    changed = asyncio.Event()
    watching = asyncio.create_task(_watch_node_0(api, run, changed))
    try:
        while True:
            changed.clear()
            jobset, pod = await _find_pool(api, run), await _node_0(api, run)
            if pod and pod_phase(pod) == "Running" and (files := await _read_files(api, pod)):
                return files
            # Node 0's agent knows why a run ends, and says so seconds before the JobSet shows it.
            if terminal_condition(jobset) or (pod and has_started(pod)):
                end = await asyncio.to_thread(state)
                if end.over:
                    raise SpotmpiError(end.end)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), _POLL_INTERVAL)
    finally:
        watching.cancel()


async def _watch_node_0(api: ClusterApi, run: str, changed: asyncio.Event) -> None:
    """Set *changed* whenever a pod of node 0 changes."""
    async for _ in api.watch(cluster_api.POD, labels=_node_0_labels(run)):
        changed.set()


async def _node_0(api: ClusterApi, run: str) -> Object | None:
    """The newest pod of node 0, whether it runs or not."""
    with translate_errors(f"find node 0 of run {run}"):
        listed = await api.list(cluster_api.POD, _node_0_labels(run))
    return max((pod for pod in listed if member_of(pod) == COORDINATOR), key=creation_time, default=None)


def _node_0_labels(run: str) -> dict[str, str]:
    """The labels of node 0's pods; those of other nodes have them too where each has a Job."""
    return {names.LABEL_RUN: run, names.LABEL_ROLE: COORDINATOR.role, pod_context.LABEL_INDEX: "0"}


async def _read_files(api: ClusterApi, pod: Object) -> dict[str, str]:
    """The TLS files by name that node 0's pod has; none where its scheduler does not listen, or the pod has gone."""
    try:
        with translate_errors("reach the scheduler"):
            output = await api.execute(pod["metadata"]["name"], pods.python(_READ_FILES), LONGEST_ANSWER)
        answer = json.loads(output)
    except (NotPermitted, OversizedAnswer):
        raise
    except (SpotmpiError, ValueError, RecursionError):
        return {}
    # The run's program, its image and whoever may open a shell in the pod can answer whatever they like.
    files = answer.items() if isinstance(answer, dict) else ()
    return {name: text for name, text in files if name in protocol.TLS_FILES and isinstance(text, str)}


async def _find_pool(api: ClusterApi, run: str) -> Object:
    """The JobSet of a pool, or of a run with a stream."""
    with translate_errors(f"look up run {run}"):
        jobset = await api.find(cluster_api.JOBSET, run)
    if jobset is None:
        raise no_such_run(run)
    if cluster_plan.worker_count(jobset) is None:
        raise no_workers(run)
    return jobset


async def resize(api: ClusterApi, run: str, workers: int, role: str = WORKER) -> None:
    """Set the number of a run's workers in a role; Kubernetes starts new ones, or ends those with the highest numbers.

    Raises:
        UnknownRun: there is no such run.
        InputError: it has no such workers, has ended, or may not grow because of its cost limit.
    """
    jobset = await _find_pool(api, run)
    spec = cluster_plan.spec_of(jobset)
    if terminal_condition(jobset) or jobset["metadata"].get("deletionTimestamp"):
        raise input_error("run", run, "has ended; submit it again")
    counts = {each.role: each.count for each in spec.workers}
    require_role(run, role, counts)
    submitted = counts[role]
    if spec.limits.cost is not None and workers > submitted:
        remedy = f"limits.cost is counted for the {submitted} workers of its submission; submit it again with more"
        raise input_error("workers", workers, remedy)
    with translate_errors(f"resize run {run}"):
        await api.patch(cluster_api.JOB, names.workers_name(run, role), {"spec": pool.sizes(workers)})
        note = {"metadata": {"annotations": {pool.annotation(role): str(workers)}}}
        await api.patch(cluster_api.JOBSET, run, note)
