"""Account checks: what AWS reports of a built environment's versions, add-ons, node groups, storage and images.

And of the Kubernetes version that one is to be built with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

from spotmpi.aws import eks, prices, scaling
from spotmpi.aws.kubernetes_versions import KubernetesVersion
from spotmpi.aws.kubernetes_versions import offered as offered_versions
from spotmpi.aws.launch_failures import explain_failure, failure_of_newest
from spotmpi.aws.registry import has_image
from spotmpi.core.environment import Environment, NodeGroup
from spotmpi.core.wording import counted
from spotmpi.environments import versions
from spotmpi.environments.checks.check import RESTORE, Check, Finding, LiveEnvironment, Subject, live_check
from spotmpi.environments.checks.leftovers import is_built
from spotmpi.environments.resource_kinds import FILE_SYSTEM, MOUNT_TARGET
from spotmpi.environments.stack_file import stack_of
from spotmpi.images.build import build_for

_TEMPLATE = "k8s.io/cluster-autoscaler/node-template"
_ADDONS = ("vpc-cni", "coredns", "kube-proxy", "eks-pod-identity-agent", "aws-efs-csi-driver")
_NFS = 2049
_VERSION = "Kubernetes version"
_EXTENDED_SUPPORT = (
    f"${prices.EXTENDED_SUPPORT:.2f} an hour for the control plane in place of ${prices.CONTROL_PLANE:.2f}"
)
# AWS announces the end of standard support at least 60 days before; this leaves time to choose when to upgrade.
NOTICE = 90  # days


def planned_version(subject: Subject, today: date | None = None) -> Iterator[Finding]:
    """Whether EKS offers the Kubernetes version that the stack would be built with, and how long it supports it."""
    stack = subject.stack
    if stack is None or stack.kind != "compute" or is_built(subject, stack):
        return
    today, version = today or _today(), stack.design.kubernetes
    offered = offered_versions(subject.aws, subject.region)
    supported = {name: _support(name, each, "", today) for name, each in offered.items()}
    lasting = [name for name, finding in supported.items() if finding.level == "ok"]
    remedy = f"set cluster.version to one in standard support: {', '.join(lasting) or 'EKS has none'}"
    finding = supported.get(version)
    if finding is None:
        yield Finding(_VERSION, "error", f"EKS does not offer Kubernetes {version}", remedy)
    else:
        yield finding if finding.level == "ok" else replace(finding, level="warning", remedy=remedy)


def kubernetes_version(subject: Subject, live: LiveEnvironment, today: date | None = None) -> Iterator[Finding]:
    """When standard support of the control plane's version ends, after which EKS upgrades it itself."""
    stack = stack_of(live.environment.name)
    running = versions.running(subject.aws, subject.region, live.environment.cluster)
    known = offered_versions(subject.aws, subject.region, [running.control_plane]).get(running.control_plane)
    yield _support(running.control_plane, known, f"spotmpi upgrade {stack}", today or _today())
    behind = [each.name for each in running.node_groups if each.version != running.control_plane]
    if behind:
        message = f"{', '.join(behind)} are older than the control plane, {running.control_plane}"
        remedy = "replace them when no runs use them: EKS upgrades the control plane again only after that"
        yield Finding("node versions", "warning", message, remedy, f"spotmpi upgrade {stack}")


def _today() -> date:
    return datetime.now(UTC).date()


def _support(version: str, known: KubernetesVersion | None, command: str, today: date) -> Finding:
    title, remedy = _VERSION, "upgrade at a time you choose: control plane, add-ons, then nodes"
    if known is None or known.standard_support_ends is None:
        return Finding(title, "warning", f"{version}: the end of its standard support is unknown", remedy, command)
    ends, left = known.standard_support_ends, (known.standard_support_ends - today).days
    if left < 0 or not known.in_standard_support:
        message = f"standard support of {version} ended on {ends}: EKS bills {_EXTENDED_SUPPORT}, or upgrades it by "
        message += "itself at any time"
        return Finding(title, "error", message, remedy, command)
    if left <= NOTICE:
        when = f"{ends}, in {counted(left, 'day')}"
        message = f"standard support of {version} ends on {when}: then EKS upgrades the control plane"
        return Finding(title, "warning", message, remedy, command)
    return Finding(title, "ok", f"{version}, in standard support until {ends}")


def addons(subject: Subject, live: LiveEnvironment) -> Iterator[Finding]:
    """Whether every add-on that runs need is installed, active and healthy."""
    cluster = live.environment.cluster
    installed = subject.aws.pages("eks", subject.region, "list_addons", "addons", clusterName=cluster)
    for name in _ADDONS:
        if name not in installed:
            yield Finding(f"add-on {name}", "error", "is not installed", RESTORE)
    for name in installed:
        addon = subject.aws.call("eks", subject.region, "describe_addon", clusterName=cluster, addonName=name)["addon"]
        issues = "; ".join(
            str(each.get("message") or each["code"]) for each in addon.get("health", {}).get("issues", [])
        )
        if addon["status"] == "ACTIVE" and not issues:
            yield Finding(f"add-on {name}", "ok", str(addon.get("addonVersion", "active")))
        else:
            message = f"is {addon['status']}" + (f": {issues}" if issues else "")
            yield Finding(f"add-on {name}", "error", message, f"wait a minute, then {RESTORE}")


def node_groups(subject: Subject, live: LiveEnvironment) -> Iterator[Finding]:
    """The health of each EKS node group with the reason for an issue, and whether the last instance launch failed."""
    for name, group in eks.node_groups(subject.aws, subject.region, live.environment.cluster):
        issues = group.get("health", {}).get("issues", [])
        title = f"node group {name}"
        for issue in issues:
            failure = explain_failure(str(issue.get("code", "")), str(issue.get("message", "")))
            yield Finding(title, "error", failure.message, failure.remedy)
        if not issues and group["status"] != "ACTIVE":
            yield Finding(title, "warning", f"is {group['status']}", "wait until it is ACTIVE")
        elif not issues:
            yield _last_launch(subject, title, group)


def _last_launch(subject: Subject, title: str, node_group: Mapping[str, Any]) -> Finding:
    size = node_group.get("scalingConfig", {})
    healthy = Finding(title, "ok", f"healthy, {size.get('minSize', 0)} to {size.get('maxSize', '?')} nodes")
    for group in node_group.get("resources", {}).get("autoScalingGroups", []):
        failed = failure_of_newest(scaling.activities(subject.aws, subject.region, group["name"]))
        if failed:
            message = f"the last instance launch failed ({failed[0]:%Y-%m-%d %H:%M} UTC): {failed[1].message}"
            return Finding(title, "warning", message, failed[1].remedy)
    return healthy


def zones(subject: Subject, live: LiveEnvironment) -> Iterator[Finding]:
    """The zones of node groups that are in the stack's file but not in the environment: no run can use them yet."""
    built = {(group.shared_name, group.zone) for group in live.environment.node_groups}
    if (stack := subject.stack) is None:
        return
    missing = {
        group.name: ", ".join(zone for zone in group.zones or stack.zones if (group.name, zone) not in built)
        for group in stack.groups
    }
    if texts := [f"{name} in {zones}" for name, zones in missing.items() if name and zones]:
        message = f"in {stack.path.name} but not built: {'; '.join(texts)}"
        yield Finding("zones of groups", "warning", message, "build them", f"spotmpi up {stack.stack}")


def autoscaler_tags(subject: Subject, live: LiveEnvironment) -> Iterator[Finding]:
    """Whether the Auto Scaling groups have the tags that the autoscaler needs to scale them up from 0."""
    scaling_groups = scaling.scaling_groups(subject.aws, live.environment)
    for group in live.environment.node_groups:
        title = f"scaling of {group.name}"
        own = [each for each in scaling_groups if each.group == group.name]
        if not own:
            message = "no Auto Scaling group has this group's tag: the autoscaler can't start its first node"
            yield Finding(title, "error", message, f"{RESTORE}: it sets the tags")
            continue
        mismatches = sorted(
            {key for each in own for key, value in _expected_tags(group, live).items() if each.tags.get(key) != value}
        )
        if mismatches:
            yield Finding(title, "error", f"missing or different tags: {', '.join(mismatches)}", RESTORE)
        else:
            least = sum(each.min for each in own)
            warm = f"; {least} kept warm by `spotmpi scale`" if least > group.min else ""
            yield Finding(
                title, "ok", f"{sum(len(each.instances) for each in own)} of {counted(group.max, 'node')}{warm}"
            )


def _expected_tags(group: NodeGroup, live: LiveEnvironment) -> dict[str, str]:
    tags = {f"{_TEMPLATE}/label/{key}": value for key, value in group.labels.items()}
    tags[f"{_TEMPLATE}/taint/{group.taint.key}"] = f"{group.taint.value}:{group.taint.effect}"
    if group.gpus:
        tags[f"{_TEMPLATE}/resources/nvidia.com/gpu"] = str(group.gpus)
    if group.efa_interfaces:
        tags[f"{_TEMPLATE}/resources/vpc.amazonaws.com/efa"] = str(group.efa_interfaces)
    tags["k8s.io/cluster-autoscaler/enabled"] = "true"
    tags[f"k8s.io/cluster-autoscaler/{live.environment.cluster}"] = "owned"
    return tags


def storage(subject: Subject, live: LiveEnvironment) -> Iterator[Finding]:
    """Whether the file system has mount targets, one in each zone that needs it, and the nodes can reach their port."""
    environment, aws, region = live.environment, subject.aws, subject.region
    targets = MOUNT_TARGET.list(aws, region, FileSystemId=environment.file_system_id)
    local = {str(each.get("AvailabilityZoneName")): each for each in targets}
    if environment.zone not in local:
        zones = ", ".join(local) or "none"
        yield Finding("mount target", "error", f"none in {environment.zone} (in other zones: {zones})", RESTORE)
        return
    yield from _without_mount_target(subject, environment, [zone for zone in environment.zones if zone not in local])
    for zone, target in local.items():
        if (state := target["LifeCycleState"]) != "available":
            where = f"in {zone} " * (len(local) > 1)
            yield Finding("mount target", "error", f"{where}is {state}", f"wait a few minutes, then {RESTORE}")
            continue
        yield Finding("mount target", "ok", f"available in {zone}")
        yield _port(subject, environment.cluster, target["MountTargetId"])


def _without_mount_target(subject: Subject, environment: Environment, zones: Sequence[str]) -> Iterator[Finding]:
    """What nodes in *zones* without a mount target can do: reach that of One Zone storage, by its zone in the mount.

    The name of a regional file system resolves only in zones with one (EFS User Guide, Mounting on Amazon EC2 with a
    DNS name).
    """
    if not zones:
        return
    systems = FILE_SYSTEM.list(subject.aws, subject.region, FileSystemId=environment.file_system_id)
    for zone in zones:
        if any(each.get("AvailabilityZoneName") for each in systems):
            across = f"none in {zone}: its nodes reach the one in {environment.zone} across zones, which is billed"
            yield Finding("mount target", "ok", across)
        else:
            message = f"none in {zone}: its nodes can't mount the regional file system"
            yield Finding("mount target", "error", message, f"{RESTORE}, which creates one in each zone")


def _port(subject: Subject, cluster: str, target: str) -> Finding:
    aws, region, title = subject.aws, subject.region, f"port {_NFS}"
    arguments = {"MountTargetId": target}
    groups = aws.call("efs", region, "describe_mount_target_security_groups", **arguments)["SecurityGroups"]
    nodes = aws.call("eks", region, "describe_cluster", name=cluster)["cluster"]["resourcesVpcConfig"][
        "clusterSecurityGroupId"
    ]
    filters = [{"Name": "group-id", "Values": groups}]
    rules = aws.pages("ec2", region, "describe_security_group_rules", "SecurityGroupRules", Filters=filters)
    if any(_allows_nfs(rule, nodes) for rule in rules):
        return Finding(title, "ok", "open from the nodes")
    message = f"no rule of {', '.join(groups)} allows the nodes ({nodes}): mounting would hang"
    return Finding(title, "error", message, f"{RESTORE}: it restores the rule")


def _allows_nfs(rule: Mapping[str, Any], nodes: str) -> bool:
    if rule["IsEgress"] or rule.get("ReferencedGroupInfo", {}).get("GroupId") != nodes:
        return False
    first, last = (0, 65535) if rule["IpProtocol"] == "-1" else (int(rule["FromPort"]), int(rule["ToPort"]))
    return rule["IpProtocol"] in ("-1", "tcp") and first <= _NFS <= last


def images(subject: Subject, live: LiveEnvironment) -> Iterator[Finding]:
    """Whether the registry has each image as this checkout would build it."""
    for image, repository in sorted(live.environment.repositories.items()):
        title, tag = f"image {image}", build_for(image, live.environment.has_gpus).tag
        if has_image(subject.aws, subject.region, repository, tag):
            yield Finding(title, "ok", f"tag {tag} is in the registry")
        else:
            command = f"spotmpi image push {image} --on {subject.stack.stack if subject.stack else 'STACK'}"
            message = f"tag {tag} is not in the registry"
            yield Finding(title, "warning", message, "push it, or set kubernetes.image in the job spec", command)


PLAN_CHECKS = (Check(_VERSION, planned_version),)
CHECKS = (
    live_check(_VERSION, kubernetes_version),
    live_check("add-ons", addons),
    live_check("node groups", node_groups),
    live_check("zones of groups", zones),
    live_check("autoscaler tags", autoscaler_tags),
    live_check("storage", storage),
    live_check("images", images),
)
