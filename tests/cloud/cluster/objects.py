"""Objects as runs, an environment and its nodes have them in a cluster."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from spotmpi.agent import pod_context
from spotmpi.agent.plan import NODE
from spotmpi.core import names
from spotmpi.plan import cluster_plan, manifests
from spotmpi.spec.source import from_values
from tests.cloud.cluster.answers import stamp_of
from tests.cloud.cluster.kinds import BY_KIND
from tests.cloud.cluster.store import Object

RUN = "digits-1"


def of_kind(kind: str, name: str, namespace: str | None = "here", **values: Any) -> Object:
    """An object; without a *namespace* it is of the whole cluster."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": BY_KIND[kind].api_version, "kind": kind, "metadata": metadata, **values}


def stamp(seconds_ago: float = 0) -> str:
    """A moment by this machine's clock, as the API writes it; an hour earlier while tests are collected.

    Most tests run minutes later, on a slow machine half an hour: one for which that matters is to fail everywhere.
    """
    are_collected = "PYTEST_VERSION" in os.environ and "PYTEST_CURRENT_TEST" not in os.environ
    return stamp_of(time.time() - seconds_ago - 3600 * are_collected)


def condition(kind: str, status: str = "True", **values: Any) -> Object:
    """The status of an object with one condition."""
    return {"conditions": [{"type": kind, "status": status, **values}]}


def jobset(
    age: float = 0,
    start: str = "10m",
    suspend: bool = False,
    status: Object | None = None,
    volume: str = "",
    nodes: int | list[int] = 2,
    name: str = RUN,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
) -> Object:
    """The JobSet of a run."""
    spec = from_values({"command": ["x"], "nodes": nodes, "launcher": "mpirun", "limits": {"start": start}})
    values = spec.model_dump(mode="json", exclude_defaults=True)
    notes = {
        cluster_plan.ANNOTATION_SPEC: json.dumps(values),
        manifests.ANNOTATION_OWNER: "me",
        **(annotations or {}),
    }
    metadata: Object = {"annotations": notes, "creationTimestamp": stamp(age)}
    metadata["labels"] = {names.LABEL_APP: "spotmpi", **(labels or {})}
    source: Object = {"persistentVolumeClaim": {"claimName": volume}} if volume else {"emptyDir": {}}
    pods = {"containers": [{"name": "node", "image": "any"}], "volumes": [{"name": "volume", **source}]}
    node = {"replicas": 1, "template": {"spec": {"completions": spec.nodes, "template": {"spec": pods}}}}
    item = of_kind("JobSet", name, spec={"suspend": suspend, "replicatedJobs": [node]}, status=status or {})
    return {**item, "metadata": {**item["metadata"], **metadata}}


def pod(node: int, phase: str, age: float = 0, **status: Any) -> Object:
    """The pod of a node of the run."""
    labels = {**names.run_labels(RUN), names.LABEL_ROLE: NODE}
    labels |= {pod_context.LABEL_INDEX: str(node), pod_context.LABEL_JOB_INDEX: "0"}
    return a_pod(f"{RUN}-node-0-{node}-abcde", phase, labels, age, **status)


def a_pod(name: str, phase: str, labels: dict[str, str], age: float = 0, **status: Any) -> Object:
    """A pod with what every pod has."""
    for key in ("containerStatuses", "initContainerStatuses"):
        if key in status:
            own = {"image": "any", "imageID": "", "ready": False, "restartCount": 0}
            status[key] = [{**own, **each} for each in status[key]]
    spec = {"containers": [{"name": "node", "image": "any"}]}
    item = of_kind("Pod", name, spec=spec, status={"phase": phase, **status})
    return {**item, "metadata": {**item["metadata"], "labels": labels, "creationTimestamp": stamp(age)}}


def unscheduled_pod(node: int, why: str, age: float = 0) -> Object:
    """A pod for which the scheduler has no node."""
    return pod(node, "Pending", age, **condition("PodScheduled", "False", message=why))


def terminated_pod(
    node: int, code: int, reason: str, age: float = 0, phase: str = "Failed", message: str | None = None
) -> Object:
    """A pod whose container has ended."""
    end = {"exitCode": code, "reason": reason, "finishedAt": stamp(age), "message": message}
    return pod(node, phase, age, containerStatuses=[{"name": "node", "state": {"terminated": end}}])


def event(
    about: Object, reason: str, message: str, name: str = "e", age: float = 10, namespace: str = "here"
) -> Object:
    """An event about an object, which *about* names."""
    values = {"involvedObject": about, "reason": reason, "message": message, "lastTimestamp": stamp(age)}
    return of_kind("Event", name, namespace, **values)


def log_line(number: int, kind: str, **values: Any) -> str:
    """An event as a line of a pod's log."""
    return json.dumps({"n": number, "e": {"t": time.time(), "event": kind, **values}}, separators=(",", ":"))


def node(name: str, gpus: int = 1, **more: Any) -> Object:
    """A GPU node as an environment's cluster has it; *more* are further labels, `_` for what labels can't have."""
    labels = {
        "spotmpi.dev/group": "g4dn",
        "node.kubernetes.io/instance-type": "g4dn.xlarge",
        "topology.kubernetes.io/zone": "us-east-1a",
        "eks.amazonaws.com/capacityType": "SPOT",
        "nvidia.com/cuda.driver-version.full": "580.95.05",
    }
    status = {
        "allocatable": {"cpu": "3920m", "memory": "15Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    item = of_kind("Node", name, None, spec={"providerID": f"aws:///us-east-1a/i-{name:0>17}"}, status=status)
    metadata = {"labels": labels | more, "creationTimestamp": "2026-11-20T11:00:00Z"}
    return {**item, "metadata": {**item["metadata"], **metadata}}


def pod_on(node: str | None, name: str, namespace: str = "training", phase: str = "Running", **labels: str) -> Object:
    """A pod on a node, or waiting for one."""
    item = a_pod(name, phase, dict(labels))
    spec = {**item["spec"], **({"nodeName": node} if node else {})}
    return {**item, "metadata": {**item["metadata"], "namespace": namespace}, "spec": spec}
