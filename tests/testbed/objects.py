"""Kubernetes objects for tests of the testbed itself: small, restricted, and explicit about every field."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.testbed.kubernetes import Object

SECURITY: Object = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "runAsGroup": 1000,
    "fsGroup": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def container(image: str, command: Sequence[str], **more: Any) -> Object:
    """Return a container that the restricted Pod Security Standard admits."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {"name": "main", "image": image, "command": list(command), "securityContext": security, **more}


def pod_spec(image: str, command: Sequence[str], **more: Any) -> Object:
    """Return the spec of a pod of user 1000 that ends within a second of SIGTERM; `more` adds or replaces fields."""
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": dict(SECURITY),
        "containers": [container(image, command)],
        **more,
    }


def pod(name: str, spec: Object, labels: dict[str, str] | None = None) -> Object:
    """Return a pod."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {}}, "spec": spec}


def headless_service(name: str, labels: dict[str, str]) -> Object:
    """Return a headless service for pods, also those that are not ready."""
    spec = {"clusterIP": "None", "selector": labels, "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def indexed_job(name: str, nodes: int, spec: Object, **more: Any) -> Object:
    """Return an Indexed Job with as many pods as nodes, and no retries."""
    job = {
        "completionMode": "Indexed",
        "completions": nodes,
        "parallelism": nodes,
        "backoffLimit": 0,
        "template": {"metadata": {"labels": {"app": name}}, "spec": spec},
        **more,
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": job}


def jobset(name: str, nodes: int, spec: Object) -> Object:
    """Return a JobSet of one gang that restarts as a whole after a reclaim, which counts as no restart."""
    job = indexed_job(name, nodes, spec)["spec"]
    interrupted = [{"type": "DisruptionTarget"}]
    job["podFailurePolicy"] = {
        "rules": [
            {"action": "FailJob", "onPodConditions": interrupted},
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [75]}},
        ]
    }
    restart = {"action": "RestartJobSetAndIgnoreMaxRestarts", "onJobFailureReasons": ["PodFailurePolicy"]}
    gang = {
        "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}],
        "failurePolicy": {"maxRestarts": 0, "rules": [{"name": "interrupted", **restart}]},
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
    }
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name}, "spec": gang}


def shared_claim(volume: str, claim: str, folder: Path) -> list[Object]:
    """Return a volume on a folder of the machine that all nodes share, and the claim that is bound to it."""
    common: Object = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeMode": "Filesystem"}
    size = {"storage": "1Gi"}
    volume_spec = {**common, "capacity": size, "hostPath": {"path": str(folder), "type": "Directory"}}
    claim_spec = {**common, "resources": {"requests": size}, "volumeName": volume}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": volume_spec},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": claim}, "spec": claim_spec},
    ]
