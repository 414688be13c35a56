"""Kueue, run outside the cluster with its webhooks: it admits Jobs and JobSets by quota, as an environment's does."""

from __future__ import annotations

from tests.testbed.control_plane import ControlPlane
from tests.testbed.controller import Controller
from tests.testbed.kubernetes import Object
from tests.testbed.programs import module_file
from tests.testbed.web import free_ports

_NAMESPACE = "kueue-system"
# Kueue serves only the webhooks of the frameworks that it manages; the others would refuse everything.
_SERVED = ("-batch-v1-job", "-jobset-x-k8s-io-", "-kueue-x-k8s-io-")


class Kueue(Controller):
    """The controller of queues; it looks at Jobs and JobSets only, and at those only that name a queue."""

    name = "kueue"

    def __init__(self, plane: ControlPlane) -> None:
        self._port, self._health = free_ports(2)
        super().__init__(plane)
        self.write_serving_certificate(self.folder / "serving")

    def flags(self) -> list[str]:
        """Return the program's arguments."""
        configuration = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta1",
            "kind": "Configuration",
            "namespace": _NAMESPACE,
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "webhook": {"port": self._port, "host": "127.0.0.1", "certDir": str(self.folder / "serving")},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health}"},
            "metrics": {"bindAddress": "0"},
            "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset"]},
        }
        return [
            f"--config={self.write_configuration(configuration)}",
            f"--kubeconfig={self.plane.kubeconfig}",
            # Its API of waiting workloads needs certificates of its own, and an aggregated API that no test calls.
            "--feature-gates=VisibilityOnDemand=false",
        ]

    def command(self) -> list[str]:
        """Return the program in a mount namespace with the certificate that it requires even with metrics off."""
        self.write_serving_certificate(self.folder / "etc" / "kueue" / "metrics" / "certs")
        view = f'mount -t overlay overlay -o lowerdir={self.folder}/etc:/etc /etc && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", view, "sh", *super().command()]

    def install(self) -> None:
        """Define queues and quotas in the cluster, and the webhooks that check them, Jobs and JobSets."""
        webhooks = self.webhooks(module_file("kueue", "manifests.yaml"), self._port)
        for configuration in webhooks:
            configuration["webhooks"] = [
                webhook
                for webhook in configuration["webhooks"]
                if any(part in webhook["clientConfig"]["url"] for part in _SERVED)
            ]
        namespace: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}}
        self.kubernetes.define(module_file("kueue", "bases"))
        self.kubernetes.apply(namespace, *webhooks)

    def refusal(self) -> str:
        """Return "" when the cluster accepts a quota, else why not."""
        return self.dry_run(flavor("sample"))

    def queue(self, namespace: str, name: str, quota: dict[str, str]) -> None:
        """Make a queue in the namespace with this quota, such as {"cpu": "1"}; the quota is its own."""
        self.kubernetes.apply(flavor(name), _cluster_queue(name, quota), _local_queue(name), namespace=namespace)


def flavor(name: str) -> Object:
    """Return a kind of machine that any node is of."""
    return {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ResourceFlavor", "metadata": {"name": name}}


def _cluster_queue(name: str, quota: dict[str, str]) -> Object:
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quota.items()]
    group = {"coveredResources": list(quota), "flavors": [{"name": name, "resources": resources}]}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {"namespaceSelector": {}, "resourceGroups": [group]},
    }


def _local_queue(name: str) -> Object:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "LocalQueue",
        "metadata": {"name": name},
        "spec": {"clusterQueue": name},
    }
