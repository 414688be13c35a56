"""A pool on a cluster whose every answer is scripted: two shapes of pods, more and fewer workers, its end."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from spotmpi.agent import pod_context, protocol, record
from spotmpi.backends.kubernetes import fault_injection, pool_access, stop
from spotmpi.backends.kubernetes.backend import KubernetesBackend
from spotmpi.backends.kubernetes.client import api
from spotmpi.backends.kubernetes.follow import jobset as jobsets
from spotmpi.backends.kubernetes.follow import outcome, run_folder
from spotmpi.backends.kubernetes.follow import run as following
from spotmpi.backends.kubernetes.follow.run import RUNNING, ClusterFollower
from spotmpi.backends.kubernetes.follow.waiting import Observations, workers_waiting_reason
from spotmpi.backends.kubernetes.submit import objects as submitting
from spotmpi.core import names
from spotmpi.core.errors import InputError, NotPermitted, SpotmpiError, UnknownRun
from spotmpi.core.events import Event
from spotmpi.plan import manifests, pool
from spotmpi.plan.cluster import ClusterTarget
from spotmpi.plan.manifests import Submission, kubernetes_plan
from spotmpi.spec.job import from_values
from spotmpi.spec.validate import validate
from tests.unit.backends.kubernetes import watched_cluster
from tests.unit.backends.kubernetes.test_submit import Namespace
from tests.unit.backends.kubernetes.watched_cluster import RUN, FakeCluster, Object

T = TypeVar("T")
VALUES: Object = {"launcher": "pool", "pool": {"workers": 3}}


def jobset(workers: int = 3, status: Object | None = None, **values: Any) -> Object:
    """The JobSet of a pool that has been resized to so many workers."""
    spec = from_values({key: value for key, value in {**VALUES, **values}.items() if value is not None})
    annotations = {
        manifests.ANNOTATION_SPEC: json.dumps(spec.model_dump(mode="json", exclude_defaults=True)),
        pool.ANNOTATION_WORKERS: str(workers),
    }
    created = watched_cluster.jobset(status=status, nodes=1)
    return {**created, "metadata": {**created["metadata"], "annotations": annotations}}


def worker(index: int, phase: str = "Running", **status: Any) -> Object:
    pod = watched_cluster.pod(index, phase, **status)
    metadata = {**pod["metadata"], "name": f"{RUN}-workers-{index}-abcde"}
    metadata["labels"] = {**metadata["labels"], names.LABEL_ROLE: names.WORKER}
    return {**pod, "metadata": metadata}


def unscheduled(index: int) -> Object:
    condition = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes: insufficient cpu"}
    return worker(index, "Pending", conditions=[condition])


NODE_0 = watched_cluster.pod(0, "Running")
GANG = [NODE_0, watched_cluster.pod(1, "Running")]


def stream_jobset(workers: int = 3, **values: Any) -> Object:
    """The JobSet of a run of two nodes with a stream."""
    stream = {"source": "s3://set", "batch": 8, "workers": {"nodes": workers}}
    created = jobset(workers, launcher="mpirun", nodes=2, pool=None, command=["x"], stream=stream, **values)
    created["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"] = 2
    return created


def of_stream(pod: Object) -> Object:
    """A worker's pod as that of such a run."""
    labels = {**pod["metadata"]["labels"], names.LABEL_FIRST_NODE: "2"}
    return {**pod, "metadata": {**pod["metadata"], "labels": labels}}


class PoolCluster(FakeCluster):
    """Selects pods by their labels, as the API server does, and records what is patched."""

    def __init__(self, pods: list[Object], *runs: Object) -> None:
        super().__init__(pods, runs)
        self.patches: list[tuple[str, str, Object]] = []
        self.output = ""

    async def list(self, kind: str, labels: Any = None) -> list[Object]:
        wanted = {key: value for key, value in (labels or {}).items() if key != names.LABEL_RUN}
        assert all(re.fullmatch("[A-Za-z0-9](.*[A-Za-z0-9])?", value) for value in wanted.values())
        items = await super().list(kind, labels)
        return [each for each in items if wanted.items() <= each["metadata"].get("labels", {}).items()]

    async def patch(self, kind: str, name: str, values: Object) -> None:
        self.patches.append((kind, name, values))

    async def execute(self, pod: str, command: Sequence[str]) -> str:
        return self.output


def do(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 20))


def look(cluster: PoolCluster, of: Object) -> list[Event]:
    async def collect() -> list[Event]:
        batches = ClusterFollower(cluster, of).snapshot()  # type: ignore[arg-type]
        return [entry.event async for entries in batches for entry in entries if entry.event]

    return do(collect())


def test_workers_that_wait_are_counted_against_those_that_the_pool_is_to_have_and_end_nothing() -> None:
    cluster = PoolCluster([NODE_0, worker(0), unscheduled(1), unscheduled(2), unscheduled(3)])
    (event,) = look(cluster, jobset(workers=4))
    assert event.kind == record.WAITING and event.values[RUNNING]
    assert event.reason == "3/4 workers: 0/2 nodes: insufficient cpu", "and no countdown: the pool is up"


def test_workers_that_a_queue_holds_back_have_its_reason() -> None:
    seen = Observations(pods={"node-0": NODE_0})
    message = "couldn't assign flavors: insufficient unused quota for cpu"
    for name in (f"{RUN}-workers-0-abcde", f"jobset-{RUN}-de992", f"job-{RUN}-workers-1f2e3"):
        seen.add_event({"reason": "Pending", "involvedObject": {"name": name}, "message": message + " in " + name[:6]})
    assert workers_waiting_reason(seen, RUN, 3) == f"3 workers: Pending: {message} in job-di"
    seen.pods["worker"] = worker(0)
    assert workers_waiting_reason(seen, RUN, 3) is None


def test_a_pool_whose_node_0_waits_says_so_whatever_its_workers_wait_for() -> None:
    waiting = watched_cluster.unscheduled_pod(0, "no node on demand")
    (event,) = look(PoolCluster([waiting, unscheduled(0), unscheduled(1)]), jobset())
    assert RUNNING not in event.values
    assert str(event.reason).startswith("node 0: no node on demand (gives up in")


def test_a_pool_that_is_up_waits_for_nothing() -> None:
    assert look(PoolCluster([NODE_0, worker(0), worker(1), worker(2)]), jobset()) == []


def test_a_worker_killed_for_memory_says_so_with_its_remedy_and_is_not_why_the_pool_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_folder, "RETRY_DELAYS", ())
    killed = {"name": "node", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    cluster = PoolCluster([NODE_0, worker(1, "Failed", containerStatuses=[killed])])
    reasons: list[str] = []

    async def collect() -> None:
        async for entries in ClusterFollower(cluster, jobset()).follow():  # type: ignore[arg-type]
            reasons.extend(str(entry.event.reason) for entry in entries if entry.event)
            if reasons:
                return

    do(collect())
    assert reasons == [
        "worker 1 exceeded the memory limit of its pod (/dev/shm counts): raise pool.memory, or use less"
    ]
    failed = jobset(status={"conditions": [{"type": "Failed", "status": "True", "message": "driver failed"}]})
    assert look(cluster, failed)[-1].reason == "driver failed"


def test_a_pool_with_more_workers_than_logs_are_read_at_once_says_whose_output_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "MAX_STREAMS", 2)
    cluster = PoolCluster([NODE_0, *(worker(index) for index in range(4))])
    events: list[Event] = []

    async def collect() -> None:
        async for entries in ClusterFollower(cluster, jobset(workers=4)).follow():  # type: ignore[arg-type]
            events.extend(entry.event for entry in entries if entry.event)
            if events:
                return

    do(collect())
    (event,) = events
    assert event.kind == record.WAITING and event.values[RUNNING]
    assert event.reason == (
        "the output of 2 nodes is shown as it comes, that of others once one of them has ended; "
        "`spotmpi logs digits-1` shows all so far"
    )


def test_output_of_workers_is_that_of_the_node_after_their_index_and_later_pods_have_predecessors() -> None:
    assert [jobsets.node_index(pod) for pod in (NODE_0, worker(0), worker(7))] == [0, 1, 8]
    assert [jobsets.node_title(pod) for pod in (NODE_0, worker(7))] == ["node 0", "worker 7"]
    later = worker(0)
    later["metadata"]["annotations"] = {pod_context.FAILURE_COUNTS[0]: "0", pod_context.FAILURE_COUNTS[1]: "2"}
    first = worker(0)
    first["metadata"]["annotations"] = {pod_context.FAILURE_COUNTS[0]: "0"}
    assert [jobsets.has_predecessors(pod) for pod in (first, later)] == [False, True]


def test_the_end_of_a_pool_ends_workers_that_have_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "LOG_TIMEOUT", 0.1)
    ended = jobset(status={"conditions": [{"type": "Completed", "status": "True"}]})
    cluster = PoolCluster([watched_cluster.pod(0, "Succeeded"), unscheduled(0)])
    assert look(cluster, ended)[-1].kind == record.SUCCEEDED
    assert cluster.patches == [(api.JOB, f"{RUN}-workers", {"spec": {"suspend": True}})]


@pytest.mark.parametrize(("node", "name"), [(0, "node-0-0"), (1, "workers-0"), (2, "workers-1")])
def test_a_drill_of_node_k_meets_worker_k_minus_1(node: int, name: str) -> None:
    cluster = PoolCluster([NODE_0, worker(0), worker(1)], jobset())
    do(fault_injection.inject_fault(cluster, RUN, node, "delete"))  # type: ignore[arg-type]
    assert cluster.deleted == [f"{RUN}-{name}-abcde"]


def test_a_drill_of_a_worker_that_is_not_there_fails() -> None:
    with pytest.raises(SpotmpiError, match="node 3 of run digits-1 has no running pod"):
        do(fault_injection.pod_of(PoolCluster([NODE_0, worker(0)], jobset()), RUN, 3))  # type: ignore[arg-type]


@pytest.mark.parametrize(("node", "name"), [(0, "node-0-0"), (1, "node-0-1"), (2, "workers-0"), (3, "workers-1")])
def test_the_workers_of_a_stream_come_after_its_gang(node: int, name: str) -> None:
    pods = [*GANG, of_stream(worker(0)), of_stream(worker(1))]
    do(fault_injection.inject_fault(cluster := PoolCluster(pods, stream_jobset()), RUN, node, "delete"))  # type: ignore[arg-type]
    assert cluster.deleted == [f"{RUN}-{name}-abcde"]
    assert [jobsets.node_index(pod) for pod in pods] == [0, 1, 2, 3]


def test_a_stream_waits_for_its_gang_and_says_only_that_workers_are_missing() -> None:
    waiting = watched_cluster.unscheduled_pod(1, "no GPU")
    (event,) = look(PoolCluster([NODE_0, waiting, of_stream(unscheduled(0))]), stream_jobset())
    assert str(event.reason).startswith("1/2 nodes: no GPU (gives up in") and RUNNING not in event.values
    (event,) = look(PoolCluster([*GANG, of_stream(unscheduled(0))]), stream_jobset())
    assert event.reason == "1/3 workers: 0/2 nodes: insufficient cpu" and event.values[RUNNING]
    (event,) = look(PoolCluster([of_stream(worker(0))]), stream_jobset())
    assert str(event.reason).startswith("no pods yet"), "the gang is being restarted"


def test_a_worker_of_a_stream_that_lacks_memory_names_its_own_table() -> None:
    killed = {"name": "node", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    diagnosis = outcome.ExitDiagnosis(jobsets.run_info(stream_jobset()).workers_table)
    reason = diagnosis.report_killed(of_stream(worker(1, "Failed", containerStatuses=[killed])))
    assert reason and reason.startswith("worker 1 ") and "raise stream.workers.memory" in reason


def test_a_stop_asks_node_0_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = PoolCluster([watched_cluster.pod(0, "Running"), worker(0)])
    cluster.pods[0]["spec"] = {"terminationGracePeriodSeconds": -10}
    do(stop.request_stop(cluster, RUN, "enough"))  # type: ignore[arg-type]
    assert [name for _, name, _ in cluster.patches] == [f"{RUN}-node-0-0-abcde"]


def test_a_resize_changes_both_numbers_of_the_job_together() -> None:
    cluster = PoolCluster([], jobset())
    do(pool_access.resize(cluster, RUN, 24))  # type: ignore[arg-type]
    assert cluster.patches == [
        (api.JOB, f"{RUN}-workers", {"spec": {"parallelism": 24, "completions": 24}}),
        (api.JOBSET, RUN, {"metadata": {"annotations": {"spotmpi.dev/workers": "24"}}}),
    ]


ENDED = {"conditions": [{"type": "Completed", "status": "True"}]}


@pytest.mark.parametrize(
    ("run", "workers", "problem"),
    [
        (jobset(), 0, "workers = 0: a pool has at least one worker; `spotmpi stop digits-1` ends it"),
        (jobset(limits={"cost": 5}), 4, "limits.cost is counted for the 3 workers of its submission"),
        (jobset(status=ENDED), 4, "has ended; start another pool"),
        (watched_cluster.jobset(), 4, "has no workers"),
    ],
)
def test_a_resize_that_cannot_be_is_refused_with_its_remedy(run: Object, workers: int, problem: str) -> None:
    cluster = PoolCluster([], run)
    with pytest.raises(InputError) as error:
        do(pool_access.resize(cluster, RUN, workers))  # type: ignore[arg-type]
    assert problem in str(error.value) and not cluster.patches


def test_a_pool_with_a_cost_limit_may_shrink() -> None:
    cluster = PoolCluster([], jobset(limits={"cost": 5}))
    do(pool_access.resize(cluster, RUN, 2))  # type: ignore[arg-type]
    assert len(cluster.patches) == 2


def test_an_unknown_run_cannot_be_resized() -> None:
    with pytest.raises(UnknownRun, match="no-such-run"):
        do(pool_access.resize(PoolCluster([]), "no-such-run", 2))  # type: ignore[arg-type]


def test_the_files_of_tls_come_from_node_0s_pod_once_its_scheduler_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_access, "_POLL_INTERVAL", 0.01)
    cluster = PoolCluster([watched_cluster.pod(0, "Pending"), worker(0)], jobset())

    async def come_up() -> dict[str, str]:
        reading = asyncio.ensure_future(pool_access._wait_for_files(cluster, RUN))  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        cluster.pods[0] = NODE_0
        await asyncio.sleep(0.1)
        assert not reading.done(), "it does not listen yet"
        cluster.output = json.dumps({protocol.POOL_CA: "ca"})
        return await reading

    assert do(come_up()) == {protocol.POOL_CA: "ca"}


FAILED = {"conditions": [{"type": "Failed", "status": "True", "message": "no driver"}]}


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        ([], "no such run in the namespace"),
        ([watched_cluster.jobset()], "has no workers"),
        ([jobset(status=FAILED)], f"pool {RUN} failed: no driver"),
    ],
)
def test_a_pool_that_never_comes_up_is_not_waited_for(run: list[Object], problem: str) -> None:
    with pytest.raises(SpotmpiError, match=problem):
        do(pool_access._wait_for_files(PoolCluster([], *run), RUN))  # type: ignore[arg-type]


class PoolNamespace(Namespace):
    """Records the names of all objects that are patched."""

    def __init__(self, *forbidden: str) -> None:
        super().__init__(*forbidden)
        self.patched: list[tuple[str, str, Object]] = []

    async def patch(self, kind: str, name: str, values: Object) -> None:
        self.patched.append((kind, name, values))


def submission(**kubernetes: Any) -> Object:
    spec = from_values({**VALUES, "kubernetes": kubernetes})
    keys = dict.fromkeys([*submitting.generate_keys(), protocol.POOL_CA, protocol.POOL_KEY], "later")
    target = ClusterTarget("here", "any:1", None, {}, (), "any")
    objects = kubernetes_plan(spec, target, Submission("x-1", "ann", keys, {}, {}))
    return {"run": "x-1", "namespace": "here", "objects": objects, "ssh_secret": "mpi-ssh"}


def create(namespace: PoolNamespace, plan: Object) -> None:
    do(submitting.create(namespace, plan, lambda text: None))  # type: ignore[arg-type]


def test_workers_start_with_node_0_once_all_parts_are_created() -> None:
    namespace = PoolNamespace()
    create(namespace, submission())
    assert namespace.kinds() == ["JobSet", "Secret", "ConfigMap", "NetworkPolicy", "Job"]
    go = {"spec": {"suspend": False}}
    assert namespace.patched == [(api.JOBSET, "x-1", go), (api.JOB, "x-1-workers", go)]
    secret, job = namespace.created[1], namespace.created[4]
    assert "BEGIN PRIVATE KEY" in secret["stringData"][protocol.POOL_KEY]
    assert job["metadata"]["ownerReferences"][0]["uid"] == "u"


def test_a_queue_starts_both() -> None:
    namespace = PoolNamespace()
    create(namespace, submission(queue="gpus"))
    assert not namespace.patched


def test_a_pool_needs_a_secret_of_its_own() -> None:
    with pytest.raises(
        NotPermitted, match=r"the run's Secret, which holds the TLS key of its workers: .* the right to create Secrets"
    ):
        create(PoolNamespace("Secret"), submission())


def test_pods_of_a_pool_may_reach_each_other_where_the_namespace_denies_egress() -> None:
    namespace = PoolNamespace()
    namespace.policies = [{"spec": {"podSelector": {}, "policyTypes": ["Egress"]}}]
    create(namespace, submission())
    policy = next(each for each in namespace.created if each["kind"] == "NetworkPolicy")
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_an_error_at_the_end_of_a_pool_hides_nothing() -> None:
    class Refusing(PoolCluster):
        async def patch(self, kind: str, name: str, values: Object) -> None:
            raise watched_cluster.api_error(404)

    assert look(Refusing([]), jobset(status=ENDED))[-1].kind == record.SUCCEEDED


def test_gpus_of_workers_are_left_to_the_scheduler_and_all_pods_count_for_the_rate(tmp_path: Path) -> None:
    spec = from_values({"launcher": "pool", "pool": {"workers": 3, "gpu": 2}, "price": 1.5})
    capabilities = KubernetesBackend(tmp_path, namespace="here").inspect(spec)
    assert validate(spec, capabilities) == []
    assert capabilities.rate == 4 * 1.5


@pytest.mark.parametrize(("price", "rate"), [({}, 5 * 1.5), ({"price": 0.1}, 2 * 1.5 + 3 * 0.1)])
def test_the_workers_of_a_stream_count_for_the_rate_at_their_own_price(
    tmp_path: Path, price: dict[str, float], rate: float
) -> None:
    stream = {"source": "s3://set", "batch": 8, "workers": {"nodes": 3, **price}}
    spec = from_values({"command": ["x"], "nodes": 2, "stream": stream, "price": 1.5})
    assert KubernetesBackend(tmp_path, namespace="here").inspect(spec).rate == pytest.approx(rate)
