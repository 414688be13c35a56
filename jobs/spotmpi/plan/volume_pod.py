"""A short-lived pod that reads or fills a run volume while no pod of a run mounts it. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from spotmpi.agent import store, unpack
from spotmpi.core import names
from spotmpi.plan import pods
from spotmpi.plan.agent_plan import VOLUME

LABEL_PURPOSE = "spotmpi.dev/purpose"  # of pods that are not nodes of a run
PURPOSE = "volume"
CLAIM = "PersistentVolumeClaim"
LIFETIME = 3600  # seconds after which the cluster ends a pod that its user has left behind
_REQUESTS = {"cpu": "100m", "memory": "64Mi"}
_STORE = Path(store.__file__).read_text(encoding="utf-8")
_UNPACK = Path(unpack.__file__).read_text(encoding="utf-8")


class Volume(NamedTuple):
    """The claim of a run volume, and what a pod needs to mount it: an image with ``sh``, ``sleep`` and ``python3``.

    Tolerations and labels are those of the user: where all nodes are tainted, no pod starts without, and policies may
    ask for labels. Of the node selector it has what the image needs: its architecture.
    """

    claim: str
    image: str
    pull_secrets: tuple[str, ...] = ()
    tolerations: tuple[dict[str, Any], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()


def volume_pod(name: str, namespace: str, volume: Volume, uid: str | None = None) -> dict[str, Any]:
    """The pod that mounts *volume* and waits.

    With its *uid* the claim owns the pod: VPC CNI enforces NetworkPolicies only for pods that have an owner
    (aws-network-policy-agent#327).
    """
    spec = pod_spec(volume, ["sleep", str(LIFETIME)], _REQUESTS)
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "labels": {**dict(volume.labels), **labels(PURPOSE)},
    }
    if uid is not None:
        owner = {"apiVersion": "v1", "kind": CLAIM, "name": volume.claim, "uid": uid}
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


def pod_spec(volume: Volume, command: list[str], requests: dict[str, str]) -> dict[str, Any]:
    """The spec of a restricted pod that runs *command* with *volume* mounted, without a GPU."""
    container = {
        "name": pods.CONTAINER,
        "image": volume.image,
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
        "imagePullSecrets": [{"name": secret} for secret in volume.pull_secrets],
        "tolerations": list(volume.tolerations),
        **({"nodeSelector": dict(volume.node_selector)} if volume.node_selector else {}),
        "containers": [container],
        "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": volume.claim}}],
    }
