"""The short-lived pod that reads or fills a run volume, whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotmpi.plan import pods
from spotmpi.plan.volume_pod import LIFETIME, Volume, store_command, volume_pod

TEAM = {"key": "team", "operator": "Exists"}
OWNER = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "runs", "uid": "7"}


@pytest.mark.parametrize(("uid", "owners"), [(None, {}), ("7", {"ownerReferences": [OWNER]})])
def test_the_pod_mounts_the_claim_requests_little_and_ends_by_itself(
    uid: str | None, owners: dict[str, object]
) -> None:
    labels = {"app.kubernetes.io/managed-by": "spotmpi", "spotmpi.dev/purpose": "volume"}
    assert volume_pod("volume-1", "training", Volume("runs", "image:1", ("registry", "other"), (TEAM,)), uid) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "volume-1", "namespace": "training", "labels": labels, **owners},
        "spec": {
            "activeDeadlineSeconds": LIFETIME,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pods.pod_security(),
            "imagePullSecrets": [{"name": "registry"}, {"name": "other"}],
            "tolerations": [TEAM],
            "containers": [
                {
                    "name": "node",
                    "image": "image:1",
                    "command": ["sleep", str(LIFETIME)],
                    "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                    "securityContext": pods.container_security(),
                    "volumeMounts": [{"name": "volume", "mountPath": "/spotmpi/volume"}],
                }
            ],
            "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": "runs"}}],
        },
    }


def test_the_pod_has_the_labels_and_the_architecture_of_the_runs_and_stays_one_of_a_volume() -> None:
    labels = (("team", "vision"), ("spotmpi.dev/purpose", "run"))
    pod = volume_pod("v", "training", Volume("runs", "image:1", (), (), labels, (("kubernetes.io/arch", "arm64"),)))
    own = {"app.kubernetes.io/managed-by": "spotmpi", "spotmpi.dev/purpose": "volume"}
    assert pod["metadata"]["labels"] == {"team": "vision", **own}
    assert pod["spec"]["nodeSelector"] == {"kubernetes.io/arch": "arm64"}


def test_two_pods_share_no_object() -> None:
    first, second = (volume_pod("volume-1", "training", Volume("runs", "image:1")) for _ in range(2))
    first["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "8"
    first["metadata"]["labels"].clear()
    assert second == volume_pod("volume-1", "training", Volume("runs", "image:1")) != first


def test_a_command_of_the_store_runs_on_a_folder_in_any_pod_with_python(tmp_path: Path) -> None:
    command = store_command("list", str(tmp_path), "a")
    assert command[:4] == ["python3", "-I", "-S", "-c"] and command[5:] == ["list", str(tmp_path), "a"]
    compile(command[4], "store", "exec")
