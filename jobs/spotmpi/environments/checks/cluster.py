"""What the cluster of a live environment says: nodes, GPUs, controllers, the key and the volume of the runs."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

from spotmpi.backends.kubernetes.client.api import Object
from spotmpi.core.environment import NodeGroup
from spotmpi.core.errors import NotPermitted
from spotmpi.environments.checks.finding import Finding, Subject
from spotmpi.environments.checks.live import Live, of_live
from spotmpi.environments.nodes import Node, list_nodes, with_placement

_SYSTEM = "kube-system"
_JOBSET = "jobset-system"
_PLUGIN = "nvidia-device-plugin"
_PUBLIC = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{60,}={0,2}( .*)?")


def nodes(subject: Subject, live: Live) -> Iterator[Finding]:
    """Each node of a group: ready, of the group's type, in the zone and placement group, with its GPUs."""
    there = list_nodes(live.cluster, live.environment.namespace)
    yield Finding("API", "ok", f"answers; {len(there)} nodes")
    for node in with_placement(there, subject.aws, subject.region):
        known = {group.name: group for group in live.environment.node_groups}
        if node.group in known:
            yield _node(node, known[node.group], live)


def _node(node: Node, group: NodeGroup, live: Live) -> Finding:
    name, zone = f"node {node.name}", live.environment.zone
    if node.state == "not ready":
        command = f"kubectl describe node {node.name}"
        return Finding(name, "error", "is not ready", "wait: EKS replaces it after some minutes", command)
    if node.type != group.type:
        return Finding(name, "error", f"is a {node.type}, group {group.name} has {group.type}", "run `pulumi up`")
    if node.zone != zone:
        return Finding(name, "error", f"is in {node.zone}, the environment in {zone}", "run `pulumi up`")
    grouped = node.placement_group not in (None, "none")
    if group.placement_group and not grouped:
        return Finding(name, "error", "is in no placement group, its group asks for one", "run `pulumi up`")
    if node.gpus < group.gpus:
        message = f"offers {node.gpus} of {group.gpus} GPUs: its device plugin or driver does not work"
        command = f"kubectl -n {_SYSTEM} get pods -o wide --field-selector spec.nodeName={node.name}"
        return Finding(name, "error", message, "a node that has just come needs a minute; else delete it", command)
    has = f"{node.cpus:g} CPU, {node.memory_gib:.0f} GiB, {node.gpus} GPUs"
    return Finding(name, "ok", f"{node.type} in {node.zone}, {has}, driver {node.driver or 'unknown'}")


def controllers(subject: Subject, live: Live) -> Iterator[Finding]:
    """Whether JobSet, the autoscaler, DNS and, where there are GPUs, the device plugin run."""
    yield _running(live.cluster.list("Deployment", _JOBSET), "JobSet", "", "carries every run")
    system = live.cluster.list("Deployment", _SYSTEM)
    yield _running(system, "autoscaler", "cluster-autoscaler", "brings and takes nodes")
    yield _running(system, "DNS", "coredns", "lets pods find each other")
    if any(group.gpus for group in live.environment.node_groups):
        plugins = live.cluster.list("DaemonSet", _SYSTEM)
        found = [each for each in plugins if _PLUGIN in each["metadata"]["name"]]
        yield _plugin(found)


def _running(deployments: list[Object], name: str, called: str, does: str) -> Finding:
    found = [each for each in deployments if called in each["metadata"]["name"]]
    ready = sum(each.get("status", {}).get("availableReplicas") or 0 for each in found)
    if ready:
        return Finding(name, "ok", f"{ready} running")
    message = f"does not run, and {does}" if found else f"is not installed, and {does}"
    command = f"kubectl -n {_JOBSET if not called else _SYSTEM} get pods"
    return Finding(name, "error", message, "run `pulumi up`, then look at its pods", command)


def _plugin(found: list[Object]) -> Finding:
    name = "device plugin"
    if not found:
        return Finding(name, "error", "is not installed: no pod gets a GPU", "run `pulumi up`")
    status = found[0].get("status", {})
    wanted, ready = status.get("desiredNumberScheduled") or 0, status.get("numberReady") or 0
    if ready < wanted:
        command = f"kubectl -n {_SYSTEM} get pods -o wide"
        return Finding(name, "error", f"runs on {ready} of {wanted} GPU nodes", "look at its pods", command)
    return Finding(name, "ok", f"on {ready} GPU nodes")


def scaling_status(subject: Subject, live: Live) -> Iterator[Finding]:
    """What the autoscaler says of itself."""
    told = live.cluster.get("ConfigMap", "cluster-autoscaler-status", _SYSTEM)
    if told is None:
        yield Finding(
            "scaling", "warning", "the autoscaler has not told its status", "it does within a minute of its start"
        )
        return
    text = str((told.get("data") or {}).get("status", ""))
    state = re.search(r"status: (\w+)|Health:\s+(\w+)", text)
    health = (state[1] or state[2]) if state else "unknown"
    if health != "Healthy":
        command = f"kubectl -n {_SYSTEM} get configmap cluster-autoscaler-status -o yaml"
        yield Finding("scaling", "error", f"the autoscaler calls the cluster {health}", "see why", command)
    else:
        yield Finding("scaling", "ok", "the autoscaler calls the cluster Healthy")


def ssh_key(subject: Subject, live: Live) -> Iterator[Finding]:
    """Whether the MPI key is whole; what it holds is never shown. Users of an environment may not read Secrets."""
    where = live.environment
    try:
        secret = live.cluster.get("Secret", where.ssh_secret, where.namespace)
    except NotPermitted:
        message = f"not checked: only administrators of the cluster may read Secret {where.ssh_secret}"
        yield Finding("SSH key", "ok", message)
        return
    problem = "is not there" if secret is None else _wrong_with(secret.get("data") or {})
    if problem:
        yield Finding("SSH key", "error", f"Secret {where.ssh_secret} {problem}", "run `pulumi up`: it makes it anew")
    else:
        yield Finding("SSH key", "ok", f"Secret {where.ssh_secret} is whole")


def _wrong_with(data: dict[str, str]) -> str | None:
    missing = [key for key in ("id", "id.pub", "authorized_keys") if not data.get(key)]
    if missing:
        return f"lacks {', '.join(missing)}"
    try:
        private, public, allowed = (
            base64.b64decode(data[key], validate=True).decode() for key in ("id", "id.pub", "authorized_keys")
        )
    except (binascii.Error, UnicodeDecodeError):
        return "holds what is no text"
    if not private.startswith("-----BEGIN OPENSSH PRIVATE KEY-----\n") or not private.endswith("\n"):
        return "has an `id` that is no OpenSSH private key (with a newline at its end)"
    if not _PUBLIC.fullmatch(public.strip()):
        return "has an `id.pub` that is no ED25519 public key"
    if public.split()[1] not in allowed:
        return "has `authorized_keys` without its own public key"
    return None


def volume(subject: Subject, live: Live) -> Iterator[Finding]:
    """Whether the claim of the runs is bound."""
    where = live.environment
    claim = live.cluster.get("PersistentVolumeClaim", where.volume_claim, where.namespace)
    phase = "missing" if claim is None else str(claim.get("status", {}).get("phase"))
    if phase == "Bound":
        yield Finding("volume", "ok", f"claim {where.volume_claim} is bound")
        return
    command = f"kubectl -n {where.namespace} describe pvc {where.volume_claim}"
    yield Finding(
        "volume", "error", f"claim {where.volume_claim} is {phase}", "run `pulumi up`, then look at it", command
    )


CHECKS = (
    of_live("API and nodes", nodes),
    of_live("controllers", controllers),
    of_live("scaling", scaling_status),
    of_live("SSH key", ssh_key),
    of_live("volume", volume),
)
