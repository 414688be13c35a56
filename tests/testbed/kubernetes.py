"""A Kubernetes cluster that tests use, by its kubeconfig."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from lightkube import Client, KubeConfig

from tests.testbed.daemon import wait_until
from tests.testbed.errors import TestbedError
from tests.testbed.programs import program

Object = dict[str, Any]
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


class Kubernetes:
    """A cluster by its kubeconfig, with kubectl and a lightkube client on it."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    @property
    def environment(self) -> dict[str, str]:
        """Return this process's environment with KUBECONFIG and the pinned kubectl first on PATH."""
        path = f"{program('kubectl').parent}:{os.environ.get('PATH', '')}"
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": path}

    def client(self, namespace: str = "default") -> Client:
        """Return a lightkube client of the cluster's administrator."""
        config = KubeConfig.from_file(self.kubeconfig).get()
        if config is None:
            raise TestbedError(f"{self.kubeconfig} has no current context")
        return Client(config, namespace=namespace, trust_env=False)

    def kubectl(self, *arguments: str, stdin: str | None = None, limit: float = 60.0) -> str:
        """Return what kubectl printed; TestbedError has its error output."""
        result = self.try_kubectl(*arguments, stdin=stdin, limit=limit)
        if result.returncode:
            raise TestbedError(
                f"kubectl {' '.join(arguments)} failed with {result.returncode}:\n{result.stderr.strip()}"
            )
        return result.stdout

    def try_kubectl(
        self, *arguments: str, stdin: str | None = None, limit: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Return kubectl's result, whether or not it failed."""
        command = [str(program("kubectl")), "--kubeconfig", str(self.kubeconfig), *arguments]
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=limit, check=False, env=_without_proxies()
        )

    def get(self, *arguments: str) -> Object:
        """Return the output of `kubectl get ... -o json`."""
        return dict(json.loads(self.kubectl("get", *arguments, "-o", "json")))

    def pods(self, namespace: str) -> list[Object]:
        """Return all pods of a namespace."""
        return list(self.get("pods", "-n", namespace)["items"])

    def phase(self, namespace: str, pod: str) -> str:
        """Return a pod's phase, such as Running."""
        return self.kubectl("get", "pod", pod, "-n", namespace, "-o", "jsonpath={.status.phase}")

    def apply(self, *objects: Object | Path, namespace: str = "default") -> None:
        """Apply objects, or files and folders of them, on the server's side, so that their size does not matter."""
        files = [item for item in objects if isinstance(item, Path)]
        plain = [item for item in objects if not isinstance(item, Path)]
        command = ("apply", "--server-side", "--force-conflicts", "-n", namespace)
        if files:
            self.kubectl(*command, *(f"--filename={path}" for path in files))
        if plain:
            self.kubectl(*command, "-f", "-", stdin=as_yaml(plain))

    def define(self, resources: Path) -> None:
        """Apply custom resource definitions, a file or a folder of them, and wait until the server serves them."""
        self.apply(resources)
        # Right after it was applied a definition has no conditions at all, which kubectl takes for an error.
        command = ("wait", "--for=condition=Established", f"--filename={resources}", "--timeout=30s")
        wait_until(f"{resources.name} in the cluster", lambda: self.try_kubectl(*command).stderr.strip(), limit=30)

    def evict(self, pod: str, namespace: str) -> None:
        """Evict a pod as a drain does: with its grace period, and marked as a disruption."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
        self.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))

    @contextlib.contextmanager
    def namespace(self, prefix: str = "test", labels: dict[str, str] | None = None) -> Iterator[str]:
        """Return the name of a fresh namespace that is deleted, with all in it, at the end of the block."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}}
        self.kubectl("create", "-f", "-", stdin=as_yaml([namespace]))
        try:
            yield name
        finally:
            self.try_kubectl("delete", "namespace", name, "--wait=false")


def as_yaml(objects: Sequence[Object]) -> str:
    """Return the objects as one stream of YAML documents."""
    return yaml.safe_dump_all(objects, sort_keys=False)


def _without_proxies() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
