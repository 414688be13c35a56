"""How a run ended where node 0's agent could not record it: the JobSet's word, and what is known beyond it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from spotmpi.agent import protocol, record
from spotmpi.agent.run_outcome import run_outcome
from spotmpi.backends.kubernetes.follow.start_limit import unix
from spotmpi.backends.kubernetes.follow.state import node_of
from spotmpi.core.events import Event
from spotmpi.plan.pods import CONTAINER
from spotmpi.runs.pod_output import Entry

Object = Mapping[str, Any]
_OWN_CODES = (0, protocol.FAILED, protocol.INTERRUPTED, protocol.NOT_RETRYABLE)


def ended(condition: Object, failures: int) -> Event:
    """The end of a run, which may fail *failures* times, as a condition of its JobSet tells it."""
    told = condition.get("lastTransitionTime")
    moment = unix(told) if told else time.time()  # whoever looks days later is not who ended it
    outcome = run_outcome(condition=condition["type"]) or record.FAILED
    if outcome == record.SUCCEEDED:
        return Event(moment, outcome)
    used_up = condition.get("reason") == "ReachedMaxRestarts"
    reason = f"limits.failures = {failures} is used up" if used_up else condition.get("message", "failed")
    return Event(moment, outcome, values={"reason": reason, "used_up": used_up})


class ExitDiagnosis:
    """Gathers what pods say and how they end, to be told with a failure that only the JobSet tells."""

    def __init__(self) -> None:
        self.strays: deque[str] = deque(maxlen=20)  # what pods printed that is no entry
        self._deaths: set[str] = set()  # names of pods whose death has been news
        self._latest = 0.0  # Unix seconds, of what the pods have said
        self._again: Event | None = None  # the newest failure after which an agent expected another attempt

    def take(self, entries: Iterable[Entry]) -> None:
        """Note what pods have said."""
        for entry in entries:
            self._latest = max(self._latest, entry.time or 0.0)
            if entry.event and entry.event.kind == record.RESTARTED:
                self._again = entry.event

    def news_of(self, pod: Object) -> str | None:
        """How a pod's agent was killed, once; node 0 only knows that it is gone."""
        name, said = str(pod["metadata"]["name"]), _death(pod)
        if said is None or name in self._deaths:
            return None
        self._deaths.add(name)
        return said

    def added_to(self, over: Event, pods: Iterable[Object]) -> Entry:
        """The end *over* of a run whose *pods* are still there, later than all that they have said."""
        moment = max(over.time, self._latest + 1e-6)  # whatever the nodes' clocks say
        values = {key: value for key, value in over.values.items() if key != "used_up"}
        if over.kind == record.FAILED:
            values["reason"] = "; ".join(self._reasons(over, list(pods)))
        return Entry(0, event=replace(over, time=moment, values=values))

    def _reasons(self, over: Event, pods: list[Object]) -> Iterator[str]:
        died = next((said for said in map(_death, sorted(pods, key=node_of)) if said), None)
        again = self._again if over.values.get("used_up") else None
        # What an attempt failed of says nothing of the next one.
        if again and any(unix(pod["metadata"]["creationTimestamp"]) > again.time for pod in pods):
            again = None
        if died or (again and again.reason):
            yield died or str(again and again.reason)
            yield str(over.reason)
        else:
            yield str(over.reason)
            yield from list(self.strays)[-1:]


def _death(pod: Object) -> str | None:
    """How a pod's agent was ended before it could say a word, or None."""
    node = node_of(pod)
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        end = (container.get("state") or {}).get("terminated") or {}
        code = end.get("exitCode", 0)
        if container.get("name") != CONTAINER or code in _OWN_CODES:
            continue
        if end.get("reason") == "OOMKilled":
            return (
                f"node {node} used more memory than its pod may (/dev/shm counts): raise resources.memory, or use less"
            )
        return f"the agent of node {node} ended with exit code {code}"
    return None
