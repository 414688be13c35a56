"""The JobSet controller; every run is a JobSet."""

import pulumi

from infra.charts import ON_SYSTEM_NODES, Installation, image_values, release
from infra.kubernetes_component import KubernetesComponent
from infra.sources import Chart


class JobSet(KubernetesComponent):
    """The JobSet controller on the system nodes; provides `installed`."""

    def __init__(self, name: str, chart: Chart, opts: pulumi.ResourceOptions):
        super().__init__("JobSet", name, opts)
        values = {
            "image": image_values(chart) | {"pullPolicy": "IfNotPresent"},
            "controller": {"nodeSelector": dict(ON_SYSTEM_NODES)},
        }
        self.installed = release(name, Installation("jobset", chart, "jobset-system", values), self.child())
        self.register_outputs({})
