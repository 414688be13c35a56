"""A pool on a cluster: what it waits for, more and fewer workers, its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from spotmpi.agent import pod_context, protocol, record
from spotmpi.agent.plan import COORDINATOR, NODE, POSTPROCESS, STANDBY, WORKER, Member
from spotmpi.backends.base import PoolAddress
from spotmpi.backends.kubernetes import fault_injection, pool_access, stop
from spotmpi.backends.kubernetes.backend import KubernetesBackend
from spotmpi.backends.kubernetes.client import api
from spotmpi.backends.kubernetes.client.answers import OversizedAnswer
from spotmpi.backends.kubernetes.follow import jobset as jobsets
from spotmpi.backends.kubernetes.follow import pod_log
from spotmpi.backends.kubernetes.follow import run as following
from spotmpi.backends.kubernetes.follow.jobset import RUNNING
from spotmpi.backends.kubernetes.follow.waiting import Observations, waiting_reason, workers_waiting_reason
from spotmpi.core import names
from spotmpi.core.errors import InputError, NotPermitted, SpotmpiError, UnknownRun
from spotmpi.plan import cluster_plan, pool
from spotmpi.runs import pod_output
from spotmpi.runs.reader import RunState
from spotmpi.spec.source import from_values
from spotmpi.spec.validate import validate
from tests.cloud.cluster import objects
from tests.cloud.cluster.answers import Request
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import RUN, condition, event, log_line, of_kind, terminated_pod, unscheduled_pod
from tests.cloud.cluster.store import Object
from tests.unit.backends.kubernetes.following import follow, look

T = TypeVar("T")
POOL: Object = {"launcher": "pool", "pool": {"count": 3}}
STREAM: Object = {"source": "s3://set", "batch": 8, "workers": {"count": 3}}
JOB = of_kind("Job", f"{RUN}-worker", spec={"template": {"spec": {"containers": []}}})
NODE_0, NODE_1 = objects.pod(0, "Running"), objects.pod(1, "Running")
REFUSED = terminated_pod(0, protocol.NOT_RETRYABLE, "Error", phase="Pending")
GOING_ON = RunState(RUN, "", RUN, RUNNING)


def jobset(workers: int = 3, status: Object | None = None, spec: Object = POOL, **values: Any) -> Object:
    """The JobSet of a pool, or of a run with workers, that has been resized to so many of them."""
    job = from_values({**spec, **values})
    annotations = {
        cluster_plan.ANNOTATION_SPEC: json.dumps(job.model_dump(mode="json", exclude_defaults=True)),
        pool.ANNOTATION_WORKERS: str(workers),
    }
    return objects.jobset(status=status, nodes=job.nodes, annotations=annotations)


def stream_jobset() -> Object:
    """The JobSet of a run of two nodes with a stream."""
    return jobset(spec={"launcher": "mpirun", "nodes": 2, "command": ["x"], "stream": STREAM})


def worker(index: int, of: Object | None = None) -> Object:
    """The pod of a worker; *of* is that of a node with the same index, by default one that runs."""
    pod = of or objects.pod(index, "Running")
    labels = {**pod["metadata"]["labels"], names.LABEL_ROLE: WORKER}
    return {**pod, "metadata": {**pod["metadata"], "name": f"{RUN}-worker-{index}-abcde", "labels": labels}}


STAGES: dict[str, Any] = {**STREAM, "postprocess": "flow:post", "postprocess_workers": {"count": 2}}


def stages_jobset() -> Object:
    """The JobSet of a run with a stream whose postprocess has workers of its own."""
    return jobset(spec={"launcher": "mpirun", "nodes": 2, "command": ["x"], "stream": STAGES})


def postprocess(index: int, of: Object | None = None) -> Object:
    """The pod of such a worker."""
    pod = worker(index, of)
    labels = {**pod["metadata"]["labels"], names.LABEL_ROLE: POSTPROCESS}
    return {**pod, "metadata": {**pod["metadata"], "name": f"{RUN}-postprocess-{index}-abcde", "labels": labels}}


def test_a_follower_knows_the_workers_of_each_stage(cluster: FakeCluster) -> None:
    info = jobsets.FollowedRun(stages_jobset())
    assert [member.text for member in info.members] == [
        "node/0",
        *(f"worker/{index}" for index in range(3)),
        *(f"postprocess/{index}" for index in range(2)),
    ]
    waiting = postprocess(1, unscheduled_pod(1, "0/2 nodes: insufficient memory"))
    cluster.put(NODE_0, NODE_1, *(worker(index) for index in range(3)), postprocess(0), waiting)
    assert [event.reason for event in look(cluster, stages_jobset())] == [
        "1/2 postprocess workers: 0/2 nodes: insufficient memory"
    ]
    killed = postprocess(1, terminated_pod(1, 137, "OOMKilled"))
    assert jobsets.ExitDiagnosis(info.workers_tables).report_killed(killed) == (
        "postprocess 1 exceeded the memory limit of its pod (/dev/shm counts): raise "
        "stream.postprocess_workers.memory, or use less"
    )


def test_the_end_of_a_run_ends_the_workers_of_each_stage(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "LOG_TIMEOUT", 0.1)
    own = of_kind("Job", f"{RUN}-postprocess", spec=JOB["spec"])
    cluster.put(objects.pod(0, "Succeeded"), JOB, own)
    end = {**stages_jobset(), "status": condition("Completed")}
    assert look(cluster, end)[-1].kind == record.SUCCEEDED
    assert sorted(name for _, name, _ in cluster.patched) == [f"{RUN}-postprocess", f"{RUN}-worker"]


def unscheduled(index: int) -> Object:
    return worker(index, unscheduled_pod(index, "0/2 nodes: insufficient cpu"))


def refuse_pool(cluster: FakeCluster, status: Object) -> None:
    """Let the cluster have a pool whose image does not fit its driver, as node 0's agent has just said."""
    cluster.put(jobset(status=status), REFUSED)
    cluster.add_log(REFUSED, log_line(1, record.FAILED, reason="the image has Python 3.11"))


def do(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 60))


@pytest.mark.parametrize(
    ("of", "pods", "reason"),
    [
        pytest.param(
            lambda: jobset(workers=4),
            [NODE_0, worker(0), unscheduled(1), unscheduled(2), unscheduled(3)],
            "3/4 workers: 0/2 nodes: insufficient cpu",
            id="workers, counted against those that the pool is to have",
        ),
        pytest.param(
            stream_jobset,
            [NODE_0, NODE_1, unscheduled(0)],
            "1/3 workers: 0/2 nodes: insufficient cpu",
            id="workers of a stream",
        ),
    ],
)
def test_missing_workers_are_reported_without_a_countdown_since_the_run_is_up(
    cluster: FakeCluster, of: Callable[[], Object], pods: list[Object], reason: str
) -> None:
    cluster.put(*pods)
    (event,) = look(cluster, of())
    assert (event.kind, event.reason) == (record.WAITING, reason)
    assert event.values[RUNNING]


def test_a_pod_that_stands_by_for_a_stream_and_has_no_node_is_reported_once_all_workers_have_theirs(
    cluster: FakeCluster,
) -> None:
    waiting = unscheduled_pod(0, "0/2 nodes: no GPU")
    labels = {**waiting["metadata"]["labels"], names.LABEL_ROLE: STANDBY}
    waiting = {**waiting, "metadata": {**waiting["metadata"], "name": f"{RUN}-standby-0-0-abcde", "labels": labels}}
    cluster.put(NODE_0, NODE_1, *map(worker, range(3)), waiting)
    (event,) = look(cluster, stream_jobset())
    assert event.reason == "1/1 standby pods: 0/2 nodes: no GPU; the run goes on without"
    assert event.values[RUNNING]


@pytest.mark.parametrize(
    ("of", "pods", "reason"),
    [
        pytest.param(
            jobset,
            lambda: [unscheduled_pod(0, "no node on demand"), unscheduled(0), unscheduled(1)],
            "node 0: no node on demand (gives up in",
            id="node 0",
        ),
        pytest.param(
            stream_jobset,
            lambda: [objects.pod(0, "Running"), unscheduled_pod(1, "no GPU"), unscheduled(0)],
            "1/2 nodes: no GPU (gives up in",
            id="a gang",
        ),
        pytest.param(stream_jobset, lambda: [worker(0)], "no pods yet", id="a gang that is being restarted"),
    ],
)
def test_a_run_waits_for_its_nodes_whatever_its_workers_wait_for(
    cluster: FakeCluster, of: Callable[[], Object], pods: Callable[[], list[Object]], reason: str
) -> None:
    cluster.put(*pods())  # not made when the test is collected, which may be long before
    (event,) = look(cluster, of())
    assert str(event.reason).startswith(reason) and RUNNING not in event.values


def test_a_pool_that_is_up_waits_for_nothing(cluster: FakeCluster) -> None:
    cluster.put(NODE_0, worker(0), worker(1), worker(2))
    assert look(cluster, jobset()) == []


def test_what_a_queue_holds_back_has_its_reason() -> None:
    seen = Observations()
    message = "couldn't assign flavors: insufficient unused quota for cpu"
    for name in (f"{RUN}-worker-0-abcde", f"job-{RUN}-worker-1f2e3", f"jobset-{RUN}-de992"):
        seen.add_event(event({"name": name}, "Pending", message + " in " + name[:6]))
    assert waiting_reason(seen, RUN, 1, has_workers=True) == f"Pending: {message} in jobset"
    assert workers_waiting_reason(seen, RUN, WORKER, 3) == f"3 workers: Pending: {message} in job-di"
    seen.pods["worker"] = worker(0)
    assert workers_waiting_reason(seen, RUN, WORKER, 3) is None
    seen.add_event(event({"name": f"{RUN}-worker"}, "FailedCreate", "quota"))
    assert workers_waiting_reason(seen, RUN, WORKER, 3) == "2/3 workers: FailedCreate: quota"
    assert workers_waiting_reason(seen, RUN, WORKER, 1) is None


def test_a_worker_killed_for_memory_says_so_with_its_remedy_and_is_not_why_the_pool_failed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_log, "RETRY_DELAYS", ())
    killed = worker(1, terminated_pod(1, 137, "OOMKilled"))
    cluster.put(NODE_0, killed)
    (event,) = follow(cluster, jobset(), enough=1)
    reason = "worker 1 exceeded the memory limit of its pod (/dev/shm counts): raise pool.memory, or use less"
    assert event.reason == reason
    failed = jobset(status=condition("Failed", message="driver failed"))
    assert look(cluster, failed)[-1].reason == "driver failed"

    diagnosis = jobsets.ExitDiagnosis(jobsets.FollowedRun(stream_jobset()).workers_tables)
    assert diagnosis.report_killed(killed) == reason.replace("pool.memory", "stream.workers.memory")


def test_a_pool_with_more_workers_than_logs_are_read_at_once_says_whose_output_is_missing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "MAX_STREAMS", 2)
    cluster.put(NODE_0, *(worker(index) for index in range(4)))
    (event,) = follow(cluster, jobset(workers=4), enough=1)
    assert event.kind == record.WAITING and event.values[RUNNING]
    assert event.reason == (
        "the output of 2 nodes is shown as it comes, that of others once one of them has ended; "
        "`spotmpi logs digits-1` shows all so far"
    )


def test_workers_have_numbers_of_their_own_and_later_pods_have_predecessors() -> None:
    assert [str(jobsets.member_of(pod)) for pod in (NODE_0, worker(0), worker(7))] == ["node 0", "worker 0", "worker 7"]
    first, later = worker(0), worker(0)
    first["metadata"]["annotations"] = {pod_context.FAILURE_COUNTS[0]: "0"}
    later["metadata"]["annotations"] = {pod_context.FAILURE_COUNTS[0]: "0", pod_context.FAILURE_COUNTS[1]: "2"}
    assert [jobsets.has_predecessors(pod) for pod in (first, later)] == [False, True]


@pytest.mark.parametrize("is_gone", [False, True], ids=["the workers' Job", "which is gone"])
def test_the_end_of_a_pool_ends_workers_that_have_not_started(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    monkeypatch.setattr(following, "LOG_TIMEOUT", 0.1)
    cluster.put(objects.pod(0, "Succeeded"), unscheduled(0), JOB)
    if is_gone:
        cluster.remove(JOB)
    assert look(cluster, jobset(status=condition("Completed")))[-1].kind == record.SUCCEEDED
    assert cluster.patched == [(api.JOB, f"{RUN}-worker", {"spec": {"suspend": True}})] * (not is_gone)


WORKERS = [worker(0), worker(1)]


@pytest.mark.parametrize(
    ("of", "nodes"), [(jobset(), [NODE_0]), (stream_jobset(), [NODE_0, NODE_1])], ids=["pool", "stream"]
)
def test_a_fault_meets_the_worker_that_was_named(cluster: FakeCluster, of: Object, nodes: list[Object]) -> None:
    cluster.put(of, *nodes, *WORKERS)
    with pytest.raises(SpotmpiError, match="worker 2 of run digits-1 has no running pod"):
        do(fault_injection.pod_of(cluster.api(), RUN, Member(WORKER, 2)))
    for member in (Member(WORKER, 1), COORDINATOR):
        do(fault_injection.inject_fault(cluster.api(), RUN, member, "delete"))
    assert cluster.deleted == [f"{RUN}-{name}-abcde" for name in ("worker-1", "node-0-0")]


@pytest.mark.parametrize("printed", ["killed\nkilled\n", ""], ids=["two ranks", "none"])
def test_a_drill_that_finds_no_rank_to_kill_says_so(cluster: FakeCluster, printed: str) -> None:
    """As an exec it succeeds, whatever its command did."""
    cluster.put(stream_jobset(), NODE_0, NODE_1)
    cluster.answer_commands(printed)
    if printed:
        do(fault_injection.inject_fault(cluster.api(), RUN, Member(NODE, 1), "kill"))
    else:
        with pytest.raises(SpotmpiError, match="node 1 of run digits-1 has no running ranks"):
            do(fault_injection.inject_fault(cluster.api(), RUN, Member(NODE, 1), "kill"))


def test_a_stop_asks_node_0_alone(cluster: FakeCluster) -> None:
    cluster.put(NODE_0, worker(0))
    cluster.on_request = lambda request: cluster.remove(NODE_0) if request.verb == "patch" else None
    do(stop.request_stop(cluster.api(), RUN, "enough"))
    assert [name for _, name, _ in cluster.patched] == [f"{RUN}-node-0-0-abcde"]


@pytest.mark.parametrize(
    ("limits", "workers"), [({}, 24), ({"cost": 5}, 2)], ids=["grows", "shrinks in spite of its cost limit"]
)
def test_a_resize_changes_both_numbers_of_the_job_together(cluster: FakeCluster, limits: Object, workers: int) -> None:
    cluster.put(jobset(limits=limits), JOB)
    do(pool_access.resize(cluster.api(), RUN, workers))
    assert cluster.patched == [
        (api.JOB, f"{RUN}-worker", {"spec": {"parallelism": workers, "completions": workers}}),
        (api.JOBSET, RUN, {"metadata": {"annotations": {"spotmpi.dev/workers": str(workers)}}}),
    ]


def test_a_resize_of_the_postprocess_changes_its_job_and_what_followers_expect(cluster: FakeCluster) -> None:
    own = of_kind("Job", f"{RUN}-postprocess", spec={"template": {"spec": {"containers": []}}})
    cluster.put(stages_jobset(), JOB, own)
    do(pool_access.resize(cluster.api(), RUN, 4, POSTPROCESS))
    note = {"metadata": {"annotations": {"spotmpi.dev/postprocess-workers": "4"}}}
    assert cluster.patched == [
        (api.JOB, f"{RUN}-postprocess", {"spec": {"parallelism": 4, "completions": 4}}),
        (api.JOBSET, RUN, note),
    ]
    before = stages_jobset()
    annotations = {**before["metadata"]["annotations"], **note["metadata"]["annotations"]}
    resized = {**before, "metadata": {**before["metadata"], "annotations": annotations}}
    assert jobsets.FollowedRun(resized).workers == {WORKER: 3, POSTPROCESS: 4}


def test_a_resize_of_the_postprocess_needs_workers_of_its_own_and_its_cost_limit_is_that_of_its_number(
    cluster: FakeCluster,
) -> None:
    cluster.put(stream_jobset(), JOB)
    with pytest.raises(InputError, match=r"stage = 'postprocess': run digits-1 has no workers for it alone: omit"):
        do(pool_access.resize(cluster.api(), RUN, 4, POSTPROCESS))
    spec = {"launcher": "mpirun", "nodes": 2, "command": ["x"], "stream": STAGES, "limits": {"cost": 5}}
    cluster.put(jobset(spec=spec))
    with pytest.raises(InputError, match=r"limits\.cost is counted for the 2 workers of its submission"):
        do(pool_access.resize(cluster.api(), RUN, 3, POSTPROCESS))
    assert not cluster.patched


@pytest.mark.parametrize(
    ("run", "workers", "problem"),
    [
        ([jobset(limits={"cost": 5})], 4, "limits.cost is counted for the 3 workers of its submission"),
        ([jobset(status=condition("Completed"))], 4, "has ended; submit it again"),
        ([objects.jobset()], 4, "has no workers"),
        ([], 4, "run = 'digits-1': no such run"),
    ],
)
def test_a_resize_that_cannot_be_is_refused_with_its_remedy(
    cluster: FakeCluster, run: list[Object], workers: int, problem: str
) -> None:
    cluster.put(*run, JOB)
    with pytest.raises(InputError if run else UnknownRun) as error:
        do(pool_access.resize(cluster.api(), RUN, workers))
    assert problem in str(error.value) and not cluster.patched


def test_the_files_of_tls_come_from_node_0s_pod_once_its_scheduler_listens(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_access, "_POLL_INTERVAL", 60.0)  # it watches the pod
    cluster.put(jobset(), objects.pod(0, "Pending"), worker(0))
    api = cluster.api()

    async def come_up() -> dict[str, str]:
        reading = asyncio.ensure_future(pool_access._wait_for_files(api, RUN, lambda: GOING_ON))
        await asyncio.sleep(0.1)
        for output in ("", json.dumps({protocol.TLS_CA: "ca"})):
            assert not reading.done(), "it does not listen yet"
            cluster.answer_commands(output)
            cluster.put(NODE_0)
            await asyncio.sleep(0.1)
        return await reading

    assert do(come_up()) == {protocol.TLS_CA: "ca"}


@pytest.mark.parametrize("missing", [*protocol.TLS_FILES, None])
def test_what_else_a_pod_sends_as_files_of_tls_is_written_nowhere(
    cluster: FakeCluster, tmp_path: Path, missing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's program, its image and whoever may open a shell in the pod can answer whatever they like."""
    profile = tmp_path / ".profile"
    profile.write_text("mine")
    answer: Object = dict.fromkeys(protocol.TLS_FILES, "pem")
    answer |= {str(profile): "theirs", "../up": "theirs", "more.pem": "theirs", "number": 1}
    if missing:
        answer[missing] = 5
    cluster.put(jobset(), NODE_0)
    cluster.answer_commands(json.dumps(answer))
    monkeypatch.setattr(pool_access, "forward_to_node_0", lambda *arguments: contextlib.nullcontext(7))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)

    refusal = pytest.raises(SpotmpiError, match=f"node 0 of run {RUN} sent no {missing}: something else answers")
    with refusal if missing else contextlib.nullcontext(), open_pool(cluster) as address:
        assert sorted(path.name for path in address.tls.iterdir()) == sorted(protocol.TLS_FILES)

    assert profile.read_text() == "mine" and [path.name for path in tmp_path.iterdir()] == [".profile"]


def open_pool(cluster: FakeCluster) -> contextlib.AbstractContextManager[PoolAddress]:
    return pool_access.pool_address(cluster.api, RUN, lambda: GOING_ON)


@pytest.mark.parametrize("answer", ["[]", "5", "null", "[" * 100_000, '{"ca.pem": '])
def test_an_answer_without_files_of_tls_is_none(cluster: FakeCluster, answer: str) -> None:
    cluster.put(NODE_0)
    cluster.answer_commands(answer)
    assert do(pool_access._read_files(cluster.api(), NODE_0)) == {}


def test_a_pod_that_prints_without_an_end_is_asked_once(cluster: FakeCluster) -> None:
    cluster.put(jobset(), NODE_0)
    cluster.answer_commands("y\n" * (pool_access.LONGEST_ANSWER // 2 + 1))
    with pytest.raises(OversizedAnswer, match=f"pod {NODE_0['metadata']['name']} printed more than 1,048,576 bytes"):
        do(pool_access._wait_for_files(cluster.api(), RUN, lambda: GOING_ON))
    assert len(cluster.requests_of("get", "pods/exec")) == 1


def test_a_user_who_may_not_run_commands_in_pods_waits_for_no_files(cluster: FakeCluster) -> None:
    cluster.put(jobset(), NODE_0)
    cluster.forbid("get", "pods/exec")
    with pytest.raises(NotPermitted, match="could not reach the scheduler: not permitted"):
        do(pool_access._wait_for_files(cluster.api(), RUN, lambda: GOING_ON))


@pytest.mark.parametrize(
    ("run", "problem"),
    [([], "no such run in the namespace"), ([objects.jobset()], "has no workers")],
)
def test_only_pools_and_streams_have_an_address(cluster: FakeCluster, run: list[Object], problem: str) -> None:
    cluster.put(*run)
    with pytest.raises(SpotmpiError, match=problem):
        do(pool_access._wait_for_files(cluster.api(), RUN, lambda: GOING_ON))


@pytest.mark.parametrize("status", [condition("Failed", message="FailJobSet"), {}], ids=["JobSet failed", "only agent"])
@pytest.mark.parametrize("followed", [False, True])
def test_a_pool_that_ends_before_it_is_up_is_given_up_with_the_reason_that_its_agent_recorded(
    runs: Path, cluster: FakeCluster, status: Object, followed: bool
) -> None:
    refuse_pool(cluster, status)
    pools = KubernetesBackend(runs)
    pools._ensure_copy(cluster.get("JobSet", RUN))
    writer = pod_output.RunCache(names.RunPaths(runs / RUN))  # of a follower
    follower = writer if followed else contextlib.nullcontext()
    with follower, pytest.raises(SpotmpiError) as error, pools.pool_address(RUN):
        pytest.fail("it has an address")
    assert str(error.value) == f"run {RUN} failed: the image has Python 3.11"


def test_workers_that_wait_for_a_node_0_that_has_failed_are_ended_before_their_logs_are_waited_for(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "LOG_TIMEOUT", 60.0)
    refuse_pool(cluster, {})
    cluster.put(JOB, worker(0))

    def end_workers(request: Request) -> None:
        if request.verb == "patch":
            cluster.put(worker(0, objects.pod(0, "Failed")))

    cluster.on_request = end_workers
    assert follow(cluster, jobset())[-1].reason == "the image has Python 3.11"
    assert cluster.patched == [("Job", f"{RUN}-worker", {"spec": {"suspend": True}})]


@pytest.mark.parametrize(
    ("values", "rate"),
    [
        pytest.param({"launcher": "pool", "pool": {"count": 3, "gpu": 2}}, 4 * 1.5, id="pool"),
        pytest.param({"command": ["x"], "nodes": 2, "stream": STREAM}, 5 * 1.5, id="stream"),
        pytest.param(
            {"command": ["x"], "nodes": 2, "stream": {**STREAM, "workers": {"count": 3, "price": 0.1}}},
            2 * 1.5 + 3 * 0.1,
            id="stream whose workers have their own price",
        ),
    ],
)
def test_all_pods_count_for_the_rate(tmp_path: Path, values: Object, rate: float) -> None:
    pools = KubernetesBackend(tmp_path, namespace="here")
    assert pools.inspect(from_values({**values, "price": 1.5})).rate == pytest.approx(rate)


def test_gpus_of_workers_are_left_to_the_scheduler(tmp_path: Path) -> None:
    spec = from_values({"launcher": "pool", "pool": {"count": 3, "gpu": 2}})
    assert validate(spec, KubernetesBackend(tmp_path, namespace="here").inspect(spec)) == []


def test_status_has_how_many_workers_of_each_stage_are_wanted_and_ready(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.put(stages_jobset(), NODE_0)
    begun = log_line(1, "started", t=4e9, attempt=1, failures=0, interruptions=0)
    cluster.add_log(NODE_0, begun, log_line(2, "joined", t=4e9 + 1, attempt=1, member="worker/1"))
    workers = {WORKER: {"wanted": 3, "ready": 1}, POSTPROCESS: {"wanted": 2, "ready": 0}}
    assert KubernetesBackend(tmp_path).state(RUN).workers == workers
