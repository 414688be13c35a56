"""Where the gang of a run may be placed, and the Job of the controller that moves it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spotmpi.agent import pod_context
from spotmpi.agent.plan import PlacedCapacity, Placement
from spotmpi.core import names
from spotmpi.plan import pods
from spotmpi.plan.cluster import ClusterTarget
from spotmpi.plan.volume_pod import LABEL_PURPOSE
from spotmpi.spec.job import JobSpec

PURPOSE = "placement"  # the label by which a NetworkPolicy lets the controller reach the API server
_RESTARTS = 1000  # of the controller, which a node may take along
_RESOURCES = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}


def capacity(spec: JobSpec, target: ClusterTarget, run: str, rates: Mapping[str, float]) -> PlacedCapacity:
    """The node groups of *target* in their order, as the plan of the agents has them."""
    return {
        "patience": spec.capacity.patience,
        "pods": f"{names.LABEL_RUN}={run},{names.LABEL_ROLE}!={names.WORKER}",
        "placements": [_placement(spec, each, run, rates) for each in target.order],
    }


def _placement(spec: JobSpec, target: ClusterTarget, run: str, rates: Mapping[str, float]) -> Placement:
    pod, machine = pods.template(spec, target, run)["spec"], dict(target.machine)
    return {
        "name": machine["node_group"],
        "node_selector": pod["nodeSelector"],
        "tolerations": pod["tolerations"],
        "machine": machine,
        "rate": rates.get(machine["node_group"]),
    }


def controller_job(spec: JobSpec, target: ClusterTarget, run: str) -> dict[str, Any]:
    """The spec of the controller's Job, suspended like the JobSet of its run.

    Its pod has no label of the run, whose pods are nodes; it tolerates no taint, so it gets no node that is paid for
    the run.
    """
    return {
        "suspend": True,
        "backoffLimit": _RESTARTS,
        "template": {
            "metadata": {"labels": {names.LABEL_APP: "spotmpi", LABEL_PURPOSE: PURPOSE}},
            "spec": {
                "restartPolicy": "OnFailure",
                "serviceAccountName": target.placement_account,
                "enableServiceLinks": False,
                "terminationGracePeriodSeconds": 1,
                "securityContext": pods.pod_security(),
                "imagePullSecrets": [{"name": name} for name in spec.kubernetes.pull_secrets],
                "containers": [
                    {
                        "name": pods.CONTAINER,
                        "image": target.image,
                        "command": [*pods.PYTHON, f"{pod_context.CONFIG}/boot.py"],
                        "env": [{"name": pod_context.ENV_ROLE, "value": pod_context.CONTROLLER}],
                        "resources": {kind: dict(values) for kind, values in _RESOURCES.items()},
                        "securityContext": pods.container_security(),
                        "volumeMounts": [
                            {"name": "config", "mountPath": pod_context.CONFIG, "readOnly": True},
                            {"name": "work", "mountPath": pod_context.WORK},
                        ],
                    }
                ],
                "volumes": [
                    {"name": "config", "configMap": {"name": names.parts_name(run)}},
                    {"name": "work", "emptyDir": {}},
                ],
            },
        },
    }
