"""A cluster whose every answer to a follower is scripted: objects, changes to them, logs and refusals."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx2
from lightkube import ApiError

from spotmpi.backends.kubernetes.client import api
from spotmpi.plan import manifests
from spotmpi.spec.job import from_values

Object = dict[str, Any]
RUN = "digits-1"


def stamp(seconds_ago: float = 0) -> str:
    return datetime.fromtimestamp(time.time() - seconds_ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def jobset(
    age: float = 0,
    start: str = "10m",
    suspend: bool = False,
    status: Object | None = None,
    volume: str = "",
    nodes: int = 2,
) -> Object:
    spec = from_values({"command": ["x"], "nodes": nodes, "launcher": "mpirun", "limits": {"start": start}})
    annotations = {
        manifests.ANNOTATION_SPEC: json.dumps(spec.model_dump(mode="json", exclude_defaults=True)),
    }
    annotations[manifests.ANNOTATION_OWNER] = "me"
    metadata = {"name": RUN, "namespace": "here", "annotations": annotations, "creationTimestamp": stamp(age)}
    source: Object = {"persistentVolumeClaim": {"claimName": volume}} if volume else {"emptyDir": {}}
    pods = {"containers": [{"name": "node", "image": "any"}], "volumes": [{"name": "volume", **source}]}
    node = {"template": {"spec": {"completions": nodes, "template": {"spec": pods}}}}
    return {"metadata": metadata, "spec": {"suspend": suspend, "replicatedJobs": [node]}, "status": status or {}}


def pod(node: int, phase: str, age: float = 0, **status: Any) -> Object:
    labels = {manifests.LABEL_INDEX: str(node)}
    metadata = {"name": f"{RUN}-node-0-{node}-abcde", "labels": labels, "creationTimestamp": stamp(age)}
    return {"metadata": metadata, "status": {"phase": phase, **status}}


def unscheduled_pod(node: int, why: str, age: float = 0) -> Object:
    return pod(node, "Pending", age, conditions=[{"type": "PodScheduled", "status": "False", "message": why}])


def api_error(code: int) -> ApiError:
    request = httpx2.Request("GET", "https://cluster/pods")
    body = {"kind": "Status", "code": code, "message": "no", "reason": "Forbidden"}
    return ApiError(request=request, response=httpx2.Response(code, json=body, request=request))


class FakeCluster:
    """Answers watches by what tests put into them, logs by fixed lines; records changes.

    Its clock is its own, *ahead* of this machine's by some seconds: the API server stamps objects by its own, in whole
    seconds, and clients cannot (https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/object-meta/).
    """

    namespace, context = "here", "this"

    def __init__(self, pods: list[Object], jobsets: Sequence[Object] = (), ahead: float = 0.0) -> None:
        self.ahead = ahead
        self.pods = pods
        self.jobsets = list(jobsets)
        self.logs: dict[str, list[str]] = {}
        self.changes: dict[str, asyncio.Queue[Any]] = {}
        self.patched: list[Object] = []
        self.patched_jobset: Object = {}
        self.created: list[Object] = []
        self.deleted: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.objects: dict[str, Object] = {}  # by namespace and name
        self.node_event_list: list[Object] = []
        self.requests: list[str] = []

    def now(self) -> float:
        return time.time() + self.ahead

    async def create(self, values: Object) -> Object:
        created = {**values, "metadata": {**values["metadata"], "uid": "7", "creationTimestamp": stamp(-self.ahead)}}
        self.created.append(created)
        if values["kind"] == api.JOBSET:
            self.jobsets.append(created)
        return created

    def put(self, kind: str, change: str, values: Object) -> None:
        self.changes.setdefault(kind, asyncio.Queue()).put_nowait((change, values))

    async def watch(self, kind: str, labels: Any = None, name: str | None = None) -> AsyncIterator[tuple[str, Object]]:
        if kind in self.errors:
            raise self.errors[kind]
        if kind == api.POD:
            for item in self.pods:
                yield "ADDED", item
        queue = self.changes.setdefault(kind, asyncio.Queue())
        while True:
            yield await queue.get()

    async def list(self, kind: str, labels: Any = None) -> list[Object]:
        if kind in self.errors:
            raise self.errors[kind]
        return {api.POD: self.pods, api.JOBSET: self.jobsets}.get(kind, [])

    async def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        self.requests.append(f"{namespace}/{name}")
        if f"{namespace}/{name}" in self.errors:
            raise self.errors[f"{namespace}/{name}"]
        if kind == api.JOBSET:
            if kind in self.errors:
                raise self.errors[kind]
            return next((each for each in self.jobsets if each["metadata"]["name"] == name), None)
        return self.objects.get(f"{namespace}/{name}")

    async def node_events(self) -> Sequence[Object]:
        self.requests.append("events of nodes")
        if "events of nodes" in self.errors:
            raise self.errors["events of nodes"]
        return self.node_event_list

    async def log(self, name: str, since: int | None, follow: bool) -> AsyncIterator[str]:
        if "log" in self.errors:
            raise self.errors["log"]
        if name in self.logs:
            yield "\n".join(self.logs[name])

    async def patch(self, kind: str, name: str, values: Object) -> None:
        if "patch" in self.errors:
            raise self.errors["patch"]
        self.patched.append(values)
        if "annotations" not in values.get("metadata", {}):
            return
        self.patched_jobset = jobset()
        self.patched_jobset["metadata"]["annotations"] |= values["metadata"]["annotations"]
        self.put(api.JOBSET, "MODIFIED", self.patched_jobset)

    async def delete(self, kind: str, name: str, wait: bool = False, now: bool = False) -> None:
        await asyncio.sleep(0.1)  # a request takes its time; a follower that has ended by then has not deleted
        self.deleted.append(name)
        self.jobsets = [each for each in self.jobsets if each["metadata"]["name"] != name]
        self.put(api.JOBSET, "DELETED", self.patched_jobset)
