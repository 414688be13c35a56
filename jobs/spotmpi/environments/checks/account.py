"""What AWS says of a live environment: add-ons, node groups, autoscaler tags, the way to the storage, images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spotmpi.aws import scaling
from spotmpi.aws.registry import in_registry
from spotmpi.aws.scaling_errors import reason_of
from spotmpi.core.environment import NodeGroup
from spotmpi.environments.checks.finding import Finding, Subject
from spotmpi.environments.checks.live import Live, of_live
from spotmpi.images.build import build_for

_TEMPLATE = "k8s.io/cluster-autoscaler/node-template"
_ADDONS = ("vpc-cni", "coredns", "kube-proxy", "eks-pod-identity-agent", "aws-efs-csi-driver")
_NFS = 2049


def addons(subject: Subject, live: Live) -> Iterator[Finding]:
    """Whether EKS calls every add-on healthy, and none that runs need is missing."""
    cluster = live.environment.cluster
    there = subject.aws.pages("eks", subject.region, "list_addons", "addons", clusterName=cluster)
    for name in _ADDONS:
        if name not in there:
            yield Finding(f"add-on {name}", "error", "is not installed", "run `pulumi up`")
    for name in there:
        told = subject.aws.call("eks", subject.region, "describe_addon", clusterName=cluster, addonName=name)["addon"]
        issues = "; ".join(
            str(each.get("message") or each["code"]) for each in told.get("health", {}).get("issues", [])
        )
        if told["status"] == "ACTIVE" and not issues:
            yield Finding(f"add-on {name}", "ok", str(told.get("addonVersion", "active")))
        else:
            message = f"is {told['status']}" + (f": {issues}" if issues else "")
            yield Finding(f"add-on {name}", "error", message, "give it a minute, then run `pulumi up`")


def node_groups(subject: Subject, live: Live) -> Iterator[Finding]:
    """The health of each EKS node group, with AWS's reason in words; the last failed start of a machine too."""
    cluster = live.environment.cluster
    for name in subject.aws.pages("eks", subject.region, "list_nodegroups", "nodegroups", clusterName=cluster):
        asked = {"clusterName": cluster, "nodegroupName": name}
        told = subject.aws.call("eks", subject.region, "describe_nodegroup", **asked)["nodegroup"]
        issues = told.get("health", {}).get("issues", [])
        title = f"node group {name}"
        for issue in issues:
            reason = reason_of(str(issue.get("code", "")), str(issue.get("message", "")))
            yield Finding(title, "error", reason.words, reason.remedy)
        if not issues and told["status"] != "ACTIVE":
            yield Finding(title, "warning", f"is {told['status']}", "wait until it is ACTIVE")
        elif not issues:
            yield _last_start(subject, title, told)


def _last_start(subject: Subject, title: str, told: Mapping[str, Any]) -> Finding:
    size = told.get("scalingConfig", {})
    healthy = Finding(title, "ok", f"healthy, {size.get('minSize', 0)} to {size.get('maxSize', '?')} nodes")
    for group in told.get("resources", {}).get("autoScalingGroups", []):
        done = scaling.activities(subject.aws, subject.region, group["name"])
        starts = [each for each in done if str(each.get("Description", "")).startswith("Launching")]
        if starts and starts[0]["StatusCode"] == "Failed":
            reason = reason_of("", str(starts[0].get("StatusMessage", "")))
            when = f"{starts[0]['StartTime']:%Y-%m-%d %H:%M} UTC"
            return Finding(
                title, "warning", f"the last start of a machine failed ({when}): {reason.words}", reason.remedy
            )
    return healthy


def autoscaler_tags(subject: Subject, live: Live) -> Iterator[Finding]:
    """Whether each Auto Scaling group tells the autoscaler what its nodes will have, or none comes from 0."""
    found = scaling.scaling_groups(subject.aws, live.environment)
    for group in live.environment.node_groups:
        title = f"scaling of {group.name}"
        own = [each for each in found if each.group == group.name]
        if not own:
            message = "no Auto Scaling group says that it is this group's: the autoscaler can't start its first node"
            yield Finding(title, "error", message, "run `pulumi up`: it sets the tags")
            continue
        lacking = sorted(
            {key for each in own for key, value in _wanted(group, live).items() if each.tags.get(key) != value}
        )
        if lacking:
            yield Finding(title, "error", f"lacks or differs in tags {', '.join(lacking)}", "run `pulumi up`")
        else:
            least = sum(each.min for each in own)
            kept = f"; {least} kept ready by `spotmpi scale`" if least > group.min else ""
            yield Finding(title, "ok", f"{sum(len(each.instances) for each in own)} of {group.max} nodes{kept}")


def _wanted(group: NodeGroup, live: Live) -> dict[str, str]:
    wanted = {f"{_TEMPLATE}/label/{key}": value for key, value in group.labels.items()}
    wanted[f"{_TEMPLATE}/taint/{group.taint.key}"] = f"{group.taint.value}:{group.taint.effect}"
    if group.gpus:
        wanted[f"{_TEMPLATE}/resources/nvidia.com/gpu"] = str(group.gpus)
    wanted["k8s.io/cluster-autoscaler/enabled"] = "true"
    wanted[f"k8s.io/cluster-autoscaler/{live.environment.cluster}"] = "owned"
    return wanted


def storage(subject: Subject, live: Live) -> Iterator[Finding]:
    """Whether the file system has a mount target in the zone, and the nodes may reach its port."""
    where, aws, region = live.environment, subject.aws, subject.region
    asked = {"FileSystemId": where.file_system_id}
    targets = aws.pages("efs", region, "describe_mount_targets", "MountTargets", **asked)
    here = [each for each in targets if each.get("AvailabilityZoneName") == where.zone]
    if not here:
        elsewhere = ", ".join(str(each.get("AvailabilityZoneName")) for each in targets) or "none at all"
        yield Finding("mount target", "error", f"none in {where.zone} (there: {elsewhere})", "run `pulumi up`")
        return
    state = here[0]["LifeCycleState"]
    if state != "available":
        yield Finding("mount target", "error", f"is {state}", "wait some minutes, then run `pulumi up`")
        return
    yield Finding("mount target", "ok", f"available in {where.zone}")
    yield _port(subject, where.cluster, here[0]["MountTargetId"])


def _port(subject: Subject, cluster: str, target: str) -> Finding:
    aws, region, title = subject.aws, subject.region, f"port {_NFS}"
    asked = {"MountTargetId": target}
    groups = aws.call("efs", region, "describe_mount_target_security_groups", **asked)["SecurityGroups"]
    nodes = aws.call("eks", region, "describe_cluster", name=cluster)["cluster"]["resourcesVpcConfig"][
        "clusterSecurityGroupId"
    ]
    only = [{"Name": "group-id", "Values": groups}]
    rules = aws.pages("ec2", region, "describe_security_group_rules", "SecurityGroupRules", Filters=only)
    if any(_opens(rule, nodes) for rule in rules):
        return Finding(title, "ok", "open from the nodes")
    message = f"no rule of {', '.join(groups)} lets the nodes ({nodes}) in: mounting would hang"
    return Finding(title, "error", message, "run `pulumi up`: it restores the rule")


def _opens(rule: Mapping[str, Any], nodes: str) -> bool:
    if rule["IsEgress"] or rule.get("ReferencedGroupInfo", {}).get("GroupId") != nodes:
        return False
    first, last = (0, 65535) if rule["IpProtocol"] == "-1" else (int(rule["FromPort"]), int(rule["ToPort"]))
    return rule["IpProtocol"] in ("-1", "tcp") and first <= _NFS <= last


def images(subject: Subject, live: Live) -> Iterator[Finding]:
    """Whether the registry has each image as this checkout would build it."""
    for image, repository in sorted(live.environment.repositories.items()):
        title, tag = f"image {image}", build_for(image, live.environment.has_gpus).tag
        if in_registry(subject.aws, subject.region, repository, tag):
            yield Finding(title, "ok", f"tag {tag} is in the registry")
        else:
            command = f"spotmpi image push {image} --on {subject.stack.stack if subject.stack else 'STACK'}"
            what = f"tag {tag} is not in the registry"
            yield Finding(title, "warning", what, "push it, or runs name kubernetes.image", command)


CHECKS = (
    of_live("add-ons", addons),
    of_live("node groups", node_groups),
    of_live("autoscaler tags", autoscaler_tags),
    of_live("storage", storage),
    of_live("images", images),
)
