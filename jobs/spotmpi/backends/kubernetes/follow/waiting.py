"""Why a run waits, in one line, and the requests by which that is found out."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import anyio.to_thread
import httpx2
from lightkube import ApiError

from spotmpi.agent.placement import asked_again_since, waits_until
from spotmpi.agent.plan import COORDINATOR, NODE, STANDBY, WORKER, WORKERS
from spotmpi.agent.pod_context import MACHINES_GATE
from spotmpi.backends.kubernetes.client import api
from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.follow import autoscaler
from spotmpi.backends.kubernetes.follow.jobset import (
    FollowedRun,
    creation_time,
    has_condition,
    is_not_ready,
    member_of,
    of_role,
    pod_name,
    pod_phase,
    restart_count,
    sidecar_reason,
    unix_time,
)
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import controller_name, workers_name
from spotmpi.core.wording import duration
from spotmpi.plan import manifests

Object = Mapping[str, Any]
T = TypeVar("T")
CloudDiagnosis = Callable[[], str | None]  # why there is no machine; blocks; may raise SpotmpiError

_EVENT_REASONS = {
    "FailedScheduling",
    "FailedMount",
    "FailedAttachVolume",
    "FailedCreatePodSandBox",
    "Failed",
    "FailedCreate",
    "HeadlessServiceCreationFailed",  # of a JobSet, as is the next, since JobSet 0.12
    "JobCreationFailed",
    "NodeNotReady",
    "Pending",  # of a Kueue workload without quota
}
_PULLING = "Pulling"
_SCALE_UP_REASONS = {
    "NotTriggerScaleUp",  # of the cluster autoscaler, as is the next
    "TriggeredScaleUp",
    "FailedScaleUp",  # of GKE's
    "Nominated",  # of Karpenter
}
_CLAIM_REASONS = {"FailedBinding", "ProvisioningFailed", "ExternalProvisioning"}
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
_CONTROLLER_TIME = 20.0  # seconds in which JobSet's controller looks at a new run
INTERVAL = 30.0  # seconds between requests
_LONGEST = 240  # characters of a reason
_JOB = r"{}-node-\d+"  # the names of the Jobs of a run's gang, see `core.names`


@dataclass
class Observations:
    """What a follower has seen of a run's pods and of the events about them."""

    pods: dict[str, Object] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)  # by object, its newest event that explains a wait
    scale_ups: dict[str, str] = field(default_factory=dict)  # by pod, the autoscaler's newest message
    node_problems: dict[str, str] = field(default_factory=dict)  # by node, the newest message about it
    claims: frozenset[str] = frozenset()  # that the run's pods mount
    claim_problems: dict[str, str] = field(default_factory=dict)  # by claim, why it has no volume yet
    machine_problem: str | None = None  # why the cloud or the autoscaler brings no machine
    events_forbidden: bool = False
    _times: dict[tuple[bool, str], float] = field(default_factory=dict)  # of the newest scale-up or message, by object

    def add_event(self, event: Object) -> None:
        """Note an event of the cluster if it explains why something waits.

        Lists and new watches have them in the order of their names, which tell when each was first.
        """
        regarding = event.get("regarding") or event.get("involvedObject") or {}
        name, message = str(regarding.get("name")), event.get("note") or event.get("message") or ""
        if regarding.get("kind") == api.CLAIM:
            if name in self.claims and event.get("reason") in _CLAIM_REASONS and self._is_newest(event, False, name):
                self.claim_problems[name] = f"claim {name}: {message}"
            return
        is_scale_up = event.get("reason") in _SCALE_UP_REASONS or message.startswith(_KARPENTER_FAILURE)
        if is_scale_up and self._is_newest(event, True, name):
            self.scale_ups[name] = message
        if event.get("reason") not in (*_EVENT_REASONS, _PULLING) or not self._is_newest(event, False, name):
            return
        if event["reason"] == _PULLING:  # large images take minutes
            self.messages[name] = message[:1].lower() + message[1:]
        else:
            # A Job's pods have another name at each try.
            message = re.sub(rf"\b{re.escape(name)}-\d+-[a-z0-9]{{5}}\b", f"{name}-*", message)
            self.messages[name] = f"{event['reason']}: {message}"

    def _is_newest(self, event: Object, is_scale_up: bool, name: str) -> bool:
        """Whether no later event of the kind about an object is known; remembers its time if so."""
        time = _event_time(event)
        if time < self._times.get((is_scale_up, name), 0.0):
            return False
        self._times[is_scale_up, name] = time
        return True

    def set_node_events(self, events: Iterable[Object], since: float) -> None:
        """Note the problem of each node, from all events about nodes that are newer than *since*."""
        self.node_problems.clear()
        for event in sorted(events, key=_event_time):
            name = str((event.get("involvedObject") or {}).get("name"))
            if event.get("reason") in _NODE_RECOVERED or _event_time(event) < since:
                self.node_problems.pop(name, None)
            elif event.get("reason") in _NODE_PROBLEMS:
                self.node_problems[name] = f"node {name}: {event['reason']}: {event.get('message') or ''}"


class Wait(NamedTuple):
    """Why a run waits, None where it does not, whether its ranks are running meanwhile, and whether it has to end."""

    reason: str | None
    running: bool
    is_over: bool = False


def find_wait(seen: Observations, run: FollowedRun, first_look: float, now: float) -> Wait:
    """What a run waits for at *now*, Unix seconds, and for how long yet, which node 0's agent enforces where it runs.

    *first_look* is when its follower began: where node 0 was restarted and has no pod yet, nobody knows since when.
    """
    reason, running = _find_reason(seen, run, now)
    leaders = [pod for pod in seen.pods.values() if member_of(pod) == COORDINATOR]
    if not reason or running or (since := _waits_since(run, leaders, first_look)) is None:
        return Wait(reason, running)
    if (left := since + run.start_limit - now) > 0:
        return Wait(with_countdown(reason, left), running)
    if any(pod_phase(pod) == "Running" for pod in leaders):
        return Wait(reason, running)
    return Wait(f"limits.start ({duration(round(run.start_limit, 1))}) is over: {reason}", running, is_over=True)


def _waits_since(run: FollowedRun, leaders: Sequence[Object], first_look: float) -> float | None:
    """Since when a run with these pods of node 0 waits for its nodes; None while it is suspended.

    It is that by a queue, or until its submission is complete.
    """
    jobset, state = run.jobset, run.placement
    running = [pod for pod in leaders if pod_phase(pod) == "Running"]
    # When no node group had given all nodes first, since when the run waits, with nodes and without.
    asked_again = asked_again_since(state) if state is not None else None
    if asked_again is not None and not running:
        return asked_again
    has_queue = manifests.LABEL_QUEUE in jobset["metadata"].get("labels", {})
    # A queue may have admitted the run, and the JobSet does not show yet since when.
    if jobset["spec"].get("suspend") or (has_queue and has_condition(jobset, "Suspended", "True")):
        return None
    if running:
        return max(creation_time(pod) for pod in running)
    times = [run.submitted, *(creation_time(pod) for pod in leaders)]
    times += [time for pod in leaders for time in _end_times(pod)]
    for condition in jobset.get("status", {}).get("conditions") or []:
        if condition["type"] == "Suspended" and condition["status"] == "False":
            times.append(unix_time(condition["lastTransitionTime"]))
    if restart_count(jobset) and not leaders:
        times.append(first_look)
    return max(times)


def _end_times(pod: Object) -> list[float]:
    states = [container.get("state") or {} for container in pod.get("status", {}).get("containerStatuses") or []]
    ends = [state.get("terminated") or {} for state in states]
    return [unix_time(end["finishedAt"]) for end in ends if end.get("finishedAt")]


def _find_reason(seen: Observations, run: FollowedRun, now: float) -> tuple[str | None, bool]:
    """What a run waits for, and whether it runs: its gang, else workers, lost nodes, pods that stand by, sidecars."""
    nodes, sizes, state = run.spec.nodes, run.spec.sizes, run.placement
    reason = waiting_reason(seen, run.name, nodes, bool(run.workers))
    if reason and (absence := _without_controller(run, seen, now)):
        reason = f"{reason}; {absence}"
    if state is not None and (until := waits_until(state)):
        reason = f"no nodes are asked for, for {_time_left(max(until - now, 0.0))}: {state['decisions'][-1]['reason']}"
    running = reason is None  # no run waits for any of its workers
    if reason and len(sizes) > 1 and _has_nodes(seen, sizes[0]):
        reason, running = f"{reason}; the run goes on without", True
    if running and run.workers:
        reasons = [workers_waiting_reason(seen, run.name, *workers) for workers in run.workers.items()]
        reason = "; ".join(filter(None, reasons)) or None
    reason = reason or lost_node_reason(seen, nodes)
    if running:
        reason = reason or standby_waiting_reason(seen) or sidecar_reason(run, seen.pods.values())
    return reason, running


def waiting_reason(seen: Observations, run: str, nodes: int, has_workers: bool = False) -> str | None:
    """The reason that most pods of a run's gang share, with how many wait; None when all have started.

    Unreachable nodes are one where no other pods are left: no attempt starts before their pods are gone. Workers of a
    pool or stream do not count.
    """
    gang = [pod for pod in seen.pods.values() if member_of(pod).role not in (*WORKERS, STANDBY)]
    if not gang:
        # Not of workers, which a queue admits on their own, nor of pods, which are those of an earlier attempt.
        others = [*(workers_name(run, role) for role in WORKERS), controller_name(run)]
        earlier = re.compile(rf"{_JOB.format(run)}-\d+-")
        messages = ((name, text) for name, text in seen.messages.items() if run in name)
        about_gang = ((name, text) for name, text in messages if not any(other in name for other in others))
        about_run = next((text for name, text in about_gang if not earlier.match(name)), None)
        return about_run or f"no pods yet{_permission_note(seen)}"
    jobs = re.compile(_JOB.format(run))
    job = next((name for name in seen.messages if jobs.fullmatch(name)), "")
    reason = _group_reason(gang, seen, nodes, "node 0" if has_workers and nodes == 1 else f"{nodes} nodes", job)
    running = [pod for pod in gang if pod_phase(pod) == "Running"]
    if not reason and running and all(_is_unreachable(pod, seen) for pod in running):
        reason = _with_remedies(running, seen, nodes, "the run")
    # Where the controller has no pod, as without its service account, the run waits in one node group.
    failure = seen.messages.get(controller_name(run))
    return f"{reason}; no fallback to other node groups: {_shorten(failure)}" if reason and failure else reason


def _without_controller(run: FollowedRun, seen: Observations, now: float) -> str | None:
    """Why a run has no pods after a while, where its JobSet shows that; None where it does not, or pods may come soon.

    JobSet's controller has not looked at it, or somebody keeps it suspended: Kueue, where it manages all jobs.
    """
    jobset = run.jobset
    if seen.pods or now - run.submitted < _CONTROLLER_TIME:
        return None
    if not jobset.get("status"):
        return "JobSet's controller has not looked at the run; check `kubectl -n jobset-system get pods`"
    has_queue = manifests.LABEL_QUEUE in (jobset["metadata"].get("labels") or {})
    if jobset["spec"].get("suspend") and not has_queue and run.placement is None:
        return (
            "its JobSet is suspended, as by Kueue where that manages runs without a queue: name one "
            "(kubernetes.queue); `kubectl get localqueues` lists them"
        )
    return None


def _has_nodes(seen: Observations, least: int) -> bool:
    """Whether the gang of a run that may have fewer nodes than pods has node 0 and *least* in all."""
    gang = of_role(seen.pods.values(), NODE)
    running = [pod for pod in gang if pod_phase(pod) == "Running"]
    return len(running) >= least and any(member_of(pod) == COORDINATOR for pod in running)


def standby_waiting_reason(seen: Observations) -> str | None:
    """Why pods that stand by for lost nodes have no node, without which the run goes on; None where none waits."""
    pods = of_role(seen.pods.values(), STANDBY)
    reason = _group_reason(pods, seen, len(pods), f"{len(pods)} standby pods")
    return reason and f"{reason}; the run goes on without"


def workers_waiting_reason(seen: Observations, run: str, role: str, workers: int) -> str | None:
    """The reason that most workers of a role share, with how many wait; None when all have started.

    While a queue holds them back they have no pods. The name of its workload contains that of their Job; those of pods
    begin with it.
    """
    pods, job = of_role(seen.pods.values(), role), workers_name(run, role)
    what = f"{workers} {'' if role == WORKER else f'{role} '}workers"
    about_job = next((text for name, text in seen.messages.items() if job in name and not name.startswith(job)), None)
    if not pods and workers and about_job:
        return f"{what}: {about_job}"
    return _group_reason(pods, seen, workers, what, job)


def _group_reason(pods: Sequence[Object], seen: Observations, count: int, what: str, job: str = "") -> str | None:
    """The reason for which most of some *pods* wait, else why their Job has fewer than *count*, as by a quota.

    *what* they are follows the number of those that wait.
    """
    if reasons := [reason for pod in pods if (reason := _pod_reason(pod, seen))]:
        number = f"{len(reasons)}/{what}" if what[0].isdecimal() else what
        return f"{number}: {max(set(reasons), key=reasons.count)}{_permission_note(seen)}"
    about_job, missing = seen.messages.get(job), count - len(pods)
    return f"{missing}/{what}: {_shorten(about_job)}" if about_job and missing > 0 else None


def _pod_reason(pod: Object, seen: Observations) -> str | None:
    """Why a pod does not run yet: the scheduler, the autoscaler or its containers; None if it is not pending."""
    status = pod.get("status") or {}
    if status.get("phase") != "Pending":
        return None
    if any(gate["name"] == MACHINES_GATE for gate in (pod.get("spec") or {}).get("schedulingGates") or []):
        return "waits for the run's placement controller, which keeps it off machines at fault"
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            scheduler = condition.get("message") or "not scheduled yet"
            claims = seen.claim_problems.values() if "PersistentVolumeClaim" in scheduler else ()
            reasons = [scheduler, *claims, seen.scale_ups.get(pod_name(pod)), seen.machine_problem]
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
    """When an event happened last, Unix seconds; the scheduler's have a series in place of a last time."""
    last = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return unix_time(last) if last else creation_time(event)


def _permission_note(seen: Observations) -> str:
    return " (you are not permitted to read events, which may say more)" if seen.events_forbidden else ""


def lost_node_reason(seen: Observations, nodes: int) -> str | None:
    """The nodes that do not respond while other pods of a run's gang run; None when all do.

    Their pods may go on. Where they do not, and nodes are replaced one by one, the others wait for their successors.
    """
    gang = (pod for pod in seen.pods.values() if member_of(pod).role not in WORKERS)
    unreachable = [pod for pod in gang if _is_unreachable(pod, seen)]
    return _with_remedies(unreachable, seen, nodes, "a run that waits for it") if unreachable else None


def _is_unreachable(pod: Object, seen: Observations) -> bool:
    """Whether a pod runs on a node that does not respond, as far as anybody knows."""
    is_gone = seen.messages.get(pod_name(pod), "").startswith("NodeNotReady")
    return pod_phase(pod) == "Running" and is_gone and is_not_ready(pod)


def _with_remedies(unreachable: Sequence[Object], seen: Observations, nodes: int, what: str) -> str:
    names = " ".join(sorted({str(pod["spec"]["nodeName"]) for pod in unreachable}))
    reason = (
        f"{len(unreachable)}/{nodes} nodes: {names} does not respond; {what} continues when it is back or removed: "
        f"`kubectl delete node {names}`, or `kubectl taint node {names} {_OUT_OF_SERVICE}`"
    )
    return "; ".join([reason, *_node_problems(unreachable, seen)])


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def with_countdown(reason: str, left: float) -> str:
    """*reason* with the time that is left, in steps that become finer towards the end."""
    return f"{reason} (gives up in {_time_left(left)})"


def reason_key(reason: str) -> frozenset[str]:
    """What distinguishes a reason from the one before: its words and the time left, but not the counts of nodes."""
    why, _, left = reason.partition(" (gives up in ")
    return frozenset([*re.findall(r"[^\W\d]+", why), left])


def _time_left(left: float) -> str:
    if left > 7200:
        return f"{math.ceil(left / 3600)} h"
    if left > 120:
        return f"{math.ceil(left / 60)} min"
    step = 10 if left > 10 else 1
    return f"{max(math.ceil(left / step), 0) * step} s"


class ClusterAnswers:
    """What a cluster has said about its machines, which is the same for all runs that are looked at together."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, Any]] = {}  # by question, with the time of asking by the monotonic clock

    async def get(self, question: str, ask: Callable[[], Awaitable[T]]) -> T | None:
        """What *ask* gave within the last `INTERVAL`, or gives; None for what is not permitted or does not exist."""
        answer: T | None
        asked, answer = self._known.get(question, (-math.inf, None))
        if time.monotonic() >= asked + INTERVAL:
            answer = None
            with contextlib.suppress(ApiError, httpx2.HTTPError, SpotmpiError):
                answer = await ask()
            self._known[question] = time.monotonic(), answer
        return answer


class PendingDiagnostics:
    """Asks at intervals, only while a pod waits; *known* has the cluster's answers to others."""

    def __init__(self, client: ClusterApi, cloud: CloudDiagnosis | None, known: ClusterAnswers | None) -> None:
        self._client = client
        self._cloud = cloud
        self._known = known or ClusterAnswers()
        self._of_run = ClusterAnswers()

    async def update(self, seen: Observations, since: float) -> None:
        """Add what is known to *seen*; of nodes only what happened after *since*, Unix seconds."""
        pods = list(seen.pods.values())
        seen.machine_problem = None
        if any(has_condition(pod, "PodScheduled", "False") for pod in pods):
            seen.machine_problem = await self._of_run.get("cloud", self._ask_cloud)
            seen.machine_problem = seen.machine_problem or await self._known.get("autoscaler", self._ask_autoscaler)
        if any(map(_waits_on_node, pods)):
            seen.set_node_events(await self._known.get("nodes", self._client.node_events) or (), since)

    async def _ask_cloud(self) -> str | None:
        return await anyio.to_thread.run_sync(self._cloud, abandon_on_cancel=True) if self._cloud else None

    async def _ask_autoscaler(self) -> str | None:
        status = await self._client.find(api.CONFIG_MAP, autoscaler.STATUS, autoscaler.NAMESPACE)
        return autoscaler.problem_of(status, self._client.now()) if status else None


def _waits_on_node(pod: Object) -> bool:
    """Whether the pod has a node and has not started there, or the node does not respond."""
    if not pod.get("spec", {}).get("nodeName"):
        return False
    return pod_phase(pod) == "Pending" or (pod_phase(pod) == "Running" and is_not_ready(pod))
