"""The ConfigMaps with the wheels of Dask that all runs of a namespace share, and the pods that mount them. Pure."""

from __future__ import annotations

import base64
import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spotmpi.agent import pod_context
from spotmpi.agent.plan import Wheels
from spotmpi.core import names
from spotmpi.plan import cluster_plan, pods
from spotmpi.plan.templates import Object

if TYPE_CHECKING:
    from spotmpi.images.wheels import PackedWheels


LARGEST = 1_040_000  # bytes of a ConfigMap's data; Kubernetes takes 1 MiB
_VOLUME = "wheels"
_KEY = "piece"
_ABOUT = """\
Dask for the pods of spotmpi's worker pools whose image has none. The pieces are {pieces}. Runs that are up use them;
the next run that needs them creates them anew.
"""


def config_maps(wheels: PackedWheels, namespace: str) -> list[Object]:
    """The ConfigMaps with the pieces of the archive, then the one whose existence says that all of them exist."""
    pieces = [wheels.archive[start : start + LARGEST] for start in range(0, len(wheels.archive), LARGEST)]
    about = _ABOUT.format(pieces=", ".join(_piece_name(wheels, number) for number in range(len(pieces))))
    return [
        *(
            _config_map(_piece_name(wheels, number), namespace, binaryData={_KEY: base64.b64encode(piece).decode()})
            for number, piece in enumerate(pieces)
        ),
        _config_map(wheels_name(wheels), namespace, data={"about": about}),
    ]


def with_wheels(objects: Sequence[Object], wheels: PackedWheels) -> list[Object]:
    """The objects of a run whose pods mount the wheels, and whose agents unpack those that the image lacks."""
    changed = [copy.deepcopy(each) for each in objects]
    count = -(-len(wheels.archive) // LARGEST)
    for template in cluster_plan.templates(changed):
        _mount(template["spec"], [_piece_name(wheels, number) for number in range(count)])
    return [cluster_plan.with_agent_plan(part, wheels=_agent_plan(wheels)) for part in changed]


def mounted_wheels(objects: Sequence[Object]) -> str | None:
    """The name of the wheels that the agents of a run unpack; None without any."""
    return next((plan["wheels"]["name"] for plan in cluster_plan.agent_plans(objects) if plan.get("wheels")), None)


def wheels_name(wheels: PackedWheels) -> str:
    """The name of the ConfigMap that is created last; those of the pieces have their number after it."""
    return f"spotmpi-wheels-{wheels.digest}"


def _piece_name(wheels: PackedWheels, number: int) -> str:
    return f"{wheels_name(wheels)}-{number}"


def _agent_plan(wheels: PackedWheels) -> Wheels:
    return {
        "name": wheels_name(wheels),
        "folder": pod_context.WHEELS,
        "architecture": wheels.architecture,
        "sha256": wheels.sha256,
    }


def _config_map(name: str, namespace: str, **content: dict[str, str]) -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": {names.LABEL_APP: "spotmpi"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, **content}


def _mount(pod: Object, pieces: Sequence[str]) -> None:
    sources = [
        {"configMap": {"name": name, "items": [{"key": _KEY, "path": str(number)}]}}
        for number, name in enumerate(pieces)
    ]
    pod["volumes"].append({"name": _VOLUME, "projected": {"sources": sources}})
    for container in pod["containers"]:
        if container["name"] == pods.CONTAINER:
            container["volumeMounts"].append({"name": _VOLUME, "mountPath": pod_context.WHEELS, "readOnly": True})
