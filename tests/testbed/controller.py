"""Programs outside the cluster that work on it: what CoreDNS, JobSet, Kueue and the others have in common."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.testbed.control_plane import ControlPlane
from tests.testbed.daemon import Daemon
from tests.testbed.kubernetes import Kubernetes, Object, as_yaml
from tests.testbed.programs import module_file, program
from tests.testbed.web import free_ports

_START_LIMIT = 60.0


class Controller:
    """One program outside the cluster, with a folder of its own; ready once `refusal` returns ""."""

    name: str

    def __init__(self, plane: ControlPlane) -> None:
        self.kubernetes = Kubernetes(plane.kubeconfig)
        self.folder = plane.folder / self.name
        self.folder.mkdir(exist_ok=True)
        self.plane = plane
        self.daemon = Daemon(self.name, self.command(), plane.folder, outlives_us=plane.outlives_us)

    def flags(self) -> list[str]:
        """Return the program's arguments."""
        raise NotImplementedError

    def install(self) -> None:
        """Put into the cluster what the program works on."""

    def refusal(self) -> str:
        """Return "" when the program does its work, else why not."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """Return the program with its arguments."""
        return [str(program(self.name)), *self.flags()]

    def start(self) -> None:
        """Install and start it, without waiting; also starts it again after `stop`."""
        self.install()
        self.daemon.start()

    def wait_until_ready(self) -> None:
        """Wait until it does its work."""
        self.daemon.wait_until_ready(self.refusal, _START_LIMIT)

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

    def write_configuration(self, content: Object) -> Path:
        """Write the program's configuration file, and return its path."""
        path = self.folder / "configuration.yaml"
        path.write_text(yaml.safe_dump(content))
        return path


class WebhookController(Controller):
    """A controller with webhooks on a port of this machine, built on controller-runtime."""

    def __init__(self, plane: ControlPlane) -> None:
        self._port, self._health = free_ports(2)
        super().__init__(plane)
        self.write_serving_certificate(self.folder / "serving")

    def configuration(self, version: str, **more: object) -> Path:
        """Write its configuration file, of that API version and with `more` keys, and return its path."""
        common = {
            "apiVersion": version,
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "webhook": {"port": self._port, "host": "127.0.0.1", "certDir": str(self.folder / "serving")},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health}"},
            "metrics": {"bindAddress": "0"},
        }
        return self.write_configuration({**common, **more})

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Have it running during the block, and its webhooks, which would refuse requests in its absence."""
        try:
            with super().running():
                yield
        finally:
            for kind in ("mutating", "validating"):
                name = f"{kind}webhookconfiguration/{self.name}-{kind}-webhook-configuration"
                self.kubernetes.kubectl("delete", name, "--ignore-not-found")

    def write_serving_certificate(self, folder: Path) -> None:
        """Put a certificate for 127.0.0.1 into `folder`, under the names that controller-runtime looks for."""
        folder.mkdir(parents=True, exist_ok=True)
        issued = self.plane.authority.issue(f"{self.name}-webhook", hosts=["127.0.0.1"])
        (folder / "tls.crt").write_bytes(issued.certificate.read_bytes())
        (folder / "tls.key").write_bytes(issued.key.read_bytes())

    def webhooks(self) -> list[Object]:
        """Return its module's webhook configurations, pointed at its port instead of a Service."""
        bundle = base64.b64encode(self.plane.authority.certificate.read_bytes()).decode()
        objects: list[Object] = list(yaml.safe_load_all(module_file(self.name, "manifests.yaml").read_text()))
        for configuration in objects:
            configuration["metadata"]["name"] = f"{self.name}-{configuration['metadata']['name']}"
            for webhook in configuration["webhooks"]:
                path = webhook["clientConfig"]["service"]["path"]
                webhook["clientConfig"] = {"url": f"https://127.0.0.1:{self._port}{path}", "caBundle": bundle}
        return objects

    def dry_run(self, sample: Object) -> str:
        """Return "" when the cluster would accept the sample, else its complaint."""
        result = self.kubernetes.try_kubectl("create", "--dry-run=server", "-f", "-", stdin=as_yaml([sample]))
        return result.stderr.strip() if result.returncode else ""
