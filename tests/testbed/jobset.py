"""The JobSet controller, run outside the cluster with its webhooks."""

from __future__ import annotations

from tests.testbed.control_plane import ControlPlane
from tests.testbed.controller import Controller
from tests.testbed.kubernetes import Object
from tests.testbed.programs import module_file
from tests.testbed.web import free_ports

_JOBSET_PODS = {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]}


class JobSet(Controller):
    """The controller of JobSets; stopping it makes the cluster refuse new ones, as a broken webhook does."""

    name = "jobset"

    def __init__(self, plane: ControlPlane) -> None:
        self._port, self._health = free_ports(2)
        super().__init__(plane)
        self.write_serving_certificate(self.folder / "serving")

    def flags(self) -> list[str]:
        """Return the program's arguments."""
        configuration = {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "webhook": {"port": self._port, "host": "127.0.0.1", "certDir": str(self.folder / "serving")},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health}"},
            "metrics": {"bindAddress": "0"},
        }
        return [f"--config={self.write_configuration(configuration)}", f"--kubeconfig={self.plane.kubeconfig}"]

    def install(self) -> None:
        """Define JobSets in the cluster, and the webhooks that check them."""
        webhooks = self.webhooks(module_file("jobset", "manifests.yaml"), self._port)
        for webhook in (webhook for configuration in webhooks for webhook in configuration["webhooks"]):
            if webhook["clientConfig"]["url"].endswith("-v1-pod"):
                # Else no pod of any kind could start while the controller is down.
                webhook["objectSelector"] = _JOBSET_PODS
        self.kubernetes.define(module_file("jobset", "bases"))
        self.kubernetes.apply(*webhooks)

    def refusal(self) -> str:
        """Return "" when the cluster accepts a JobSet, else why not."""
        return self.dry_run(_sample())


def _sample() -> Object:
    pod = {"restartPolicy": "Never", "containers": [{"name": "sample", "image": "sample"}]}
    job = {"name": "sample", "template": {"spec": {"template": {"spec": pod}}}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "sample", "namespace": "default"},
        "spec": {"replicatedJobs": [job]},
    }
