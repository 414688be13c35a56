"""The JobSet controller, run outside the cluster with its webhooks."""

from __future__ import annotations

from tests.testbed.controller import WebhookController
from tests.testbed.objects import jobset, pod_spec
from tests.testbed.programs import module_file

_JOBSET_PODS = {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]}


class JobSet(WebhookController):
    """The controller of JobSets; stopping it makes the cluster refuse new ones, as a broken webhook does."""

    name = "jobset"

    def flags(self) -> list[str]:
        configuration = self.configuration("config.jobset.x-k8s.io/v1alpha1")
        return [f"--config={configuration}", f"--kubeconfig={self.plane.kubeconfig}"]

    def install(self) -> None:
        """Define JobSets in the cluster, and the webhooks that check them."""
        webhooks = self.webhooks()
        for webhook in (webhook for configuration in webhooks for webhook in configuration["webhooks"]):
            if webhook["clientConfig"]["url"].endswith("-v1-pod"):
                # Else no pod of any kind could start while the controller is down.
                webhook["objectSelector"] = _JOBSET_PODS
        self.kubernetes.define(module_file("jobset", "bases"))
        self.kubernetes.apply(*webhooks)

    def refusal(self) -> str:
        """Return "" when the cluster accepts a JobSet, else why not."""
        return self.dry_run(jobset("sample", 1, pod_spec("sample", ["true"])))
