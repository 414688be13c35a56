"""How long a run may wait for its first node: ``limits.start``, which nobody in the cluster can enforce before it runs.

Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from spotmpi.plan.manifests import LABEL_INDEX, LABEL_QUEUE

Object = Mapping[str, Any]


class Wait(NamedTuple):
    """Since when a run waits for its nodes, in Unix seconds, and whether node 0's agent runs and keeps the limit."""

    since: float
    led: bool


def wait_of(jobset: Object, submitted: float, pods: Iterable[Object], first_look: float) -> Wait | None:
    """How a run waits; None while it is held back, by a queue or because not all of it is made.

    *first_look* is when this follower began: where the gang has been restarted and no pod of it is there, nobody
    knows since when.
    """
    if jobset["spec"].get("suspend") or _is_being_admitted(jobset):
        return None
    leaders = [pod for pod in pods if pod["metadata"].get("labels", {}).get(LABEL_INDEX) == "0"]
    running = [pod for pod in leaders if pod.get("status", {}).get("phase") == "Running"]
    if running:
        return Wait(max(unix(pod["metadata"]["creationTimestamp"]) for pod in running), True)
    moments = [submitted, *(unix(pod["metadata"]["creationTimestamp"]) for pod in leaders)]
    moments += [moment for pod in leaders for moment in _ends(pod)]
    for condition in jobset.get("status", {}).get("conditions") or []:
        if condition["type"] == "Suspended" and condition["status"] == "False":
            moments.append(unix(condition["lastTransitionTime"]))
    if jobset.get("status", {}).get("restarts") and not leaders:
        moments.append(first_look)
    return Wait(max(moments), False)


def _is_being_admitted(jobset: Object) -> bool:
    """Whether a queue has let the run go, and the JobSet does not tell yet since when."""
    conditions = jobset.get("status", {}).get("conditions") or []
    held = any(each["type"] == "Suspended" and each["status"] == "True" for each in conditions)
    return held and LABEL_QUEUE in jobset["metadata"].get("labels", {})


def counted_down(reason: str, left: float) -> str:
    """*reason* with the time that is left, in steps that become finer towards the end."""
    return f"{reason} (gives up in {_time_left(left)})"


def gist(reason: str) -> frozenset[str]:
    """What makes a reason news: its words and the time that is left, but not how many nodes lack what just now."""
    why, _, left = reason.partition(" (gives up in ")
    return frozenset([*re.findall(r"[^\W\d]+", why), left])


def _time_left(left: float) -> str:
    if left > 120:
        return f"{math.ceil(left / 60)} min"
    step = 10 if left > 10 else 1
    return f"{max(math.ceil(left / step), 0) * step} s"


def _ends(pod: Object) -> list[float]:
    states = [container.get("state") or {} for container in pod.get("status", {}).get("containerStatuses") or []]
    return [
        unix(state["terminated"]["finishedAt"]) for state in states if (state.get("terminated") or {}).get("finishedAt")
    ]


def unix(moment: str | datetime) -> float:
    """Unix seconds of a moment as Kubernetes or its client writes it."""
    return (moment if isinstance(moment, datetime) else datetime.fromisoformat(moment)).timestamp()
