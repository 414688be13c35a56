"""Cluster checks: a built environment's nodes, GPUs, controllers, SSH key and volume."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

from spotmpi.agent import protocol, ssh
from spotmpi.aws.instances import NO_GROUP
from spotmpi.backends.kubernetes.client.api import Object
from spotmpi.core.environment import NodeGroup
from spotmpi.core.errors import NotPermitted
from spotmpi.core.wording import counted
from spotmpi.environments.checks.check import RESTORE, Finding, LiveEnvironment, Subject, live_check
from spotmpi.environments.nodes import Node, list_nodes, with_placement

_SYSTEM = "kube-system"
_JOBSET = "jobset-system"
_PLUGIN = "nvidia-device-plugin"
_PUBLIC = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{60,}={0,2}( .*)?")


def nodes(subject: Subject, live: LiveEnvironment) -> Iterator[Finding]:
    """Each node of a group: ready, of the group's type, in the zone and placement group, with its GPUs."""
    cluster_nodes = list_nodes(live.cluster, live.environment.namespace)
    yield Finding("API", "ok", f"responds; {counted(len(cluster_nodes), 'node')}")
    for node in with_placement(cluster_nodes, subject.aws, subject.region):
        known = {group.name: group for group in live.environment.node_groups}
        if node.group in known:
            yield _node(node, known[node.group])


def _node(node: Node, group: NodeGroup) -> Finding:
    name = f"node {node.name}"
    if node.state == "not ready":
        command = f"kubectl describe node {node.name}"
        return Finding(name, "error", "is not ready", "wait a few minutes: EKS replaces it", command)
    if node.type != group.type:
        return Finding(name, "error", f"is of type {node.type}, but group {group.name} has {group.type}", RESTORE)
    if node.zone != group.zone:
        message = f"is in {node.zone}, but group {group.name} is in {group.zone}"
        return Finding(name, "error", message, RESTORE)
    grouped = node.placement_group not in (None, NO_GROUP)
    if group.placement_group and not grouped:
        return Finding(name, "error", "is in no placement group, but its node group sets one", RESTORE)
    if node.gpus < group.gpus:
        message = f"has {node.gpus} of {counted(group.gpus, 'GPU')}: its device plugin or driver fails"
        command = f"kubectl -n {_SYSTEM} get pods -o wide --field-selector spec.nodeName={node.name}"
        return Finding(name, "error", message, "wait a minute if it is new, else delete it", command)
    resources = f"{node.cpus:g} CPU, {node.memory_gib:.0f} GiB, {counted(node.gpus, 'GPU')}"
    return Finding(name, "ok", f"{node.type} in {node.zone}, {resources}, driver {node.driver or 'unknown'}")


def controllers(subject: Subject, live: LiveEnvironment) -> Iterator[Finding]:
    """Whether JobSet, the autoscaler, DNS and, with GPUs, the device plugin are running."""
    yield _running(live.cluster.list("Deployment", _JOBSET), "JobSet", "", "manages every run")
    system = live.cluster.list("Deployment", _SYSTEM)
    yield _running(system, "autoscaler", "cluster-autoscaler", "adds and removes nodes")
    yield _running(system, "DNS", "coredns", "resolves the pods' names")
    if any(group.gpus for group in live.environment.node_groups):
        daemon_sets = live.cluster.list("DaemonSet", _SYSTEM)
        plugins = [each for each in daemon_sets if _PLUGIN in each["metadata"]["name"]]
        yield _plugin(plugins)


def _running(deployments: list[Object], name: str, pattern: str, purpose: str) -> Finding:
    matches = [each for each in deployments if pattern in each["metadata"]["name"]]
    ready = sum(each.get("status", {}).get("availableReplicas") or 0 for each in matches)
    if ready:
        return Finding(name, "ok", f"{ready} running")
    message = f"is not running: it {purpose}" if matches else f"is not installed: it {purpose}"
    command = f"kubectl -n {_JOBSET if not pattern else _SYSTEM} get pods"
    return Finding(name, "error", message, f"{RESTORE}, then check its pods", command)


def _plugin(plugins: list[Object]) -> Finding:
    name = "device plugin"
    if not plugins:
        return Finding(name, "error", "is not installed: no pod gets a GPU", RESTORE)
    status = plugins[0].get("status", {})
    desired, ready = status.get("desiredNumberScheduled") or 0, status.get("numberReady") or 0
    if ready < desired:
        command = f"kubectl -n {_SYSTEM} get pods -o wide"
        return Finding(name, "error", f"runs on {ready} of {counted(desired, 'GPU node')}", "look at its pods", command)
    return Finding(name, "ok", f"on {counted(ready, 'GPU node')}")


def scaling_status(subject: Subject, live: LiveEnvironment) -> Iterator[Finding]:
    """The health that the autoscaler reports."""
    status = live.cluster.get("ConfigMap", "cluster-autoscaler-status", _SYSTEM)
    if status is None:
        yield Finding(
            "scaling", "warning", "the autoscaler has not reported its status", "wait a minute after its start"
        )
        return
    text = str((status.get("data") or {}).get("status", ""))
    state = re.search(r"status: (\w+)|Health:\s+(\w+)", text)
    health = (state[1] or state[2]) if state else "unknown"
    if health != "Healthy":
        command = f"kubectl -n {_SYSTEM} get configmap cluster-autoscaler-status -o yaml"
        yield Finding("scaling", "error", f"the autoscaler reports the cluster as {health}", "see its status", command)
    else:
        yield Finding("scaling", "ok", "the autoscaler reports the cluster as Healthy")


def ssh_key(subject: Subject, live: LiveEnvironment) -> Iterator[Finding]:
    """Whether the shared keys are valid; their content is never shown. Users of an environment can't read Secrets."""
    environment = live.environment
    try:
        secret = live.cluster.get("Secret", environment.ssh_secret, environment.namespace)
    except NotPermitted:
        message = f"not checked: only administrators of the cluster may read Secret {environment.ssh_secret}"
        yield Finding("SSH key", "ok", message)
        return
    problem = "does not exist" if secret is None else _key_problem(secret.get("data") or {})
    if problem:
        yield Finding(
            "SSH key", "error", f"Secret {environment.ssh_secret} {problem}", f"{RESTORE}: it creates a new one"
        )
    else:
        yield Finding("SSH key", "ok", f"Secret {environment.ssh_secret} is valid")


def _key_problem(data: dict[str, str]) -> str | None:
    names = (ssh.CLIENT_KEY, ssh.PUBLIC_KEY, ssh.AUTHORIZED, *protocol.TLS_FILES)
    missing = [key for key in names if not data.get(key)]
    if missing:
        return f"lacks {', '.join(missing)}"
    try:
        private, public, allowed, *tls = (base64.b64decode(data[key], validate=True).decode() for key in names)
    except (binascii.Error, UnicodeDecodeError):
        return "is not text"
    if not private.startswith("-----BEGIN OPENSSH PRIVATE KEY-----\n") or not private.endswith("\n"):
        return "has an `id` that is not an OpenSSH private key ending with a newline"
    if not _PUBLIC.fullmatch(public.strip()):
        return "has an `id.pub` that is not an ED25519 public key"
    if public.split()[1] not in allowed:
        return "has `authorized_keys` without its own public key"
    kinds = ("CERTIFICATE", "CERTIFICATE", "PRIVATE KEY")
    for name, kind, text in zip(protocol.TLS_FILES, kinds, tls, strict=True):
        if not text.startswith(f"-----BEGIN {kind}-----\n"):
            return f"has a `{name}` that does not begin with `-----BEGIN {kind}-----`"
    return None


def volume(subject: Subject, live: LiveEnvironment) -> Iterator[Finding]:
    """Whether the runs' volume claim is bound."""
    environment = live.environment
    claim = live.cluster.get("PersistentVolumeClaim", environment.volume_claim, environment.namespace)
    phase = "missing" if claim is None else str(claim.get("status", {}).get("phase"))
    if phase == "Bound":
        yield Finding("volume", "ok", f"claim {environment.volume_claim} is bound")
        return
    command = f"kubectl -n {environment.namespace} describe pvc {environment.volume_claim}"
    yield Finding(
        "volume",
        "error",
        f"claim {environment.volume_claim} is {phase}",
        f"{RESTORE}, then describe the claim",
        command,
    )


CHECKS = (
    live_check("API and nodes", nodes),
    live_check("controllers", controllers),
    live_check("scaling", scaling_status),
    live_check("SSH key", ssh_key),
    live_check("volume", volume),
)
