"""What an update in CI would lose: nobody is there to answer, so a person has to run it with `spotmpi up`.

The same kinds of resources as in jobs/spotmpi/environments/changes.py, which asks for them.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from infra.ci.errors import CiError
from infra.names import NODE_GROUP

GONE = ("delete", "replace", "delete-replaced")
LOST = (
    *("aws:eks/cluster:Cluster", "aws:ec2/vpc:Vpc", "aws:ec2/subnet:Subnet", "kubernetes:core/v1:Namespace"),
    *("aws:efs/fileSystem:FileSystem", "aws:ecr/repository:Repository", "aws:efs/mountTarget:MountTarget"),
    *("kubernetes:core/v1:PersistentVolume", "kubernetes:core/v1:PersistentVolumeClaim"),
    "kubernetes:kueue.x-k8s.io/v1beta1:LocalQueue",
)
# Charts whose kinds of objects go with them, and so do all runs.
RELEASE = "kubernetes:helm.sh/v3:Release"
RELEASES_OF_RUNS = ("jobset", "kueue")


def require_none(events: Path, stack: str, running: Callable[[], Mapping[str, int]]) -> None:
    """CiError where the previewed steps of an update, in the engine's event log, lose data or running nodes.

    *running* gives the number of running nodes by Auto Scaling group, and is called only where node groups go.
    """
    if not events.exists():
        raise CiError(
            f"stack {stack} was not changed: Pulumi wrote no event log of its preview; use version 3.200 or newer"
        )
    if lost := list(dict.fromkeys(_lost(events, running))):
        remedy = f"undo the change, or run `spotmpi up {stack}`, which asks"
        raise CiError(f"stack {stack} was not changed: the update would end {', '.join(lost)}: {remedy}")


def _lost(events: Path, running: Callable[[], Mapping[str, int]]) -> Iterator[str]:
    for line in events.read_text(encoding="utf-8").splitlines():
        step = (json.loads(line).get("resourcePreEvent") or {}).get("metadata") or {}
        old: Mapping[str, Any] = step.get("old") or {}
        if step.get("op") not in GONE:
            continue
        if step["type"] in LOST:
            yield f"{step['type'].rpartition(':')[2]} {old.get('id')}"
        if step["type"] == RELEASE and (name := (old.get("inputs") or {}).get("name")) in RELEASES_OF_RUNS:
            yield f"{name}, and with it all runs"
        if step["type"] == NODE_GROUP and (nodes := _nodes(old, running())):
            yield f"{nodes} running nodes of {old.get('id')}"


def _nodes(group: Mapping[str, Any], running: Mapping[str, int]) -> int:
    resources = (group.get("outputs") or {}).get("resources") or []
    return sum(running.get(each["name"], 0) for one in resources for each in one.get("autoscalingGroups") or [])
