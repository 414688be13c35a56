"""The JobSet controller; every run is a JobSet."""

from typing import Any

import pulumi

from infra.charts import ON_SYSTEM_NODES, Installation, image_values, release
from infra.kubernetes_component import KubernetesComponent
from infra.kubernetes_versions import minor
from infra.sources import Chart

# JobSet replaces the pod of a lost node alone by the action RestartJob, which is off by default. The chart 0.12 has no
# value for feature gates, but its template configmap.yaml writes this one into the controller's configuration as it is.
_BURST_AND_FEATURE_GATES = """500
    featureGates:
      RestartJob: true"""
_FIRST_WITH_RESTART_JOB = 12  # a controller without the gate would not start with it


class JobSet(KubernetesComponent):
    """The JobSet controller on the system nodes; provides `installed`."""

    def __init__(self, name: str, chart: Chart, opts: pulumi.ResourceOptions):
        super().__init__("JobSet", name, opts)
        controller: dict[str, Any] = {"nodeSelector": dict(ON_SYSTEM_NODES)}
        if minor(chart.version) >= _FIRST_WITH_RESTART_JOB:
            controller["clientConnection"] = {"burst": _BURST_AND_FEATURE_GATES}
        values = {"image": image_values(chart) | {"pullPolicy": "IfNotPresent"}, "controller": controller}
        self.installed = release(name, Installation("jobset", chart, "jobset-system", values), self.child())
        self.register_outputs({})
