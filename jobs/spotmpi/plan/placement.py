"""Where the gang of a run may be placed, and the Job of the controller that moves it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from spotmpi.agent import pod_context
from spotmpi.agent.plan import NODE, STANDBY, Block, Deadline, Forecast, PlacedCapacity, Placement
from spotmpi.core import names
from spotmpi.plan import pods
from spotmpi.plan.cluster import ClusterTarget
from spotmpi.plan.volume_pod import LABEL_PURPOSE
from spotmpi.spec.job import JobSpec

PURPOSE = "placement"  # the label by which a NetworkPolicy lets the controller reach the API server
_RESTARTS = 1000  # of the controller, which a node may take along
_POLICY = "spotmpi.capacity.controller"  # the module of a controller that keeps a deadline


class Beginning(NamedTuple):
    """Why a run begins on the first of its node groups, and what it is expected to cost where it has a deadline.

    *blocks* are the Capacity Blocks of its node groups, by group.
    """

    reason: str = "the first in the order of its node groups"
    forecast: Forecast | None = None
    blocks: Mapping[str, Block] = MappingProxyType({})


def capacity(
    spec: JobSpec, target: ClusterTarget, run: str, rates: Mapping[str, float], beginning: Beginning
) -> PlacedCapacity:
    """The node groups of *target* in their order, as the plan of the agents has them."""
    role = f"{names.LABEL_ROLE} in ({NODE},{STANDBY})" if spec.standby else f"{names.LABEL_ROLE}={NODE}"
    return {
        "patience": spec.capacity.patience,
        "partial": spec.capacity.partial,
        "retry": spec.capacity.retry,
        "overhead": spec.capacity.overhead,
        "pods": f"{names.LABEL_RUN}={run},{role}",
        "standby": spec.standby,
        "placements": [_in_block(_placement(spec, each, run, rates), beginning.blocks) for each in target.order],
        "reason": beginning.reason,
        "forecast": beginning.forecast,
        "deadline": _deadline(spec),
    }


def _deadline(spec: JobSpec) -> Deadline | None:
    table = spec.capacity
    if table.deadline is None:
        return None
    assert table.work is not None, "a valid spec has both"
    return {
        "at": table.deadline.timestamp() if isinstance(table.deadline, datetime) else None,
        "after": None if isinstance(table.deadline, datetime) else table.deadline,
        "work": table.work,
        "lost_work": table.lost_work or 0.0,
        "market": table.market,
        "budget": table.budget,
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


def _in_block(placement: Placement, blocks: Mapping[str, Block]) -> Placement:
    """*placement* with the Capacity Block of its node group, if it has one."""
    return {**placement, "block": blocks[placement["name"]]} if placement["name"] in blocks else placement


def controller_job(spec: JobSpec, target: ClusterTarget, run: str) -> dict[str, Any]:
    """The spec of the controller's Job, suspended like the JobSet of its run.

    Its pod has no label of the run, whose pods are nodes; it tolerates no taint, so it gets no node that is paid for
    the run. It reads the run folder; that of a run with a deadline needs memory for its policy.
    """
    by_deadline = spec.capacity.deadline is not None
    volumes, mounts = _volumes(target, run)
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
                        "command": [*pods.PYTHON, f"{pod_context.CONFIG}/boot.py", *([_POLICY] if by_deadline else [])],
                        "env": [{"name": pod_context.ENV_ROLE, "value": pod_context.CONTROLLER}],
                        "resources": {
                            "requests": {"cpu": "10m", "memory": "256Mi" if by_deadline else "64Mi"},
                            "limits": {"memory": "1Gi" if by_deadline else "256Mi"},
                        },
                        "securityContext": pods.container_security(),
                        "volumeMounts": mounts,
                    }
                ],
                "volumes": volumes,
            },
        },
    }


def _volumes(target: ClusterTarget, run: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The volumes of the controller's pod, and where its container has them."""
    volumes: list[dict[str, Any]] = [
        {"name": "config", "configMap": {"name": names.parts_name(run)}},
        {"name": "work", "emptyDir": {}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "config", "mountPath": pod_context.CONFIG, "readOnly": True},
        {"name": "work", "mountPath": pod_context.WORK},
    ]
    if target.volume is not None:
        volumes.append({"name": "volume", "persistentVolumeClaim": {"claimName": target.volume}})
        mounts.append({"name": "volume", "mountPath": pod_context.VOLUME})
    return volumes, mounts
