"""A short-lived pod that reads or fills a run volume while no pod of a run mounts it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spotmpi.agent import store, unpack
from spotmpi.core import names
from spotmpi.plan import pods
from spotmpi.plan.agent_plan import VOLUME

LABEL_PURPOSE = "spotmpi.dev/purpose"  # of pods that are no nodes of a run
PURPOSE = "volume"
CLAIM = "PersistentVolumeClaim"
LIFETIME = 3600  # seconds after which the cluster ends a pod that its user has left behind
_REQUESTS = {"cpu": "100m", "memory": "64Mi"}
_STORE = Path(store.__file__).read_text()
_UNPACK = Path(unpack.__file__).read_text()


def volume_pod(
    name: str, namespace: str, volume: str, image: str, pull_secrets: Sequence[str], uid: str | None = None
) -> dict[str, Any]:
    """The pod that mounts the claim *volume* and waits; *image* needs ``sh``, ``sleep`` and ``python3``.

    With its *uid* the claim owns the pod: VPC CNI enforces NetworkPolicies only for pods that have an owner
    (aws-network-policy-agent#327).
    """
    spec = pod_spec(volume, image, pull_secrets, ["sleep", str(LIFETIME)], _REQUESTS)
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "labels": labels(PURPOSE)}
    if uid is not None:
        owner = {"apiVersion": "v1", "kind": CLAIM, "name": volume, "uid": uid}
        metadata["ownerReferences"] = [owner]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**spec, "activeDeadlineSeconds": LIFETIME},
    }


def store_command(verb: str, folder: str, *rest: str) -> list[str]:
    """The command that runs a *verb* of `spotmpi.agent.store`, or of `spotmpi.agent.unpack`, on a folder in a pod."""
    return pods.python(_UNPACK if verb == "take" else _STORE, verb, folder, *rest)


def labels(purpose: str) -> dict[str, str]:
    """The labels of pods that read or fill a volume; a new dict each time."""
    return {names.LABEL_APP: "spotmpi", LABEL_PURPOSE: purpose}


def pod_spec(
    volume: str, image: str, pull_secrets: Sequence[str], command: list[str], requests: dict[str, str]
) -> dict[str, Any]:
    """The spec of a restricted pod that runs *command* with the claim *volume* mounted, without a GPU."""
    container = {
        "name": pods.CONTAINER,
        "image": image,
        "command": command,
        "resources": {"requests": dict(requests)},
        "securityContext": pods.container_security(),
        "volumeMounts": [{"name": "volume", "mountPath": VOLUME}],
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pods.pod_security(),
        "imagePullSecrets": [{"name": secret} for secret in pull_secrets],
        "containers": [container],
        "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": volume}}],
    }
