"""What the JobSet and the pods of a run tell of it, and of its end where node 0's agent could not record it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from spotmpi.agent import placement, pod_context, protocol, record
from spotmpi.agent.launchers import start_count
from spotmpi.agent.outcomes import run_outcome
from spotmpi.agent.plan import COORDINATOR, NODE, WORKERS, Member
from spotmpi.core import names
from spotmpi.core.events import Event
from spotmpi.plan import cluster_plan, manifests
from spotmpi.plan.pods import CONTAINER
from spotmpi.runs.pod_output import PodEntry
from spotmpi.runs.reader import RunState

Object = Mapping[str, Any]
LABELS_RESTARTS = ("jobset.sigs.k8s.io/restart-attempt", "jobset.sigs.k8s.io/job-restart-attempt")
RUNNING = "running"  # a value of a wait during which the run goes on
_AGENT_EXIT_CODES = (0, protocol.FAILED, protocol.INTERRUPTED, protocol.NOT_RETRYABLE)
_WRONG_ARCHITECTURE = "exec format error"  # as the kernel calls it, in the only line of the log
_ARCHITECTURES = "push one, or set `kubernetes.io/arch` in kubernetes.node_selector"
_RETRIES_EXHAUSTED = "retries_exhausted"  # a value of the event that is not handed on


class FollowedRun:
    """A run by its spec and its JobSet, of which `jobset` is the newest that is known."""

    def __init__(self, jobset: dict[str, Any]) -> None:
        self.jobset = jobset
        self.spec = cluster_plan.spec_of(jobset)
        self.name = str(jobset["metadata"]["name"])
        self.submitted = submission_time(jobset)  # Unix seconds

    @property
    def workers(self) -> dict[str, int]:
        """The number of workers of a pool or stream by role, since the latest resize."""
        counts = ((each, cluster_plan.worker_count(self.jobset, each.role)) for each in self.spec.workers)
        return {each.role: each.count if count is None else count for each, count in counts}

    @property
    def workers_tables(self) -> dict[str, str]:
        """The tables of the spec that describe the workers, by role."""
        return {each.role: each.table for each in self.spec.workers}

    @property
    def members(self) -> Iterator[Member]:
        """All that may print output."""
        for role, count in {NODE: self.spec.nodes if self._prints_on_every_node else 1, **self.workers}.items():
            yield from (Member(role, index) for index in range(count))

    def prints(self, member: Member) -> bool:
        """Whether what a member prints is output of the run: mostly node 0 prints for all."""
        return self._prints_on_every_node or member == COORDINATOR or member.role in WORKERS

    @property
    def _prints_on_every_node(self) -> bool:
        return start_count(self.spec.launcher, self.spec.nodes, self.spec.run_on) > 1

    @property
    def placement(self) -> placement.State | None:
        """Where its gang is placed; None where it has one place only."""
        return placement_state(self.jobset)

    @property
    def start_limit(self) -> float:
        """Seconds for which it may wait for nodes where its gang is placed now."""
        limit, capacity, state = self.spec.limits.start, self.spec.capacity, self.placement
        if state is None:
            return limit
        if (deadline := capacity.deadline) is not None:
            left = deadline.timestamp() - self.submitted if isinstance(deadline, datetime) else deadline
            return limit + max(0.0, left)
        return limit + (capacity.patience if placement.next_group(state) else 0.0)


def placement_state(jobset: Object) -> placement.State | None:
    """Where the gang of a run is placed; None where it has one place only."""
    text = cluster_plan.annotations_of(jobset).get(pod_context.PLACEMENT_ANNOTATION)
    return None if text is None else placement.parse(text)


def placement_events(jobset: Object) -> list[Event]:
    """The decisions on where the gang is placed, as node 0's agent records them at its next attempt."""
    state = placement_state(jobset)
    values = [placement.event_values(each, submission_time(jobset)) for each in (state["decisions"] if state else ())]
    return [Event(each.pop("t"), record.PLACED, values=each) for each in values]


def submission_time(jobset: Object) -> float:
    """When a run was submitted, Unix seconds by the API server's clock, which has whole ones."""
    return creation_time(jobset)


def creation_time(item: Object) -> float:
    """When an object was created, Unix seconds by the API server's clock."""
    return unix_time(item["metadata"]["creationTimestamp"])


def unix_time(moment: str | datetime) -> float:
    """Unix seconds of a moment as Kubernetes or its client writes it."""
    return (moment if isinstance(moment, datetime) else datetime.fromisoformat(moment)).timestamp()


def add_restart_counts(state: RunState, jobset: Object, earlier: int, waiting: bool) -> RunState:
    """*state* with the attempts that only the JobSet's counters show; the agents' own counts are never lowered.

    *earlier* attempts belong to submissions before this JobSet, whose status counts how often it has restarted the gang
    (``restarts``) and how many of these count as failures (``restartsCountTowardsMax``), or the same of node 0's Job,
    whose agent records the losses of others. While the gang is *waiting*, no attempt runs.
    """
    restarts, failed = restart_count(jobset), restart_count(jobset, "CountTowardsMax")
    missing = max(restarts - state.failures - state.interruptions, 0)
    failures = min(max(failed - state.failures, 0), missing)
    return replace(
        state,
        attempt=max(state.attempt, earlier + restarts + (0 if waiting or not restarts else 1)),
        failures=state.failures + failures,
        interruptions=state.interruptions + missing - failures,
    )


def restart_count(jobset: Object, which: str = "") -> int:
    """How often JobSet has restarted node 0's pod: with all others, or alone; by default for whatever reason."""
    status = jobset.get("status") or {}
    of_nodes = [each for each in status.get("replicatedJobsStatus") or [] if each["name"] == NODE]
    of_jobs = [each.get(f"jobRestarts{which}") or [0] for each in of_nodes]
    return sum([status.get(f"restarts{which}") or 0, *(restarts[0] for restarts in of_jobs)])


def image_reference(pod: Object) -> str | None:
    """The image of the ranks as their kubelet names it: by digest where it was pulled from a registry."""
    return str(_agent_container(pod).get("imageID") or "").removeprefix("docker-pullable://") or None


def member_of(pod: Object) -> Member:
    """What a pod of a run is at the beginning; its index is that in its Job, or of the Job that it has to itself."""
    labels = pod["metadata"].get("labels") or {}
    index = sum(int(labels.get(label, 0)) for label in (pod_context.LABEL_INDEX, pod_context.LABEL_JOB_INDEX))
    return Member(str(labels.get(names.LABEL_ROLE)), index)


def of_role(pods: Iterable[Object], role: str) -> list[Object]:
    """Those of *pods* that are in a role at the beginning."""
    return [pod for pod in pods if member_of(pod).role == role]


def has_predecessors(pod: Object) -> bool:
    """Whether there were pods of the same name before this one."""
    metadata = pod["metadata"]
    if member_of(pod).role in WORKERS:
        return any(int((metadata.get("annotations") or {}).get(count) or 0) for count in pod_context.FAILURE_COUNTS)
    return any(str((metadata.get("labels") or {}).get(label, "0")) != "0" for label in LABELS_RESTARTS)


def pod_name(pod: Object) -> str:
    """The name of a pod."""
    return str(pod["metadata"]["name"])


def pod_phase(pod: Object) -> str:
    """The phase of a pod, such as Running."""
    return str(pod.get("status", {}).get("phase"))


def has_condition(item: Object, kind: str, *statuses: str) -> bool:
    """Whether a pod or JobSet has a condition of that kind with one of these statuses: True, False or Unknown."""
    conditions = (item.get("status") or {}).get("conditions") or []
    return any(each.get("type") == kind and each.get("status") in statuses for each in conditions)


def is_not_ready(pod: Object) -> bool:
    """Whether the pod is not ready; agents have no probe, so that is due to its node."""
    return has_condition(pod, "Ready", "False", "Unknown")


def has_started(pod: Object) -> bool:
    """Whether the pod's agent has run, which its container shows up to a second before its phase does."""
    return pod_phase(pod) in ("Running", "Succeeded", "Failed") or agent_has_run(pod)


def agent_has_run(pod: Object) -> bool:
    """Whether the pod's agent has run; a pod may fail before, by an init container or at its kubelet."""
    return bool(_container_state(pod) - {"waiting"})


def has_ended(pod: Object) -> bool:
    """Whether the pod's agent has ended and its log is complete: containers of runs never restart."""
    return pod_phase(pod) in ("Succeeded", "Failed") or "terminated" in _container_state(pod)


def _container_state(pod: Object) -> set[str]:
    """The one key of the state of the agent's container: waiting, running or terminated; empty where it has none."""
    return set(_agent_container(pod).get("state") or {})


def agent_end(pod: Object) -> Object:
    """How the agent's container of a pod has ended; empty where it has not."""
    end: Object = (_agent_container(pod).get("state") or {}).get("terminated") or {}
    return end


def _agent_container(pod: Object) -> Object:
    """The status of the agent's container, and of none that the cluster has injected; empty where there is none yet."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((each for each in statuses if each["name"] == CONTAINER), {})


def jobset_end(run: FollowedRun, is_gone: bool, now: float) -> Event | None:
    """The end of a run as its JobSet shows it, at *now* where that has no time; None while the run is active."""
    metadata, condition = run.jobset["metadata"], terminal_condition(run.jobset)
    notes = metadata.get("annotations", {})
    # Whoever deletes a JobSet says why beforehand; the annotation alone ends nothing.
    is_going = is_gone or bool(metadata.get("deletionTimestamp"))
    give_up = notes.get(manifests.ANNOTATION_GIVEN_UP) if is_going else None
    # The pods of a stopped run may take minutes to go, and have printed all that they had to print.
    stop = notes.get(manifests.ANNOTATION_STOPPED) if is_going else None
    if is_gone and condition is None:
        stop = stop or "its JobSet was deleted"
    outcome = run_outcome(
        given_up=bool(give_up), deleted=bool(stop), condition=str(condition["type"]) if condition else None
    )
    if outcome is None:
        return None
    if give_up or stop:
        return Event(now, outcome, values={"reason": give_up or stop})
    assert condition is not None
    moment = condition.get("lastTransitionTime")  # not now: the run may have ended days ago
    time = unix_time(moment) if moment else now
    if outcome == record.SUCCEEDED:
        return Event(time, outcome)
    exhausted = condition.get("reason") == "ReachedMaxRestarts"
    exhaustion = f"no retries left (limits.failures = {run.spec.limits.failures})"
    reason = exhaustion if exhausted else condition.get("message", "failed")
    return Event(time, outcome, values={"reason": reason, _RETRIES_EXHAUSTED: exhausted})


def was_failed_by(pods: Iterable[Object]) -> bool:
    """Whether a pod's agent has ended its run as failed for good, which its JobSet may have yet to see."""
    return any(agent_end(pod).get("exitCode") == protocol.NOT_RETRYABLE for pod in pods)


def sidecar_reason(run: FollowedRun, pods: Iterable[Object]) -> str | None:
    """What it means for a run that a webhook has added containers to its pods; None where none has."""
    containers = _added_containers(run.jobset, pods)
    return containers and (
        f"a webhook of the cluster adds the container {containers} to the pods, which do not end before it does: "
        "no lost node is replaced, and the nodes are kept after the end; docs/kubernetes.md#sidecars has the remedy"
    )


def kept_nodes_reason(run: FollowedRun, pods: Iterable[Object]) -> str | None:
    """That the nodes of a run which has ended are kept by containers that a webhook has added; None where none are."""
    containers = _added_containers(run.jobset, pods)
    return containers and (
        f"the container {containers}, which a webhook of the cluster has added to the pods, runs on and keeps their "
        f"nodes; `kubectl delete jobset {run.name}` ends it (docs/kubernetes.md#sidecars)"
    )


def _added_containers(jobset: Object, pods: Iterable[Object]) -> str | None:
    """The containers that run in the run's *pods* and that its JobSet does not have: a webhook has added them.

    Native sidecars, which Kubernetes ends, are init containers and do not count.
    """
    own = {each["name"] for each in cluster_plan.pod_template(jobset)["spec"]["containers"]}
    running = {
        str(each["name"])
        for pod in of_role(pods, NODE)
        if pod_phase(pod) == "Running"
        for each in pod["status"].get("containerStatuses") or []
        if "running" in (each.get("state") or {})
    }
    return ", ".join(sorted(running - own)) or None


def terminal_condition(item: Object, success: str = "Completed") -> Object | None:
    """The condition that ended a JobSet by itself, Completed or Failed; of a Job *success* is Complete."""
    conditions = (item.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each["type"] in (success, "Failed") and each["status"] == "True"), None)


class ExitDiagnosis:
    """What pods printed and how they ended, which explains a failure that only the JobSet shows."""

    def __init__(self, workers_tables: Mapping[str, str]) -> None:
        self._workers_tables = workers_tables
        self.other_lines: deque[str] = deque(maxlen=20)  # lines of pods that are not entries
        self._killed: set[str] = set()  # names of pods whose end has been reported
        self._latest = 0.0  # Unix seconds, of the pods' entries
        self._restart: Event | None = None  # the newest failure after which an agent expected another attempt

    def observe(self, entries: Iterable[PodEntry]) -> None:
        """Take account of what pods have reported."""
        for entry in entries:
            self._latest = max(self._latest, entry.time or 0.0)
            if entry.event and entry.event.kind == record.RESTARTED:
                self._restart = entry.event

    def report_killed(self, pod: Object) -> str | None:
        """How a pod's agent was killed, once per pod; node 0 only knows that it is gone."""
        name, reason = pod_name(pod), _kill_reason(pod, self._workers_tables)
        if reason is None or name in self._killed:
            return None
        self._killed.add(name)
        return reason

    def explain(self, end: Event, pods: Iterable[Object]) -> PodEntry:
        """The end of a run with what is known of its remaining *pods*, later than all that they reported."""
        moment = max(end.time, self._latest + 1e-6)  # whatever the nodes' clocks say
        values = {key: value for key, value in end.values.items() if key != _RETRIES_EXHAUSTED}
        if end.kind == record.FAILED:
            values["reason"] = "; ".join(self._reasons(end, list(pods)))
        return PodEntry(0, event=replace(end, time=moment, values=values))

    def _reasons(self, end: Event, pods: list[Object]) -> Iterator[str]:
        """Why the run ended: what killed a pod or made the last attempt fail, then the reason of the JobSet."""
        gang = sorted(
            (pod for pod in pods if member_of(pod).role not in WORKERS), key=member_of
        )  # which outlives workers
        killed = next((reason for reason in map(_kill_reason, gang) if reason), None)
        restart = self._restart if end.values.get(_RETRIES_EXHAUSTED) else None
        # Why an attempt failed says nothing of the next one.
        if restart and any(creation_time(pod) > restart.time for pod in pods):
            restart = None
        if _WRONG_ARCHITECTURE in "".join(self.other_lines):
            yield f"{_WRONG_ARCHITECTURE}: the image has no build for the architecture of its node; {_ARCHITECTURES}"
        if killed or (restart and restart.reason):
            yield killed or str(restart and restart.reason)
            yield str(end.reason)
        else:
            yield str(end.reason)
            yield from list(self.other_lines)[-1:]


def _kill_reason(pod: Object, workers_tables: Mapping[str, str] = MappingProxyType({})) -> str | None:
    """How a pod was ended before its agent could report anything, or None."""
    node = member_of(pod)
    field = f"{workers_tables.get(node.role, 'resources')}.memory"
    status = pod.get("status") or {}
    if pod_phase(pod) == "Failed" and status.get("reason"):  # Evicted, UnexpectedAdmissionError, OutOfcpu ...
        return f"{node} was ended by its kubelet: {status['reason']}: {status.get('message') or ''}".rstrip(" :")
    end = agent_end(pod)
    if (code := end.get("exitCode", 0)) not in _AGENT_EXIT_CODES:
        if end.get("reason") == "OOMKilled":
            return f"{node} exceeded the memory limit of its pod (/dev/shm counts): raise {field}, or use less"
        message = " ".join((end.get("message") or "").split())  # of a container that could not be started
        return f"the agent of {node} ended with exit code {code}{message and f': {message}'}"
    for container in [] if agent_has_run(pod) else status.get("initContainerStatuses") or []:
        if code := ((container.get("state") or {}).get("terminated") or {}).get("exitCode"):
            remedy = f"`kubectl logs {pod_name(pod)} -c {container['name']}` shows its output"
            return f"init container {container['name']} of {node} ended with exit code {code}; {remedy}"
    return None
