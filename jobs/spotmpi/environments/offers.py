"""Versions in an update that EKS does not offer, and would refuse in the middle of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from spotmpi.aws.account import Aws
from spotmpi.environments import versions
from spotmpi.environments.changes import CLUSTER, NODE_GROUP, Step

_ADDON = "aws:eks/addon:Addon"
# The input of each type that is a version.
_INPUTS = {CLUSTER: "version", _ADDON: "addonVersion", NODE_GROUP: "releaseVersion"}


def not_offered(steps: Sequence[Step], aws: Aws, region: str, cluster: str) -> tuple[str, ...]:
    """What EKS would refuse of the versions that these steps set, with what it offers; CallError.

    EKS lists no AMI releases but the newest one, so one that is older and never was is not found.
    """
    wanted = {_setting(step): step for step in steps if step.type in _INPUTS and _sets_version(step)}
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
        version = str(step.new[_INPUTS[step.type]])
        if step.type == CLUSTER:
            if version not in (offered := versions.offered(aws, region)):
                yield f"{setting} {version}, as EKS offers {', '.join(offered)}"
        elif step.type == _ADDON:
            fitting = versions.addon_versions(aws, region, str(step.new["addonName"]), kubernetes)
            if version not in fitting:
                yield f"{setting} {version}, as EKS has {', '.join(fitting) or 'none'} for Kubernetes {kubernetes}"
        else:
            newest = versions.ami_release(aws, region, str(step.new["version"]), str(step.new["amiType"]))
            if versions.order(version) > versions.order(newest):
                yield f"{setting} {version}, as EKS's newest for Kubernetes {step.new['version']} is {newest}"


def _setting(step: Step) -> str:
    if step.type == CLUSTER:
        return "cluster.version"
    if step.type == _ADDON:
        return f"cluster.addon_versions.{step.new['addonName']}"
    return f"ami_release of {versions.group_of(step.new.get('labels') or {})}"


def _sets_version(step: Step) -> bool:
    key = _INPUTS[step.type]
    return step.new.get(key) not in (None, step.old.get(key))
