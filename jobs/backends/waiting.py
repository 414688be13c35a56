"""Why a run waits, in one line, from what the cluster says of its pods. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Object = Mapping[str, Any]

_TELLING = {
    "FailedScheduling",
    "NotTriggerScaleUp",
    "FailedMount",
    "FailedAttachVolume",
    "FailedCreatePodSandBox",
    "Failed",
    "FailedCreate",
    "NodeNotReady",
    "Pending",  # said by Kueue of a workload without quota
}
_FINE = {"ContainerCreating", "PodInitializing"}


@dataclass
class Seen:
    """What has been seen of a run's pods and of the events about them."""

    pods: dict[str, Object] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)  # of each object, the newest telling event

    def take_event(self, event: Object) -> None:
        """Note an event of the cluster where it tells why something waits."""
        if event.get("reason") in _TELLING:
            regarding = event.get("regarding") or event.get("involvedObject") or {}
            name, said = str(regarding.get("name")), event.get("note") or event.get("message") or ""
            # A Job's pods have another name at each try.
            said = re.sub(rf"\b{re.escape(name)}-\d+-[a-z0-9]{{5}}\b", f"{name}-*", said)
            self.messages[name] = f"{event['reason']}: {said}"


def why_waiting(seen: Seen, run: str, nodes: int) -> str | None:
    """The reason that most pods of a run share, with how many wait; None when all have started."""
    if not seen.pods:
        about = next((said for name, said in seen.messages.items() if run in name), None)
        return about or "no pods yet"
    reasons = [_of_pod(pod, seen) for pod in seen.pods.values()]
    waiting = [reason for reason in reasons if reason]
    if not waiting:
        return None
    most = max(set(waiting), key=waiting.count)
    return f"{len(waiting)}/{nodes} nodes: {most}"


def _of_pod(pod: Object, seen: Seen) -> str | None:
    status = pod.get("status") or {}
    if status.get("phase") != "Pending":
        return None
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _short(str(condition.get("message") or "not scheduled yet"))
    for container in status.get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] not in _FINE:
            return _short(f"{waiting['reason']}: {waiting.get('message') or ''}")
    return _short(seen.messages.get(str(pod["metadata"]["name"]), "containers are being created"))


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
