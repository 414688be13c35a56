"""A terminal's copy of a run: only the run's cluster can say how the run is, and how often it was started."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spotmpi
from spotmpi.agent import placement, pod_context
from spotmpi.agent.plan import NODE
from spotmpi.api import cleanup
from spotmpi.backends import targets
from spotmpi.backends.kubernetes.backend import KubernetesBackend
from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.follow.jobset import add_restart_counts
from spotmpi.backends.kubernetes.submit import objects
from spotmpi.core import names
from spotmpi.core.errors import InputError
from spotmpi.core.names import RunPaths
from spotmpi.core.wording import Echo
from spotmpi.plan import cluster_plan
from spotmpi.plan.cluster_plan import ClusterPlan, cached_plan
from spotmpi.runs import folder as run_folder
from spotmpi.runs import reader, recorded_plan
from spotmpi.runs.reader import RunState
from tests.cloud.cluster.fake_cluster import FakeCluster, write_kubeconfig
from tests.cloud.cluster.objects import RUN, a_pod, condition, event, jobset, log_line, pod

pytestmark = pytest.mark.usefixtures("a_run")


def copy(
    runs_folder: Path, *events: dict[str, Any], context: str | None = "this", namespace: str = "here", run: str = RUN
) -> RunPaths:
    """Lay down the copy of a run that was submitted in 1970, with *events* that were seen since."""
    paths, spec = RunPaths(runs_folder / run), cluster_plan.spec_of(jobset())
    run_folder.create(paths, spec.to_toml(), cached_plan(spec.title, run, context, namespace), 1000.0)
    with paths.events.open("a") as file:
        file.writelines(json.dumps({"t": 1000.0 + at, **event}) + "\n" for at, event in enumerate(events, 1))
    return paths


STOPPED = {"event": "stopped"}


def started(attempt: int, failures: int, interruptions: int) -> dict[str, Any]:
    """The event of an attempt's start."""
    return {"event": "started", "attempt": attempt, "failures": failures, "interruptions": interruptions}


def counts(state: RunState) -> tuple[int, int, int]:
    return state.attempt, state.failures, state.interruptions


def clean(folder: Path, messages: list[str] | None = None) -> list[str]:
    """Give the ids of the runs that were deleted."""
    echo = (messages if messages is not None else []).append
    return [state.id for state in spotmpi.clean(-60, True, targets.Target(runs_folder=folder), echo)]


def test_a_copy_of_a_run_in_progress_in_a_cluster_is_not_lost(runs: Path) -> None:
    """The state names where to ask for the run, instead of calling it lost."""
    copy(runs)
    (state,) = spotmpi.list_runs(targets.Target("local", runs))
    assert (state.state, state.over) == ("elsewhere", False)
    assert state.reason == f"it is in namespace here of context this; `spotmpi status {RUN}` asks the cluster"


def test_clean_does_not_delete_a_run_in_progress_in_its_cluster(runs: Path, cluster: FakeCluster) -> None:
    paths = copy(runs)
    assert clean(runs) == []
    assert paths.events.is_file()


def test_clean_does_not_delete_runs_that_their_cluster_may_have(runs: Path, cluster: FakeCluster) -> None:
    """A cluster that refuses to list them is named once."""
    paths, messages = copy(runs), list[str]()
    cluster.clear("JobSet")
    cluster.forbid("*", "jobsets")
    copy(runs, run="digits-2")
    assert clean(runs, messages) == []
    (message,) = messages
    assert paths.events.is_file()
    assert "runs without a recorded end in namespace here of context this are kept, since it does not" in message


def test_clean_deletes_a_copy_whose_jobset_is_gone(runs: Path, cluster: FakeCluster) -> None:
    paths = copy(runs)
    cluster.clear("JobSet")
    assert clean(runs) == [RUN]
    assert not paths.folder.exists()


@pytest.mark.parametrize(("on", "namespace"), [(None, "team"), ("kubernetes", "team"), ("kubernetes/other", "other")])
def test_a_run_is_looked_up_in_its_recorded_namespace_unless_one_is_named(
    on: str | None, namespace: str, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later `status ID --on kubernetes` looks in this namespace, not in that of a context."""
    copy(runs, context="outputs", namespace="team")
    configs = [write_kubeconfig(runs.parent / name, "http://127.0.0.1:1", name) for name in ("current", "outputs")]
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, configs)))
    backend: Any = targets.backend_of(RUN, targets.Target(on, runs))
    assert backend._api().namespace == namespace


@pytest.mark.parametrize("may_read_events", [True, False])
def test_a_list_of_many_runs_asks_for_their_pods_and_events_once(
    runs: Path, cluster: FakeCluster, may_read_events: bool
) -> None:
    waiting = [f"waiting-{number}" for number in range(5)]
    cluster.put(*(jobset(name=name) for name in waiting))
    cluster.put(*(event({"name": f"{name}-node-0"}, "FailedCreate", "no quota", name) for name in waiting))
    if not may_read_events:
        cluster.forbid("list", "events")
    cluster.answer_commands("")
    states = {state.id: state for state in targets.backend(targets.Target("kubernetes", runs)).list()}
    assert {state.state for name, state in states.items() if name in waiting} == {"waiting"}
    reason = "FailedCreate: no quota" if may_read_events else "no pods yet (you are not permitted to read events"
    assert all(str(states[name].reason).startswith(reason) for name in waiting), states
    assert [len(cluster.requests_of("list", kind)) for kind in ("jobsets", "pods", "events")] == [1, 1, 1]
    assert not cluster.requests_of("get", "pods"), states


def test_a_list_of_many_runs_asks_once_why_there_are_no_machines(runs: Path, cluster: FakeCluster) -> None:
    for number in range(5):
        labels = {**names.run_labels(f"waiting-{number}"), names.LABEL_ROLE: NODE}
        unscheduled = condition("PodScheduled", "False", message="0/2 nodes: no GPU")
        cluster.put(jobset(name=f"waiting-{number}", nodes=1))
        cluster.put(a_pod(f"waiting-{number}-node-0-0", "Pending", labels, **unscheduled))
    states = targets.backend(targets.Target("kubernetes", runs)).list()
    reasons = [str(state.reason) for state in states if state.state == "waiting"]
    assert len(reasons) == 5 and all("1/1 nodes: 0/2 nodes: no GPU" in reason for reason in reasons)
    assert [request.name for request in cluster.requests_of("get", "configmaps")] == ["cluster-autoscaler-status"]


def test_a_run_of_another_cluster_is_not_lost(runs: Path, cluster: FakeCluster) -> None:
    copy(runs, context="other")
    cluster.clear("JobSet")
    backend = KubernetesBackend(runs)
    assert backend.state(RUN).state == "elsewhere"
    assert backend.list() == []


def test_a_run_without_a_jobset_in_its_cluster_is_lost_and_can_be_resumed(runs: Path, cluster: FakeCluster) -> None:
    copy(runs)
    cluster.clear("JobSet")
    (state,) = KubernetesBackend(runs).list()
    assert (state.state, state.reason, state.over) == ("lost", "its JobSet is gone from namespace here", True)


def test_a_run_whose_cluster_is_asked_is_not_said_to_be_elsewhere(runs: Path, cluster: FakeCluster) -> None:
    """Its pods run and have recorded nothing yet, so only the copy has a reason: to ask the cluster."""
    copy(runs)
    state = spotmpi.status(RUN, targets.Target("kubernetes", runs))
    assert (state.state, state.reason) == (reader.RUNNING, None)


def test_a_copy_records_the_context_even_if_it_was_the_current_one(runs: Path, cluster: FakeCluster) -> None:
    """The record has the context's name, so that a later command contacts the same cluster."""
    KubernetesBackend(runs).list()
    assert [recorded_plan.cluster_of(paths) for paths in reader.every(runs)] == [("this", "here")]


@pytest.mark.parametrize(
    "call", [lambda on: spotmpi.logs(RUN, True, on), lambda on: spotmpi.stop(RUN, on=on)], ids=["logs", "stop"]
)
def test_the_local_backend_refuses_a_run_of_a_cluster(runs: Path, call: Callable[[targets.Target], object]) -> None:
    """One line says so: `stop` does not wait, and `logs` does not speak of an agent."""
    copy(runs)
    with pytest.raises(InputError, match=f"run {RUN} is in namespace here of context this: omit on"):
        call(targets.Target("local", runs))


def test_a_record_in_use_is_not_deleted(runs: Path) -> None:
    """The folder stays, with a line, so that `--resume` still finds it while it submits."""
    paths, messages = copy(runs, STOPPED), list[str]()
    with reader.lock(paths):
        assert clean(runs, messages) == []
    assert messages == [f"{RUN} is kept: another process is writing the record of run {RUN}; try again later"]
    assert clean(runs) == [RUN]


def test_a_record_is_not_deleted_while_its_run_is_being_continued(
    runs: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder stays, whichever command is first; the run goes on and needs its record."""
    paths = copy(runs, STOPPED)
    deleted: list[list[str]] = []

    async def create(api: ClusterApi, plan: ClusterPlan, echo: Echo) -> objects.CreatedRun:
        deleted.append(clean(runs))
        return objects.CreatedRun([], 2000.0)

    monkeypatch.setattr(objects, "create", create)
    spec = cluster_plan.spec_of(jobset())
    plan: ClusterPlan = {
        **cached_plan(spec.title, RUN, None, "here"),
        "notes": [],
        "code": None,
        "owner": "ann",
        "ssh_secret": None,
        "environment": None,
        "outputs": None,
        "objects": [{"kind": "JobSet", **jobset()}],
        "unchecked": None,
    }
    KubernetesBackend(runs).submit(spec, plan, print)
    assert deleted == [[]]
    assert [event["event"] for event in reader.lines(paths.events)] == ["submitted", "stopped", "submitted"]


def test_a_record_resumed_before_its_deletion_is_not_deleted(runs: Path) -> None:
    copy(runs, STOPPED)
    messages: list[str] = []
    old = cleanup.old_runs(runs, 1e12, messages.append)
    copy(runs)
    assert cleanup.delete_records(old, messages.append) == []
    assert messages == [f"{RUN} is kept: it has been resumed"]


@pytest.mark.parametrize("recorded", [0, 1, 3])
def test_all_attempts_are_counted_while_the_gang_restarts(runs: Path, cluster: FakeCluster, recorded: int) -> None:
    """The counters come from JobSet; the copied events of a restarting gang are incomplete."""
    cluster.clear("Pod")
    cluster.put(jobset(status={"restarts": 15, "restartsCountTowardsMax": 2}))
    copy(runs, *(started(attempt + 1, 0, attempt) for attempt in range(recorded)))
    state = KubernetesBackend(runs).state(RUN)
    assert (state.state, *counts(state)) == ("waiting", 15, 2, 13)


def test_the_attempt_of_a_running_pod_is_not_waiting(runs: Path, cluster: FakeCluster) -> None:
    cluster.put(jobset(status={"restarts": 15}), pod(1, "Running"))
    cluster.add_log(pod(0, "Running"), log_line(1, "started", t=4e9, attempt=1, failures=0, interruptions=0))
    copy(runs)
    assert counts(KubernetesBackend(runs).state(RUN)) == (16, 0, 15)


def test_the_agents_counts_have_priority_where_they_cover_every_restart() -> None:
    """JobSet counts a deleted pod as a failure, the agents as an interruption: each restart is counted once."""
    status = {"restarts": 3, "restartsCountTowardsMax": 3}
    state = RunState(RUN, "", "", "running", attempt=4, failures=0, interruptions=3)
    assert add_restart_counts(state, jobset(status=status), 0, waiting=False) == state


def test_a_running_attempt_counts_and_so_do_those_of_earlier_submissions() -> None:
    status = {"restarts": 2}
    state = add_restart_counts(RunState(RUN, "", "", "running", attempt=5), jobset(status=status), 5, waiting=False)
    assert counts(state) == (8, 0, 2)
    assert counts(add_restart_counts(RunState(RUN, "", "", "submitted"), jobset(), 0, waiting=False)) == (0, 0, 0)


def test_counts_do_not_decrease_where_an_agent_has_lost_its_record(runs: Path) -> None:
    """Without a run volume each attempt is an agent's first: it counts from the beginning."""
    assert counts(reader.state(copy(runs, started(3, 1, 1), started(1, 0, 0)))) == (3, 1, 1)


def test_a_resumed_run_counts_failures_from_zero(runs: Path) -> None:
    paths = copy(runs, started(4, 2, 1), {"event": "failed", "failures": 3, "interruptions": 1})
    copy(runs, started(5, 0, 0))
    assert counts(reader.state(paths)) == (5, 0, 0)
    assert reader.earlier_attempts(paths) == 4


def test_a_decision_that_no_agent_has_recorded_yet_ends_no_wait_of_one(runs: Path, cluster: FakeCluster) -> None:
    """As where nodes are asked for again while the agents of the others wait for them."""
    leader = pod(0, "Running")
    decision: placement.Decision = {
        "t": 7.0,
        "group": "g5",
        "type": "x",
        "market": "spot",
        "rate": 2.0,
        "reason": "why",
    }
    state = placement.State(order=["g5"], at="g5", tried=[], moving=False, decisions=[decision], seen=[], away=None)
    cluster.put(leader, pod(1, "Running"))
    cluster.put(jobset(annotations={pod_context.PLACEMENT_ANNOTATION: placement.to_text(state)}))
    cluster.add_log(leader, log_line(1, "joined", member="node/1"), log_line(2, "waiting", reason="for node 1"))
    found = KubernetesBackend(runs).state(RUN)
    assert (found.state, found.reason) == ("waiting", "for node 1")
    assert found.placement is not None and found.placement["group"] == "g5"
