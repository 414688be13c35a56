"""The nodes of a cluster: their size, zone and placement group, and the runs on them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spotmpi.aws.account import Aws
from spotmpi.aws.instances import ON_DEMAND, SPOT, Instance, instance_id, instances
from spotmpi.backends.kubernetes.client.view import ClusterReader
from spotmpi.backends.kubernetes.follow.jobset import creation_time
from spotmpi.core import names
from spotmpi.plan.pods import GPU

_DRIVER = ("nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver.major")
_MARKETS = {"SPOT": SPOT, "ON_DEMAND": ON_DEMAND, "CAPACITY_BLOCK": names.CAPACITY_BLOCK}
_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "k": 10**3, "M": 10**6, "G": 10**9}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|Ki|Mi|Gi|Ti|k|M|G)?")


@dataclass(frozen=True)
class Node:
    """One node; None is unknown. `cpus`, `memory_gib` and `gpus` are allocatable by pods, `age` is in seconds.

    `state` is ready, not ready or cordoned (no new pods); `placement_group` is the one that EC2 reports.
    """

    name: str
    state: str
    group: str | None
    type: str | None
    zone: str | None
    market: str | None
    instance: str | None
    cpus: float
    memory_gib: float
    gpus: int
    driver: str | None
    age: float
    runs: tuple[str, ...]
    placement_group: str | None = None


def list_nodes(cluster: ClusterReader, namespace: str | None, now: float | None = None) -> tuple[Node, ...]:
    """The nodes of a cluster by group and name, with the runs of *namespace* (None: all) that have pods on them."""
    runs: dict[str, set[str]] = {}
    for pod in cluster.list("Pod", namespace or "*"):
        run = (pod["metadata"].get("labels") or {}).get(names.LABEL_RUN)
        alive = pod.get("status", {}).get("phase") in ("Pending", "Running")
        if run and alive and pod["spec"].get("nodeName"):
            runs.setdefault(pod["spec"]["nodeName"], set()).add(run)
    found = [_node(item, runs, time.time() if now is None else now) for item in cluster.list("Node")]
    return tuple(sorted(found, key=lambda node: (node.group or "", node.name)))


def runs_by_group(nodes: Sequence[Node]) -> dict[str, tuple[str, ...]]:
    """The runs that have pods on the nodes of each node group; a group without any is left out."""
    found: dict[str, set[str]] = {}
    for node in nodes:
        if node.group and node.runs:
            found.setdefault(node.group, set()).update(node.runs)
    return {group: tuple(sorted(runs)) for group, runs in sorted(found.items())}


def with_placement(nodes: Sequence[Node], aws: Aws, region: str) -> tuple[Node, ...]:
    """*nodes* with type, zone, market and placement group as EC2 reports them; CallError where it refuses."""
    found = instances(aws, region, [node.instance for node in nodes if node.instance])
    return tuple(_with_placement(node, found.get(node.instance or "")) for node in nodes)


def parse_quantity(text: str) -> float:
    """A Kubernetes quantity as a number: ``"3920m"`` is 3.92, ``"15Gi"`` its bytes; 0 for any other text."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return 0.0
    return float(match[1]) / 1000 if match[2] == "m" else float(match[1]) * _UNITS[match[2] or ""]


def _with_placement(node: Node, instance: Instance | None) -> Node:
    if instance is None:
        return node
    kind, zone = instance.type or node.type, instance.zone or node.zone
    return replace(node, type=kind, zone=zone, market=instance.market, placement_group=instance.placement_group)


def _node(item: Mapping[str, Any], runs: Mapping[str, set[str]], now: float) -> Node:
    metadata, status = item["metadata"], item.get("status", {})
    labels, allocatable = metadata.get("labels") or {}, status.get("allocatable") or {}
    return Node(
        name=metadata["name"],
        state=_state(item),
        group=labels.get(names.LABEL_GROUP),
        type=labels.get(names.LABEL_TYPE),
        zone=labels.get("topology.kubernetes.io/zone"),
        market=_MARKETS.get(labels.get("eks.amazonaws.com/capacityType", "")),
        instance=instance_id(str(item.get("spec", {}).get("providerID") or "")),
        cpus=parse_quantity(str(allocatable.get("cpu", 0))),
        memory_gib=parse_quantity(str(allocatable.get("memory", 0))) / (1 << 30),
        gpus=int(parse_quantity(str(allocatable.get(GPU, 0)))),
        driver=next((labels[key] for key in _DRIVER if key in labels), None),
        age=now - creation_time(item),
        runs=tuple(sorted(runs.get(metadata["name"], ()))),
    )


def _state(item: Mapping[str, Any]) -> str:
    conditions = {each["type"]: each["status"] for each in item.get("status", {}).get("conditions") or []}
    if conditions.get("Ready") != "True":
        return "not ready"
    return "cordoned" if item.get("spec", {}).get("unschedulable") else "ready"
