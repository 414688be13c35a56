"""A cluster whose every answer to a follower is scripted: objects, changes to them, logs and refusals."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx2
from lightkube import ApiError

from spotmpi.backends.kubernetes.client import api
from spotmpi.backends.kubernetes.follow.run import ClusterFollower
from spotmpi.core import names
from spotmpi.core.events import Event
from spotmpi.plan import manifests
from spotmpi.spec.job import from_values

Object = dict[str, Any]
RUN = "digits-1"


def stamp(seconds_ago: float = 0) -> str:
    return datetime.fromtimestamp(time.time() - seconds_ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str, status: str = "True", **values: Any) -> Object:
    """The status of an object with one condition."""
    return {"conditions": [{"type": kind, "status": status, **values}]}


def jobset(
    age: float = 0,
    start: str = "10m",
    suspend: bool = False,
    status: Object | None = None,
    volume: str = "",
    nodes: int = 2,
    name: str = RUN,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
) -> Object:
    spec = from_values({"command": ["x"], "nodes": nodes, "launcher": "mpirun", "limits": {"start": start}})
    values = spec.model_dump(mode="json", exclude_defaults=True)
    notes = {manifests.ANNOTATION_SPEC: json.dumps(values), manifests.ANNOTATION_OWNER: "me", **(annotations or {})}
    metadata = {"name": name, "namespace": "here", "annotations": notes, "creationTimestamp": stamp(age)}
    metadata |= {"labels": labels} if labels else {}
    source: Object = {"persistentVolumeClaim": {"claimName": volume}} if volume else {"emptyDir": {}}
    pods = {"containers": [{"name": "node", "image": "any"}], "volumes": [{"name": "volume", **source}]}
    node = {"template": {"spec": {"completions": nodes, "template": {"spec": pods}}}}
    return {"metadata": metadata, "spec": {"suspend": suspend, "replicatedJobs": [node]}, "status": status or {}}


def pod(node: int, phase: str, age: float = 0, **status: Any) -> Object:
    labels = {names.LABEL_RUN: RUN, manifests.LABEL_INDEX: str(node)}
    metadata = {"name": f"{RUN}-node-0-{node}-abcde", "labels": labels, "creationTimestamp": stamp(age)}
    return {"metadata": metadata, "spec": {}, "status": {"phase": phase, **status}}


def unscheduled_pod(node: int, why: str, age: float = 0) -> Object:
    return pod(node, "Pending", age, **condition("PodScheduled", "False", message=why))


def terminated_pod(
    node: int, code: int, reason: str, age: float = 0, phase: str = "Failed", message: str | None = None
) -> Object:
    """A pod whose container has ended."""
    end = {"exitCode": code, "reason": reason, "finishedAt": stamp(age), "message": message}
    return pod(node, phase, age, containerStatuses=[{"name": "node", "state": {"terminated": end}}])


def api_error(code: int, message: str = "no") -> ApiError:
    request = httpx2.Request("GET", "https://cluster/pods")
    body = {"kind": "Status", "code": code, "message": message, "reason": "Forbidden"}
    return ApiError(request=request, response=httpx2.Response(code, json=body, request=request))


def log_line(number: int, kind: str, **values: Any) -> str:
    """An event as a line of a pod's log."""
    return json.dumps({"n": number, "e": {"t": time.time(), "event": kind, **values}}, separators=(",", ":"))


class FakeCluster:
    """Answers watches by what tests put into them, logs by fixed lines; records changes.

    It selects pods by labels, as the API server does. Its clock is its own, *ahead* of this machine's by some seconds:
    the API server stamps objects by its own, in whole seconds, and clients cannot
    (https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/object-meta/).
    """

    namespace, context = "here", "this"

    def __init__(self, pods: Sequence[Object] = (), jobsets: Sequence[Object] = (), ahead: float = 0.0) -> None:
        self.ahead = ahead
        self.pods = list(pods)
        self.jobsets = list(jobsets)
        self.logs: dict[str, list[str]] = {}
        self.changes: dict[str, asyncio.Queue[Any]] = {}
        self.patched: list[tuple[str, str, Object]] = []  # kind, name and values
        self.patched_jobset: Object = {}
        self.created: list[Object] = []
        self.deleted: list[str] = []
        self.errors: dict[str, Exception] = {}  # by kind, verb, or namespace and name
        self.objects: dict[str, Object] = {}  # by namespace and name
        self.outputs: list[str | Exception] = [""]  # of commands in pods, in order; the last one repeats
        self.node_event_list: list[Object] = []
        self.requests: list[str] = []

    def now(self) -> float:
        return time.time() + self.ahead

    def add_log(self, pod: Object, *lines: str) -> None:
        """Let the log of a pod have more lines."""
        self.logs.setdefault(pod["metadata"]["name"], []).extend(lines)

    def put(self, kind: str, change: str, values: Object) -> None:
        self.changes.setdefault(kind, asyncio.Queue()).put_nowait((change, values))

    async def may_create(self, kind: str) -> bool:
        """Everything: its user administers the namespace."""
        return True

    async def create(self, values: Object, dry_run: bool = False) -> Object:
        if dry_run:
            return values
        created = {**values, "metadata": {**values["metadata"], "uid": "7", "creationTimestamp": stamp(-self.ahead)}}
        self.created.append(created)
        if values["kind"] == api.JOBSET:
            self.jobsets.append(created)
        return created

    async def watch(self, kind: str, labels: Any = None, name: str | None = None) -> AsyncIterator[tuple[str, Object]]:
        self._raise(kind)
        if kind == api.POD:
            for item in self.pods:
                yield "ADDED", item
        queue = self.changes.setdefault(kind, asyncio.Queue())
        while True:
            yield await queue.get()

    async def list(self, kind: str, labels: Any = None) -> list[Object]:
        self._raise(kind)
        if kind == api.POD:
            return [each for each in self.pods if (labels or {}).items() <= each["metadata"]["labels"].items()]
        return self.jobsets if kind == api.JOBSET else []

    async def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        key = f"{namespace or self.namespace}/{name}"
        self.requests.append(key)
        self._raise(key)
        if kind == api.JOBSET:
            self._raise(kind)
            return next((each for each in self.jobsets if each["metadata"]["name"] == name), None)
        return self.objects.get(key)

    async def node_events(self) -> Sequence[Object]:
        self.requests.append("events of nodes")
        self._raise("events of nodes")
        return self.node_event_list

    async def log(self, name: str, since: int | None, follow: bool) -> AsyncIterator[str]:
        self._raise("log")
        if name in self.logs:
            yield "\n".join(self.logs[name])

    async def execute(self, pod: str, command: Sequence[str]) -> str:
        self.requests.append(pod)
        output = self.outputs.pop(0) if len(self.outputs) > 1 else self.outputs[0]
        if isinstance(output, Exception):
            raise output
        return output

    async def patch(self, kind: str, name: str, values: Object) -> None:
        self._raise("patch")
        self.patched.append((kind, name, values))
        if "annotations" not in values.get("metadata", {}):
            return
        self.patched_jobset = jobset(annotations=values["metadata"]["annotations"])
        self.put(api.JOBSET, "MODIFIED", self.patched_jobset)

    async def delete(self, kind: str, name: str, wait: bool = False, now: bool = False) -> None:
        self._raise("delete")
        await asyncio.sleep(0.1)  # a request takes its time; a follower that has ended by then has not deleted
        self.deleted.append(name)
        self.jobsets = [each for each in self.jobsets if each["metadata"]["name"] != name]
        self.put(api.JOBSET, "DELETED", self.patched_jobset)

    def _raise(self, key: str) -> None:
        if key in self.errors:
            raise self.errors[key]


def follow(
    cluster: Any, of: Object, script: Callable[[list[Event]], None] = lambda events: None, enough: int = 99
) -> list[Event]:
    """Give the events of a followed run; *script* is called after each, and *enough* events end the following."""

    async def collect() -> list[Event]:
        events: list[Event] = []
        async for entries in ClusterFollower(cluster, of).follow():
            for event in (each.event for entry in entries for each in entry.split() if each.event):
                events.append(event)
                script(events)
            if len(events) >= enough:
                break
        return events

    return asyncio.run(asyncio.wait_for(collect(), 20))


def look(cluster: Any, of: Object, diagnose: Callable[[], str | None] | None = None) -> list[Event]:
    """Give the events of a run as they are now."""

    async def collect() -> list[Event]:
        batches = ClusterFollower(cluster, of, diagnose).snapshot()
        return [entry.event async for entries in batches for entry in entries if entry.event]

    return asyncio.run(asyncio.wait_for(collect(), 20))
