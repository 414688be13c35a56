"""Device plugins for GPUs and EFA, and GPU metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi

from infra import names
from infra.charts import ON_GPU_NODES, SYSTEM_NAMESPACE, TOLERATE_GPU, Installation, image_values, release
from infra.kubernetes_component import KubernetesComponent
from infra.sources import Chart


@dataclass(frozen=True)
class AcceleratorArgs:
    """Whether groups have GPUs, the instance types with EFA, and whether to export GPU metrics."""

    gpus: bool
    efa_types: Sequence[str]
    dcgm: bool
    charts: Mapping[str, Chart]


def installations(args: AcceleratorArgs) -> list[Installation]:
    """The charts that the environment's nodes need; none without GPUs and EFA."""
    on_gpus: dict[str, Any] = {"nodeSelector": dict(ON_GPU_NODES), "tolerations": [TOLERATE_GPU]}
    charts: list[tuple[str, dict[str, Any]]] = []
    if args.gpus:
        charts.append(("nvidia-device-plugin", dict(on_gpus)))
    if args.gpus and args.dcgm:
        charts.append(("dcgm-exporter", {**on_gpus, "serviceMonitor": {"enabled": False}}))
    if args.efa_types:
        tolerate_work = {**TOLERATE_GPU, "key": names.TAINT_WORK}
        types = {"keys": ["node.kubernetes.io/instance-type"], "values": list(args.efa_types)}
        charts.append(
            ("efa-device-plugin", {"tolerations": [TOLERATE_GPU, tolerate_work], "supportedInstanceLabels": types})
        )
    return [_installation(name, args.charts[name], values) for name, values in charts]


def _installation(name: str, chart: Chart, values: dict[str, Any]) -> Installation:
    """A chart with its image, where that is known or a mirror's."""
    image = image_values(chart)
    return Installation(name, chart, SYSTEM_NAMESPACE, {**values, "image": image} if image else values)


class Accelerators(KubernetesComponent):
    """Device plugins for the devices of the environment's nodes, and GPU metrics if enabled."""

    def __init__(self, name: str, args: AcceleratorArgs, opts: pulumi.ResourceOptions):
        super().__init__("Accelerators", name, opts)
        for installation in installations(args):
            release(name, installation, self.child())
        self.register_outputs({})
