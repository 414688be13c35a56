"""Kueue, run outside the cluster with its webhooks: it admits Jobs and JobSets by quota, as an environment's does."""

from __future__ import annotations

from tests.testbed.controller import WebhookController
from tests.testbed.kubernetes import Object
from tests.testbed.programs import module_file

_NAMESPACE = "kueue-system"
# Kueue serves only the webhooks of the frameworks that it manages; the others would refuse everything.
_SERVED = ("-batch-v1-job", "-jobset-x-k8s-io-", "-kueue-x-k8s-io-")


class Kueue(WebhookController):
    """The controller of queues; it looks at Jobs and JobSets only, and at those only that name a queue."""

    name = "kueue"

    def flags(self) -> list[str]:
        frameworks = {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset"]}
        configuration = self.configuration(
            "config.kueue.x-k8s.io/v1beta1", namespace=_NAMESPACE, integrations=frameworks
        )
        return [
            f"--config={configuration}",
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
        webhooks = self.webhooks()
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
        return self.dry_run(_object("ResourceFlavor", "sample"))

    def queue(self, namespace: str, name: str, quota: dict[str, str]) -> None:
        """Make a queue in the namespace with this quota, such as {"cpu": "1"}; the quota is its own."""
        resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quota.items()]
        group = {"coveredResources": list(quota), "flavors": [{"name": name, "resources": resources}]}
        cluster_queue = _object("ClusterQueue", name, spec={"namespaceSelector": {}, "resourceGroups": [group]})
        local_queue = _object("LocalQueue", name, spec={"clusterQueue": name})
        # A flavor without labels is a kind of machine that any node is of.
        self.kubernetes.apply(_object("ResourceFlavor", name), cluster_queue, local_queue, namespace=namespace)


def _object(kind: str, name: str, **more: object) -> Object:
    return {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": kind, "metadata": {"name": name}, **more}
