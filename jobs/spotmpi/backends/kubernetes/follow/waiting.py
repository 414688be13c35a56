"""Why a run waits, in one line, from what the cluster says of its pods. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spotmpi.backends.kubernetes.follow.start_limit import unix

Object = Mapping[str, Any]

_TELLING = {
    "FailedScheduling",
    "FailedMount",
    "FailedAttachVolume",
    "FailedCreatePodSandBox",
    "Failed",
    "FailedCreate",
    "NodeNotReady",
    "Pending",  # said by Kueue of a workload without quota
}
_SCALING = {"NotTriggerScaleUp", "TriggeredScaleUp"}  # said by the cluster autoscaler
_NODE_TROUBLE = {
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
    "SpotInterruption",  # said by AWS's node termination handler, as is the next
    "RebalanceRecommendation",
    "ScaleDown",  # said by the cluster autoscaler
}
_NODE_FINE = {
    "NodeReady",
    "NodeSchedulable",
    "NodeHasNoDiskPressure",
    "NodeHasSufficientMemory",
    "NodeHasSufficientPID",
}
_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
_FINE = {"ContainerCreating", "PodInitializing"}
_CREATING = "containers are being created"


@dataclass
class Seen:
    """What has been seen of a run's pods and of the events about them."""

    pods: dict[str, Object] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)  # of each object, the newest telling event
    scaling: dict[str, str] = field(default_factory=dict)  # of each pod, the autoscaler's newest word
    nodes: dict[str, str] = field(default_factory=dict)  # of each node that is in trouble, the newest word on it
    beyond: str | None = None  # why the cloud or the autoscaler brings no machine
    blind: bool = False  # whether events may not be read

    def take_event(self, event: Object) -> None:
        """Note an event of the cluster where it tells why something waits."""
        regarding = event.get("regarding") or event.get("involvedObject") or {}
        name, said = str(regarding.get("name")), event.get("note") or event.get("message") or ""
        if event.get("reason") in _SCALING:
            self.scaling[name] = said
        if event.get("reason") in _TELLING:
            # A Job's pods have another name at each try.
            said = re.sub(rf"\b{re.escape(name)}-\d+-[a-z0-9]{{5}}\b", f"{name}-*", said)
            self.messages[name] = f"{event['reason']}: {said}"

    def take_node_events(self, events: Iterable[Object], since: float) -> None:
        """Note of each node what is wrong with it, from all events about nodes that are newer than *since*."""
        self.nodes.clear()
        for event in sorted(events, key=_moment):
            name = str((event.get("involvedObject") or {}).get("name"))
            if event.get("reason") in _NODE_FINE or _moment(event) < since:
                self.nodes.pop(name, None)
            elif event.get("reason") in _NODE_TROUBLE:
                self.nodes[name] = f"node {name}: {event['reason']}: {event.get('message') or ''}"


def why_waiting(seen: Seen, run: str, nodes: int) -> str | None:
    """The reason that most pods of a run share, with how many wait; None when all have started.

    Nodes that do not answer are one where nobody else is left: no attempt starts before their pods are gone.
    """
    if not seen.pods:
        about = next((said for name, said in seen.messages.items() if run in name), None)
        return about or f"no pods yet{_blindness(seen)}"
    reasons = [_of_pod(pod, seen) for pod in seen.pods.values()]
    waiting = [reason for reason in reasons if reason]
    if not waiting:
        return _dead_nodes(seen, nodes)
    most = max(set(waiting), key=waiting.count)
    return f"{len(waiting)}/{nodes} nodes: {most}{_blindness(seen)}"


def _of_pod(pod: Object, seen: Seen) -> str | None:
    status = pod.get("status") or {}
    if status.get("phase") != "Pending":
        return None
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            said = [condition.get("message") or "not scheduled yet", seen.scaling.get(str(pod["metadata"]["name"]))]
            return "; ".join(_short(str(each)) for each in [*said, seen.beyond] if each)
    newest = seen.messages.get(str(pod["metadata"]["name"]), _CREATING)
    if newest.startswith("FailedScheduling"):  # a word of before: it has a node by now
        newest = _CREATING
    for container in status.get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] not in _FINE:
            newest = f"{waiting['reason']}: {waiting.get('message') or ''}"
    return "; ".join([_short(newest), *_of_nodes([pod], seen)])


def _of_nodes(pods: Iterable[Object], seen: Seen) -> list[str]:
    """What is wrong with the nodes of some pods."""
    names = {str((pod.get("spec") or {}).get("nodeName")) for pod in pods}
    return [_short(seen.nodes[name]) for name in sorted(names & seen.nodes.keys())]


def _moment(event: Object) -> float:
    """When an event happened last, Unix seconds."""
    return unix(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])


def _blindness(seen: Seen) -> str:
    return " (you may not read events, which might tell more)" if seen.blind else ""


def _dead_nodes(seen: Seen, nodes: int) -> str | None:
    left = {name: pod for name, pod in seen.pods.items() if pod["status"].get("phase") == "Running"}
    dead = [
        pod for name, pod in left.items() if seen.messages.get(name, "").startswith("NodeNotReady") and _silent(pod)
    ]
    if not dead or len(dead) < len(left):
        return None
    names = " ".join(sorted({str(pod["spec"]["nodeName"]) for pod in dead}))
    said = (
        f"{len(dead)}/{nodes} nodes: {names} does not answer, and the run waits for it or for its end: "
        f"`kubectl delete node {names}`, or `kubectl taint node {names} {_OUT_OF_SERVICE}`"
    )
    return "; ".join([said, *_of_nodes(dead, seen)])


def _silent(pod: Object) -> bool:
    """Whether the pod counts as not ready; agents have no probe, so that is its node's fault."""
    conditions = pod["status"].get("conditions") or []
    return any(each.get("type") == "Ready" and each.get("status") != "True" for each in conditions)


def _short(text: str, limit: int = 240) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def running(pods: Iterable[Object]) -> list[str]:
    """The names of the pods whose container runs or has run."""
    return [
        str(pod["metadata"]["name"])
        for pod in pods
        if (pod.get("status") or {}).get("phase") in ("Running", "Succeeded", "Failed")
    ]
