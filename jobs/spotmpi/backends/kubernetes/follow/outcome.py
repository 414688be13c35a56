"""How a run ended where node 0's agent could not record it: by its JobSet, and by how its pods ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from spotmpi.agent import protocol, record
from spotmpi.agent.run_outcome import run_outcome
from spotmpi.backends.kubernetes.follow.jobset import (
    agent_has_run,
    is_worker,
    node_index,
    node_title,
    pod_name,
    pod_phase,
    unix_time,
)
from spotmpi.core.events import Event
from spotmpi.plan import manifests
from spotmpi.plan.pods import CONTAINER
from spotmpi.runs.pod_output import Entry

Object = Mapping[str, Any]
_AGENT_EXIT_CODES = (0, protocol.FAILED, protocol.INTERRUPTED, protocol.NOT_RETRYABLE)
_RETRIES_EXHAUSTED = "retries_exhausted"  # a value of the event that is not handed on


def jobset_end(jobset: Object, is_gone: bool, max_failures: int, now: float) -> Event | None:
    """The end of a run as its JobSet shows it, at *now* where that has no time; None while the run is active."""
    metadata, condition = jobset["metadata"], terminal_condition(jobset)
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
    reason = f"no retries left (limits.failures = {max_failures})" if exhausted else condition.get("message", "failed")
    return Event(time, outcome, values={"reason": reason, _RETRIES_EXHAUSTED: exhausted})


def terminal_condition(jobset: Object) -> Object | None:
    """The condition that ended a JobSet by itself, Completed or Failed."""
    conditions = jobset.get("status", {}).get("conditions") or []
    ends = (each for each in conditions if each["type"] in ("Completed", "Failed") and each["status"] == "True")
    return next(ends, None)


class ExitDiagnosis:
    """What pods printed and how they ended, which explains a failure that only the JobSet shows."""

    def __init__(self, workers_table: str = "") -> None:
        self._workers_table = workers_table
        self.strays: deque[str] = deque(maxlen=20)  # lines of pods that are no entries
        self._killed: set[str] = set()  # names of pods whose end has been reported
        self._latest = 0.0  # Unix seconds, of the pods' entries
        self._restart: Event | None = None  # the newest failure after which an agent expected another attempt

    def note(self, entries: Iterable[Entry]) -> None:
        """Take account of what pods have reported."""
        for entry in entries:
            self._latest = max(self._latest, entry.time or 0.0)
            if entry.event and entry.event.kind == record.RESTARTED:
                self._restart = entry.event

    def report_killed(self, pod: Object) -> str | None:
        """How a pod's agent was killed, once per pod; node 0 only knows that it is gone."""
        name, reason = pod_name(pod), _kill_reason(pod, self._workers_table)
        if reason is None or name in self._killed:
            return None
        self._killed.add(name)
        return reason

    def explain(self, end: Event, pods: Iterable[Object]) -> Entry:
        """The end of a run with what is known of its remaining *pods*, later than all that they reported."""
        moment = max(end.time, self._latest + 1e-6)  # whatever the nodes' clocks say
        values = {key: value for key, value in end.values.items() if key != _RETRIES_EXHAUSTED}
        if end.kind == record.FAILED:
            values["reason"] = "; ".join(self._reasons(end, list(pods)))
        return Entry(0, event=replace(end, time=moment, values=values))

    def _reasons(self, end: Event, pods: list[Object]) -> Iterator[str]:
        gang = sorted((pod for pod in pods if not is_worker(pod)), key=node_index)  # which outlives its workers
        killed = next((reason for reason in map(_kill_reason, gang) if reason), None)
        restart = self._restart if end.values.get(_RETRIES_EXHAUSTED) else None
        # Why an attempt failed says nothing of the next one.
        if restart and any(unix_time(pod["metadata"]["creationTimestamp"]) > restart.time for pod in pods):
            restart = None
        if killed or (restart and restart.reason):
            yield killed or str(restart and restart.reason)
            yield str(end.reason)
        else:
            yield str(end.reason)
            yield from list(self.strays)[-1:]


def _kill_reason(pod: Object, workers_table: str = "") -> str | None:
    """How a pod was ended before its agent could report anything, or None."""
    node, field = node_title(pod), f"{workers_table if is_worker(pod) else 'resources'}.memory"
    status = pod.get("status") or {}
    if pod_phase(pod) == "Failed" and status.get("reason"):  # Evicted, UnexpectedAdmissionError, OutOfcpu ...
        return f"{node} was ended by its kubelet: {status['reason']}: {status.get('message') or ''}".rstrip(" :")
    for container in status.get("containerStatuses") or []:
        end = (container.get("state") or {}).get("terminated") or {}
        code = end.get("exitCode", 0)
        if container.get("name") != CONTAINER or code in _AGENT_EXIT_CODES:
            continue
        if end.get("reason") == "OOMKilled":
            return f"{node} exceeded the memory limit of its pod (/dev/shm counts): raise {field}, or use less"
        message = " ".join((end.get("message") or "").split())  # of a container that could not be started
        return f"the agent of {node} ended with exit code {code}{message and f': {message}'}"
    for container in [] if agent_has_run(pod) else status.get("initContainerStatuses") or []:
        if code := ((container.get("state") or {}).get("terminated") or {}).get("exitCode"):
            remedy = f"`kubectl logs {pod_name(pod)} -c {container['name']}` shows its output"
            return f"init container {container['name']} of {node} ended with exit code {code}; {remedy}"
    return None
