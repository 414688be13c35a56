"""A short-lived pod that reads or fills a run volume while no pod of a run does. Pure."""

from __future__ import annotations

from typing import Any

from jobs import names
from jobs.plan import pods
from jobs.plan.pod_plan import VOLUME

LABEL_PURPOSE = "spotmpi.dev/purpose"
PURPOSE = "volume"
LIVES = 3600  # seconds after which the cluster ends one whose user has gone
_SHARE = {"cpu": "100m", "memory": "64Mi"}


def volume_pod(name: str, namespace: str, volume: str, image: str, pull_secrets: list[str]) -> dict[str, Any]:
    """The pod that mounts the claim *volume* and waits; *image* needs ``sh``, ``sleep``, ``tar`` and ``python3``."""
    container = {
        "name": pods.CONTAINER,
        "image": image,
        "command": ["sleep", str(LIVES)],
        "resources": {"requests": _SHARE},
        "securityContext": pods.container_security(),
        "volumeMounts": [{"name": "volume", "mountPath": VOLUME}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {names.LABEL_APP: "spotmpi", LABEL_PURPOSE: PURPOSE},
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LIVES,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pods.pod_security(),
            "imagePullSecrets": [{"name": secret} for secret in pull_secrets],
            "containers": [container],
            "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": volume}}],
        },
    }
