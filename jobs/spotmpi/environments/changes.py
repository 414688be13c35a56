"""What an update would lose (running nodes, data, the environment itself), and which of its versions EKS would refuse.

Both are read from the steps of its preview.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotmpi.aws.account import Aws
from spotmpi.aws.kubernetes_versions import offered
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.wording import counted
from spotmpi.environments.stack_file import SYSTEM, order
from spotmpi.environments.versions import addon_versions, ami_release, group_of, next_minor

_GONE = ("delete", "replace", "delete-replaced")
LOCAL_QUEUE = "kubernetes:kueue.x-k8s.io/v1beta1:LocalQueue"
CLUSTER = "aws:eks/cluster:Cluster"
NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
_ADDON = "aws:eks/addon:Addon"
# The input of each type that is a version.
_VERSIONS = {CLUSTER: "version", _ADDON: "addonVersion", NODE_GROUP: "releaseVersion"}
# An update that changes one of these ends every node of the group (UpdateNodegroupVersion of EKS).
_REPLACES_NODES = ("launchTemplate", "releaseVersion", "version")
_SUBNET = "aws:ec2/subnet:Subnet"
_ENVIRONMENT = {
    CLUSTER: "cluster",
    "aws:ec2/vpc:Vpc": "network",
    _SUBNET: "subnet",
    "kubernetes:core/v1:Namespace": "namespace",
}
_FILE_SYSTEM = "aws:efs/fileSystem:FileSystem"
_DATA = {
    _FILE_SYSTEM: "file system {} with all data on it",
    "aws:ecr/repository:Repository": "image repository {} with its images",
}
# Kubernetes keeps a claim while pods use it, and its volume with it; a chart's kinds go with it, and so do the runs.
_IN_USE = {
    "aws:efs/mountTarget:MountTarget": "the mount of the runs' storage",
    "kubernetes:core/v1:PersistentVolume": "the volume of the runs",
    "kubernetes:core/v1:PersistentVolumeClaim": "the volume of the runs",
    LOCAL_QUEUE: "queue {}",
}
_RELEASE = "kubernetes:helm.sh/v3:Release"
_RELEASES_OF_RUNS = ("jobset", "kueue")


@dataclass(frozen=True)
class Step:
    """What the engine would do with one resource: its state now, its inputs afterwards, and the inputs that differ."""

    op: str
    type: str
    id: str
    old: Mapping[str, Any]
    new: Mapping[str, Any]
    changed: tuple[str, ...]


@dataclass(frozen=True)
class Preview:
    """Whether an update changes resources, its steps, and when the state was written that it starts from."""

    changes: bool
    steps: tuple[Step, ...] = ()
    written: str | None = None


@dataclass(frozen=True)
class Losses:
    """What an update would end: `impossible` parts, `data`, what runs use, and running nodes by node group.

    `system` are the system nodes that are replaced one after the other, which interrupts no run. `file_systems` are
    the ids of those among the data.
    """

    impossible: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    in_use: tuple[str, ...] = ()
    nodes: Mapping[str, int] = field(default_factory=dict)
    system: int = 0
    file_systems: tuple[str, ...] = ()

    def __str__(self) -> str:
        nodes = [f"{counted(number, 'running node')} of {group}" for group, number in self.nodes.items()]
        system = [f"{counted(self.system, 'system node')}, one after the other"] * bool(self.system)
        return ", ".join([*self.data, *nodes, *self.in_use, *system])


def read_steps(path: Path) -> tuple[Step, ...]:
    """The steps in the engine's event log that change a resource, each resource once; SpotmpiError without a log."""
    if not path.exists():
        remedy = "use the version of Pulumi that docs/environments.md names"
        raise SpotmpiError(f"this Pulumi wrote no event log, so what an update would lose is unknown: {remedy}")
    steps: dict[str, Step] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        metadata = (json.loads(line).get("resourcePreEvent") or {}).get("metadata") or {}
        if metadata.get("op") not in (*_GONE, "update", "create"):
            continue
        old, new = metadata.get("old") or {}, metadata.get("new") or {}
        reasons = tuple(metadata.get("keys") or metadata.get("diffs") or ())
        state = {**(old.get("inputs") or {}), **(old.get("outputs") or {})}
        step = Step(metadata["op"], metadata["type"], str(old.get("id")), state, new.get("inputs") or {}, reasons)
        known = steps.get(metadata["urn"])
        if known is None or (metadata["op"], known.op) == ("replace", "delete-replaced"):
            steps[metadata["urn"]] = step
    return tuple(steps.values())


def find_losses(steps: Sequence[Step], running: Callable[[], Mapping[str, int]]) -> Losses:
    """What these steps would lose; *running* gives the number of running nodes by Auto Scaling group, where needed."""
    gone = [step for step in steps if step.op in _GONE]
    nodes, system = _ended_nodes(steps, running)
    return Losses(
        impossible=(*_impossible(gone), *_versions(steps)),
        data=_unique(_DATA[step.type].format(step.id) for step in gone if step.type in _DATA),
        in_use=_unique(filter(None, map(_in_use, gone))),
        nodes=nodes,
        system=system,
        file_systems=_unique(step.id for step in gone if step.type == _FILE_SYSTEM),
    )


def require_allowed(
    stack: str, losses: Losses, environment: str, delete_data: str | None, live_runs: Callable[[], Sequence[str]]
) -> None:
    """SpotmpiError where an update loses what it may not: data only if *delete_data* is the environment's name.

    *live_runs* gives the runs that nodes and storage must not be taken from.
    """
    refused = f"{stack} was not changed"
    if losses.impossible:
        remedy = f"undo the change, or `spotmpi down {stack}` first, which deletes the environment"
        raise SpotmpiError(f"{refused}: the update would {'; '.join(losses.impossible)}: {remedy}")
    if losses.data and delete_data != environment:
        remedy = f"undo the change, or copy what is needed and repeat with `--delete-data {environment}`"
        raise SpotmpiError(f"{refused}: the update would delete {', '.join(losses.data)}: {remedy}")
    if losses.in_use or losses.nodes:
        live = live_runs()
        if live and losses.in_use:
            raise SpotmpiError(
                f"{refused}: the update would replace {', '.join(losses.in_use)}: stop the live runs first: "
                f"{', '.join(live)}"
            )
        if live:
            remedy = "wait for the live runs or stop them, or repeat with `--replace-nodes` to interrupt them"
            raise SpotmpiError(f"{refused}: the update would end {losses}: {remedy}: {', '.join(live)}")


def _ended_nodes(steps: Sequence[Step], running: Callable[[], Mapping[str, int]]) -> tuple[dict[str, int], int]:
    """The running nodes by node group, and the system nodes, that these steps end."""
    ended = [step for step in steps if step.type == NODE_GROUP and (step.op in _GONE or _replaces_nodes(step))]
    sizes, nodes, system = running() if ended else {}, dict[str, int](), 0
    for step in ended:
        number = sum(sizes.get(name, 0) for name in _scaling_groups(step))
        group = group_of(step.old.get("labels") or {}) or step.id
        if group == SYSTEM:
            system += number
        elif number:
            nodes[group] = nodes.get(group, 0) + number
    return nodes, system


def _replaces_nodes(step: Step) -> bool:
    return any(changed.partition(".")[0] in _REPLACES_NODES for changed in step.changed)


def _scaling_groups(step: Step) -> list[str]:
    resources = step.old.get("resources") or []
    return [group["name"] for resource in resources for group in resource.get("autoscalingGroups") or []]


def _impossible(gone: Iterable[Step]) -> tuple[str, ...]:
    return _unique(
        f"{'delete' if step.op == 'delete' else 'replace'} {_ENVIRONMENT[step.type]} {step.id}"
        + (f" ({', '.join(step.changed)})" if step.changed else "")
        for step in gone
        if step.type in _ENVIRONMENT and (step.type, step.op) != (_SUBNET, "delete")  # goes with its zone and nodes
    )


def _versions(steps: Iterable[Step]) -> Iterator[str]:
    """Kubernetes versions that EKS refuses: it raises a control plane by one minor version, and never lowers it."""
    for step in steps:
        now, then = str(step.old.get("version")), str(step.new.get("version"))
        if step.type == CLUSTER and step.op == "update" and now != then and then != next_minor(now):
            yield f"take Kubernetes from {now} to {then}, and EKS only goes to {next_minor(now)}"


def _in_use(step: Step) -> str | None:
    if step.type == _RELEASE:
        name = str(step.old.get("name"))
        return f"{name}, and with it all runs" if name in _RELEASES_OF_RUNS else None
    pattern = _IN_USE.get(step.type)
    return pattern.format(step.id) if pattern else None


def _unique(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


def not_offered(steps: Sequence[Step], aws: Aws, region: str, cluster: str) -> tuple[str, ...]:
    """What EKS would refuse of the versions that these steps set, with what it offers; CallError.

    EKS lists no AMI releases but the newest one, so one that is older and never was is not found.
    """
    wanted = {_setting(step): step for step in steps if step.type in _VERSIONS and _sets_version(step)}
    if not wanted:
        return ()
    control_plane = next((step for step in wanted.values() if step.type == CLUSTER), None)
    if control_plane:
        kubernetes = str(control_plane.new["version"])
    else:
        kubernetes = str(aws.call("eks", region, "describe_cluster", name=cluster)["cluster"]["version"])
    return tuple(_refused(wanted, aws, region, kubernetes))


def _refused(wanted: Mapping[str, Step], aws: Aws, region: str, kubernetes: str) -> Iterator[str]:
    for setting, step in wanted.items():
        version = str(step.new[_VERSIONS[step.type]])
        if step.type == CLUSTER:
            if version not in (known := offered(aws, region)):
                yield f"{setting} {version}, as EKS offers {', '.join(known)}"
        elif step.type == _ADDON:
            fitting = addon_versions(aws, region, str(step.new["addonName"]), kubernetes)
            if version not in fitting:
                yield f"{setting} {version}, as EKS has {', '.join(fitting) or 'none'} for Kubernetes {kubernetes}"
        else:
            newest = ami_release(aws, region, str(step.new["version"]), str(step.new["amiType"]))
            if order(version) > order(newest):
                yield f"{setting} {version}, as EKS's newest for Kubernetes {step.new['version']} is {newest}"


def _setting(step: Step) -> str:
    if step.type == CLUSTER:
        return "cluster.version"
    if step.type == _ADDON:
        return f"cluster.addon_versions.{step.new['addonName']}"
    return f"ami_release of {group_of(step.new.get('labels') or {})}"


def _sets_version(step: Step) -> bool:
    key = _VERSIONS[step.type]
    return step.new.get(key) not in (None, step.old.get(key))
