"""The MPI Operator, run outside the cluster; our own runs are compared with it."""

from __future__ import annotations

from tests.testbed.controller import Controller
from tests.testbed.kubernetes import Object
from tests.testbed.programs import module_file

_NAMESPACE = "mpi-operator"


class MpiOperator(Controller):
    """The controller of MPIJobs."""

    name = "mpi-operator"

    def flags(self) -> list[str]:
        return [f"--kubeConfig={self.plane.kubeconfig}", f"--lock-namespace={_NAMESPACE}", "--logtostderr"]

    def install(self) -> None:
        """Define MPIJobs in the cluster, and the namespace that holds the operator's lock."""
        namespace: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}}
        self.kubernetes.apply(namespace)
        self.kubernetes.define(module_file("mpi-operator", "kubeflow.org_mpijobs.yaml"))

    def refusal(self) -> str:
        """Return "" once it has its leader lock, which it takes just before it starts to work, else the reason."""
        result = self.kubernetes.try_kubectl(
            "get", "lease", "mpi-operator", "-n", _NAMESPACE, "-o", "jsonpath={.spec.holderIdentity}"
        )
        return "" if result.stdout.strip() else result.stderr.strip() or "nobody holds its lock yet"
