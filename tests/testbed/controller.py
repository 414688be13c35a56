"""Controllers outside the cluster: what JobSet, Kueue, kwok and the MPI Operator have in common."""

from __future__ import annotations

import abc
import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.testbed.control_plane import ControlPlane
from tests.testbed.daemon import Daemon, wait_until
from tests.testbed.kubernetes import Kubernetes, Object, as_yaml
from tests.testbed.programs import program

_START_LIMIT = 60.0


class Controller(abc.ABC):
    """One controller outside the cluster, with a folder of its own; ready once `refusal` returns ""."""

    name: str

    def __init__(self, plane: ControlPlane) -> None:
        self.kubernetes = Kubernetes(plane.kubeconfig)
        self.folder = plane.folder / self.name
        self.folder.mkdir(exist_ok=True)
        self.plane = plane
        self.daemon = Daemon(self.name, self.command(), plane.folder, outlives_us=plane.outlives_us)

    @abc.abstractmethod
    def flags(self) -> list[str]:
        """Return the program's arguments."""

    @abc.abstractmethod
    def install(self) -> None:
        """Put into the cluster what the controller works on."""

    @abc.abstractmethod
    def refusal(self) -> str:
        """Return "" when the controller does its work, else why not."""

    def command(self) -> list[str]:
        """Return the program with its arguments."""
        return [str(program(self.name)), *self.flags()]

    def start(self) -> None:
        """Install and start it, without waiting; also starts it again after `stop`."""
        self.install()
        self.daemon.start()

    def wait_until_ready(self) -> None:
        """Wait until it does its work."""
        wait_until(self.name, self.refusal, _START_LIMIT, self.daemon)

    def stop(self) -> None:
        """End it; what it put into the cluster stays, so its webhooks refuse from now on."""
        self.daemon.stop()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Have it running during the block."""
        self.start()
        try:
            self.wait_until_ready()
            yield
        finally:
            self.stop()
            self.remove_webhooks()

    def remove_webhooks(self) -> None:
        """Delete its webhooks from the cluster, which would refuse requests in its absence."""
        for kind in ("mutating", "validating"):
            name = f"{kind}webhookconfiguration/{self.name}-{kind}-webhook-configuration"
            self.kubernetes.kubectl("delete", name, "--ignore-not-found")

    def write_configuration(self, content: Object) -> Path:
        """Write the controller's configuration file, and return its path."""
        path = self.folder / "configuration.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    def write_serving_certificate(self, folder: Path) -> None:
        """Put a certificate for 127.0.0.1 into `folder`, under the names that controller-runtime looks for."""
        folder.mkdir(parents=True, exist_ok=True)
        issued = self.plane.authority.issue(f"{self.name}-webhook", hosts=["127.0.0.1"])
        (folder / "tls.crt").write_bytes(issued.certificate.read_bytes())
        (folder / "tls.key").write_bytes(issued.key.read_bytes())

    def webhooks(self, manifests: Path, port: int) -> list[Object]:
        """Return a module's webhook configurations, pointed at a port of this machine instead of a Service."""
        bundle = base64.b64encode(self.plane.authority.certificate.read_bytes()).decode()
        objects: list[Object] = list(yaml.safe_load_all(manifests.read_text()))
        for configuration in objects:
            configuration["metadata"]["name"] = f"{self.name}-{configuration['metadata']['name']}"
            for webhook in configuration["webhooks"]:
                path = webhook["clientConfig"]["service"]["path"]
                webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
        return objects

    def dry_run(self, sample: Object) -> str:
        """Return "" when the cluster would accept the sample, else its complaint."""
        result = self.kubernetes.try_kubectl("create", "--dry-run=server", "-f", "-", stdin=as_yaml([sample]))
        return result.stderr.strip() if result.returncode else ""
