"""What the JobSet and the pods of a run tell of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from spotmpi.agent import placement, pod_context, record
from spotmpi.agent.launchers import start_count
from spotmpi.core import names
from spotmpi.core.events import Event
from spotmpi.plan import manifests, pool
from spotmpi.plan.pods import CONTAINER
from spotmpi.runs.reader import RunState
from spotmpi.spec.shapes import workers_of

Object = Mapping[str, Any]
LABEL_RESTARTS = "jobset.sigs.k8s.io/restart-attempt"


@dataclass(frozen=True)
class RunInfo:
    """What a follower has to know of a run."""

    run: str
    gang: int  # nodes that start and end together; of a pool, node 0
    workers: int  # nodes besides them, of a pool or stream
    workers_table: str  # of the spec that describes them
    output_on_every_node: bool  # otherwise node 0 prints for all
    submitted: float  # Unix seconds
    start_limit: float  # seconds
    max_failures: int  # that another attempt may follow
    patience: float = 0.0  # seconds by which the start is later allowed while the gang may be placed elsewhere

    @property
    def nodes(self) -> int:
        """The number of all nodes."""
        return self.gang + self.workers


def run_info(jobset: Object) -> RunInfo:
    """The `RunInfo` of a run's JobSet."""
    spec = manifests.spec_of(jobset)
    workers = workers_of(spec)
    return RunInfo(
        jobset["metadata"]["name"],
        spec.nodes,
        pool.worker_count(jobset) or 0,
        workers.table if workers else "",
        start_count(spec.launcher, spec.nodes, spec.where) > 1,
        submission_time(jobset),
        spec.limits.start,
        spec.limits.failures,
        spec.capacity.patience,
    )


def placement_state(jobset: Object) -> placement.State | None:
    """Where the gang of a run is placed; None where it has one place only."""
    text = manifests.annotations_of(jobset).get(pod_context.PLACEMENT_ANNOTATION)
    return None if text is None else placement.parse(text)


def placement_events(jobset: Object) -> list[Event]:
    """The decisions on where the gang is placed, as node 0's agent records them at its next attempt."""
    state = placement_state(jobset)
    values = [placement.event_values(each, submission_time(jobset)) for each in (state["decisions"] if state else ())]
    return [Event(each.pop("t"), record.PLACED, values=each) for each in values]


def submission_time(jobset: Object) -> float:
    """When a run was submitted, Unix seconds by the API server's clock, which has whole ones."""
    return unix_time(jobset["metadata"]["creationTimestamp"])


def unix_time(moment: str | datetime) -> float:
    """Unix seconds of a moment as Kubernetes or its client writes it."""
    return (moment if isinstance(moment, datetime) else datetime.fromisoformat(moment)).timestamp()


def add_restart_counts(state: RunState, jobset: Object, earlier: int, waiting: bool) -> RunState:
    """*state* with the attempts that only the JobSet's counters show; the agents' own counts are never lowered.

    *earlier* attempts belong to submissions before this JobSet, whose status counts how often it has restarted the gang
    (``restarts``) and how many of these count as failures (``restartsCountTowardsMax``). While the gang is *waiting*,
    no attempt runs.
    """
    status = jobset.get("status") or {}
    restarts, failed = status.get("restarts") or 0, status.get("restartsCountTowardsMax") or 0
    missing = max(restarts - state.failures - state.interruptions, 0)
    failures = min(max(failed - state.failures, 0), missing)
    return replace(
        state,
        attempt=max(state.attempt, earlier + restarts + (0 if waiting or not restarts else 1)),
        failures=state.failures + failures,
        interruptions=state.interruptions + missing - failures,
    )


def image_reference(pod: Object) -> str | None:
    """The image of the ranks as their kubelet names it: by digest where it was pulled from a registry."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    image = next((str(each.get("imageID") or "") for each in statuses if each["name"] == CONTAINER), "")
    return image.removeprefix("docker-pullable://") or None


def node_index(pod: Object) -> int:
    """The index of a pod's node; those of workers come after the gang's."""
    labels = pod["metadata"].get("labels") or {}
    first = int(labels.get(names.LABEL_FIRST_NODE, 1)) if is_worker(pod) else 0
    return first + _completion_index(pod)


def _completion_index(pod: Object) -> int:
    return int((pod["metadata"].get("labels") or {}).get(manifests.LABEL_INDEX, 0))


def is_worker(pod: Object) -> bool:
    """Whether the pod is a worker of a pool or stream."""
    return str((pod["metadata"].get("labels") or {}).get(names.LABEL_ROLE)) == names.WORKER


def node_title(pod: Object) -> str:
    """A pod's node as messages name it."""
    return f"{'worker' if is_worker(pod) else 'node'} {_completion_index(pod)}"


def has_predecessors(pod: Object) -> bool:
    """Whether there were pods of the same node before this one."""
    metadata = pod["metadata"]
    if is_worker(pod):
        return any(int((metadata.get("annotations") or {}).get(count) or 0) for count in pod_context.FAILURE_COUNTS)
    return str((metadata.get("labels") or {}).get(LABEL_RESTARTS, "0")) != "0"


def pod_name(pod: Object) -> str:
    """The name of a pod."""
    return str(pod["metadata"]["name"])


def pod_phase(pod: Object) -> str:
    """The phase of a pod, such as Running."""
    return str(pod.get("status", {}).get("phase"))


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
    statuses = pod.get("status", {}).get("containerStatuses") or []
    return next((set(each.get("state") or {}) for each in statuses if each["name"] == CONTAINER), set())
