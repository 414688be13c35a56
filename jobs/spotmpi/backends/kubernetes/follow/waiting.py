"""Why a run waits, in one line, and for how long it may: ``limits.start``. Pure.

Nobody in the cluster can enforce that limit before the first node runs, so followers do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spotmpi.backends.kubernetes.follow.jobset import is_worker, node_index, pod_name, unix_time
from spotmpi.core.names import controller_name, job_name, workers_name
from spotmpi.plan.manifests import LABEL_QUEUE

Object = Mapping[str, Any]

_EVENT_REASONS = {
    "FailedScheduling",
    "FailedMount",
    "FailedAttachVolume",
    "FailedCreatePodSandBox",
    "Failed",
    "FailedCreate",
    "HeadlessServiceCreationFailed",  # of a JobSet
    "NodeNotReady",
    "Pending",  # of a Kueue workload without quota
}
_SCALE_UP_REASONS = {"NotTriggerScaleUp", "TriggeredScaleUp", "Nominated"}  # of the cluster autoscaler, of Karpenter
_KARPENTER_FAILURE = "Failed to schedule pod, "  # the beginning of its messages with the scheduler's reason
_NODE_PROBLEMS = {
    "NodeNotReady",
    "NodeNotSchedulable",
    "NodeHasDiskPressure",
    "NodeHasInsufficientMemory",
    "NodeHasInsufficientPID",
    "EvictionThresholdMet",
    "FreeDiskSpaceFailed",
    "ImageGCFailed",
    "SystemOOM",
    "Rebooted",
    "Shutdown",
    "SpotInterruption",  # of AWS's node termination handler, as is the next
    "RebalanceRecommendation",
    "ScaleDown",  # of the cluster autoscaler
}
_NODE_RECOVERED = {
    "NodeReady",
    "NodeSchedulable",
    "NodeHasNoDiskPressure",
    "NodeHasSufficientMemory",
    "NodeHasSufficientPID",
}
_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
_CREATING_REASONS = {"ContainerCreating", "PodInitializing"}
_CREATING = "containers are being created"


@dataclass
class Observations:
    """What a follower has seen of a run's pods and of the events about them."""

    pods: dict[str, Object] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)  # by object, its newest event that explains a wait
    scale_ups: dict[str, str] = field(default_factory=dict)  # by pod, the autoscaler's newest message
    node_problems: dict[str, str] = field(default_factory=dict)  # by node, the newest message about it
    machine_problem: str | None = None  # why the cloud or the autoscaler brings no machine
    events_forbidden: bool = False

    def add_event(self, event: Object) -> None:
        """Note an event of the cluster if it explains why something waits."""
        regarding = event.get("regarding") or event.get("involvedObject") or {}
        name, message = str(regarding.get("name")), event.get("note") or event.get("message") or ""
        if event.get("reason") in _SCALE_UP_REASONS or message.startswith(_KARPENTER_FAILURE):
            self.scale_ups[name] = message
        if event.get("reason") == "Pulling":  # large images take minutes
            self.messages[name] = message[:1].lower() + message[1:]
        elif event.get("reason") in _EVENT_REASONS:
            # A Job's pods have another name at each try.
            message = re.sub(rf"\b{re.escape(name)}-\d+-[a-z0-9]{{5}}\b", f"{name}-*", message)
            self.messages[name] = f"{event['reason']}: {message}"

    def set_node_events(self, events: Iterable[Object], since: float) -> None:
        """Note the problem of each node, from all events about nodes that are newer than *since*."""
        self.node_problems.clear()
        for event in sorted(events, key=_event_time):
            name = str((event.get("involvedObject") or {}).get("name"))
            if event.get("reason") in _NODE_RECOVERED or _event_time(event) < since:
                self.node_problems.pop(name, None)
            elif event.get("reason") in _NODE_PROBLEMS:
                self.node_problems[name] = f"node {name}: {event['reason']}: {event.get('message') or ''}"


def waiting_reason(seen: Observations, run: str, nodes: int, workers: int = 0) -> str | None:
    """The reason that most pods of a run's gang share, with how many wait; None when all have started.

    Unreachable nodes are one where no other pods are left: no attempt starts before their pods are gone. *workers* of a
    pool or stream do not count.
    """
    gang = {name: pod for name, pod in seen.pods.items() if not is_worker(pod)}
    if not gang:
        # Not of workers, which a queue admits on their own, nor of pods, which are those of an earlier attempt.
        others, earlier = (workers_name(run), controller_name(run)), f"{job_name(run)}-"
        messages = ((name, text) for name, text in seen.messages.items() if run in name)
        about_gang = ((name, text) for name, text in messages if not any(other in name for other in others))
        about_run = next((text for name, text in about_gang if not name.startswith(earlier)), None)
        return about_run or f"no pods yet{_permission_note(seen)}"
    reason = _gang_reason(gang, seen, run, nodes, workers)
    # Where the controller has no pod, as without its service account, the run waits in one node group.
    failure = seen.messages.get(controller_name(run))
    return f"{reason}; no fallback to other node groups: {_shorten(failure)}" if reason and failure else reason


def _gang_reason(gang: Mapping[str, Object], seen: Observations, run: str, nodes: int, workers: int) -> str | None:
    reason = _most_frequent_reason(gang.values(), seen, "node 0" if workers and nodes == 1 else f"{nodes} nodes")
    reason = reason or _missing_pods_reason(seen, job_name(run), nodes - len(gang), f"{nodes} nodes")
    return reason or _unreachable_nodes(gang, seen, nodes)


def workers_waiting_reason(seen: Observations, run: str, workers: int) -> str | None:
    """The reason that most workers of a pool or stream share, with how many wait; None when all have started.

    While a queue holds them back they have no pods. The name of its workload contains that of their Job; those of pods
    begin with it.
    """
    pods = list(filter(is_worker, seen.pods.values()))
    job = workers_name(run)
    about_job = next((text for name, text in seen.messages.items() if job in name and not name.startswith(job)), None)
    if not pods and workers and about_job:
        return f"{workers} workers: {about_job}"
    reason = _most_frequent_reason(pods, seen, f"{workers} workers")
    return reason or _missing_pods_reason(seen, job, workers - len(pods), f"{workers} workers")


def _missing_pods_reason(seen: Observations, job: str, missing: int, of: str) -> str | None:
    """Why pods of a Job do not exist, such as a quota that admits only some."""
    about_job = seen.messages.get(job)
    return f"{missing}/{of}: {_shorten(about_job)}" if about_job and missing > 0 else None


def _most_frequent_reason(pods: Iterable[Object], seen: Observations, what: str) -> str | None:
    """The reason for which most of some *pods* wait; *what* they are follows the number of those that do."""
    reasons = [reason for pod in pods if (reason := _pod_reason(pod, seen))]
    if not reasons:
        return None
    count = f"{len(reasons)}/{what}" if what[0].isdecimal() else what
    return f"{count}: {max(set(reasons), key=reasons.count)}{_permission_note(seen)}"


def _pod_reason(pod: Object, seen: Observations) -> str | None:
    status = pod.get("status") or {}
    if status.get("phase") != "Pending":
        return None
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            scheduler = condition.get("message") or "not scheduled yet"
            reasons = [scheduler, seen.scale_ups.get(pod_name(pod)), seen.machine_problem]
            return "; ".join(_shorten(str(each)) for each in reasons if each)
    reason = seen.messages.get(pod_name(pod), _CREATING)
    if reason.startswith("FailedScheduling"):  # outdated: it has a node by now
        reason = _CREATING
    for container in status.get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] not in _CREATING_REASONS:
            reason = f"{waiting['reason']}: {waiting.get('message') or ''}"
    return "; ".join([_shorten(reason), *_node_problems([pod], seen)])


def _node_problems(pods: Iterable[Object], seen: Observations) -> list[str]:
    """The problems of the nodes of some pods."""
    names = {str((pod.get("spec") or {}).get("nodeName")) for pod in pods}
    return [_shorten(seen.node_problems[name]) for name in sorted(names & seen.node_problems.keys())]


def _event_time(event: Object) -> float:
    """When an event happened last, Unix seconds."""
    return unix_time(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])


def _permission_note(seen: Observations) -> str:
    return " (you are not permitted to read events, which may say more)" if seen.events_forbidden else ""


def _unreachable_nodes(pods: Mapping[str, Object], seen: Observations, nodes: int) -> str | None:
    running = {name: pod for name, pod in pods.items() if pod["status"].get("phase") == "Running"}
    unreachable = [
        pod
        for name, pod in running.items()
        if seen.messages.get(name, "").startswith("NodeNotReady") and _is_not_ready(pod)
    ]
    if not unreachable or len(unreachable) < len(running):
        return None
    names = " ".join(sorted({str(pod["spec"]["nodeName"]) for pod in unreachable}))
    reason = (
        f"{len(unreachable)}/{nodes} nodes: {names} does not respond; the run continues when it is back or removed: "
        f"`kubectl delete node {names}`, or `kubectl taint node {names} {_OUT_OF_SERVICE}`"
    )
    return "; ".join([reason, *_node_problems(unreachable, seen)])


def _is_not_ready(pod: Object) -> bool:
    """Whether the pod is not ready; agents have no probe, so that is due to its node."""
    conditions = pod["status"].get("conditions") or []
    return any(each.get("type") == "Ready" and each.get("status") != "True" for each in conditions)


def _shorten(text: str, limit: int = 240) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


class StartWait(NamedTuple):
    """Since when a run waits for its nodes, in Unix seconds, and whether node 0's agent runs and enforces the limit."""

    since: float
    agent_runs: bool


def start_wait(jobset: Object, submitted: float, pods: Iterable[Object], first_look: float) -> StartWait | None:
    """How a run waits; None while it is suspended, by a queue or because its submission is not complete.

    *first_look* is when this follower began: where the gang was restarted and has no pod yet, nobody knows since when.
    """
    if jobset["spec"].get("suspend") or _is_being_admitted(jobset):
        return None
    leaders = [pod for pod in pods if node_index(pod) == 0]
    running = [pod for pod in leaders if pod.get("status", {}).get("phase") == "Running"]
    if running:
        return StartWait(max(unix_time(pod["metadata"]["creationTimestamp"]) for pod in running), True)
    times = [submitted, *(unix_time(pod["metadata"]["creationTimestamp"]) for pod in leaders)]
    times += [time for pod in leaders for time in _end_times(pod)]
    for condition in jobset.get("status", {}).get("conditions") or []:
        if condition["type"] == "Suspended" and condition["status"] == "False":
            times.append(unix_time(condition["lastTransitionTime"]))
    if jobset.get("status", {}).get("restarts") and not leaders:
        times.append(first_look)
    return StartWait(max(times), False)


def _is_being_admitted(jobset: Object) -> bool:
    """Whether a queue has admitted the run, and the JobSet does not show yet since when."""
    conditions = jobset.get("status", {}).get("conditions") or []
    suspended = any(each["type"] == "Suspended" and each["status"] == "True" for each in conditions)
    return suspended and LABEL_QUEUE in jobset["metadata"].get("labels", {})


def with_countdown(reason: str, left: float) -> str:
    """*reason* with the time that is left, in steps that become finer towards the end."""
    return f"{reason} (gives up in {_time_left(left)})"


def reason_key(reason: str) -> frozenset[str]:
    """What distinguishes a reason from the one before: its words and the time left, but not the counts of nodes."""
    why, _, left = reason.partition(" (gives up in ")
    return frozenset([*re.findall(r"[^\W\d]+", why), left])


def _time_left(left: float) -> str:
    if left > 120:
        return f"{math.ceil(left / 60)} min"
    step = 10 if left > 10 else 1
    return f"{max(math.ceil(left / step), 0) * step} s"


def _end_times(pod: Object) -> list[float]:
    states = [container.get("state") or {} for container in pod.get("status", {}).get("containerStatuses") or []]
    ends = [state.get("terminated") or {} for state in states]
    return [unix_time(end["finishedAt"]) for end in ends if end.get("finishedAt")]
