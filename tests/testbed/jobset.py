"""The JobSet controller, run outside the cluster with its webhooks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.testbed.controller import WebhookController
from tests.testbed.objects import jobset, pod_spec
from tests.testbed.programs import module_file
from tests.tools import IS_OLDEST

_JOBSET_PODS = {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]}


class JobSet(WebhookController):
    """The controller of JobSets; stopping it makes the cluster refuse new ones, as a broken webhook does."""

    name = "jobset"

    def flags(self) -> list[str]:
        return [f"--config={self._configure(restarts_jobs=True)}", f"--kubeconfig={self.plane.kubeconfig}"]

    def _configure(self, restarts_jobs: bool) -> Path:
        """Write its configuration; an environment has the feature gate, which JobSet has since 0.12."""
        gates = {} if IS_OLDEST else {"featureGates": {"RestartJob": restarts_jobs}}
        return self.configuration("config.jobset.x-k8s.io/v1alpha1", **gates)

    @contextlib.contextmanager
    def without_restarting_jobs(self) -> Iterator[None]:
        """Have it run without the feature gate RestartJob during the block, as it does by default."""
        self._run_with(restarts_jobs=False)
        try:
            yield
        finally:
            self._run_with(restarts_jobs=True)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Have it stopped during the block."""
        self.stop()
        try:
            yield
        finally:
            self.daemon.start()
            self.wait_until_ready()

    def _run_with(self, restarts_jobs: bool) -> None:
        self.stop()
        self._configure(restarts_jobs)
        self.start()
        self.wait_until_ready()

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
