"""etcd, the API server, the controller manager and the scheduler, on loopback ports that were free."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.testbed.certificates import Authority, Credential, write_kubeconfig
from tests.testbed.daemon import Daemon
from tests.testbed.kubernetes import Kubernetes
from tests.testbed.programs import program
from tests.testbed.web import free_ports, http_health

ADMIN_GROUP = "system:masters"
SERVICE = "10.96.0.1"  # the API server's service: the first address of the range below
_START_LIMIT = 60.0
# By default 20 and 50 requests a second, for which a Job of a thousand pods would wait.
_PACE = ("--kube-api-qps=200", "--kube-api-burst=400")


class ControlPlane:
    """The part of a cluster that needs neither root nor containers; `kubeconfig` is its administrator's.

    With `alone` it is only the API server and its store: nothing is scheduled, and pods need no service account.
    """

    def __init__(
        self, folder: Path, *, alone: bool = False, outlives_us: bool = False, inherited_files: Sequence[int] = ()
    ) -> None:
        self.folder = folder
        self.alone = alone
        self.outlives_us = outlives_us
        self.authority = Authority(folder / "pki")
        self._ports = dict(zip(("etcd", "peer", "api", "controllers", "scheduler"), free_ports(5), strict=True))
        self.server = f"https://127.0.0.1:{self._ports['api']}"
        self._admin = self.authority.issue("admin", [ADMIN_GROUP])
        self.kubeconfig = self.kubeconfig_of("admin", self._admin)
        self.etcd = self._daemon("etcd", self._etcd_flags(), inherited_files)
        self.api_server = self._daemon("kube-apiserver", self._api_server_flags())
        self.controller_manager = self._daemon("kube-controller-manager", self._controller_manager_flags())
        self.scheduler = self._daemon("kube-scheduler", self._scheduler_flags())

    def start(self) -> None:
        """Start the programs and wait for them."""
        self.etcd.start()
        self.api_server.start()
        self.wait_for_api_server()
        if not self.alone:
            self._start_controllers()

    def _start_controllers(self) -> None:
        self.controller_manager.start()
        self.scheduler.start()
        self._wait_for("controllers", self.controller_manager)
        self._wait_for("scheduler", self.scheduler)

    @contextlib.contextmanager
    def patient_with_nodes(self) -> Iterator[None]:
        """Inside the block nodes may be silent for an hour, as the thousand nodes of kwok are."""
        usual = self.controller_manager.arguments
        self._restart_controllers([*usual, "--node-monitor-grace-period=1h"])
        try:
            yield
        finally:
            self._restart_controllers(usual)

    @contextlib.contextmanager
    def without_api_server(self) -> Iterator[None]:
        """Inside the block there is no control plane but its store; it is back and ready at the end.

        It was killed, as where its machine is lost. Controllers that stayed would look again later after each outage,
        up to a minute where several follow within two minutes (client-go's reflector: 30 s with its jitter, reset after
        120 s), and meet a server that refuses them until it has its roles, which a load balancer keeps from them.
        """
        self.api_server.kill()
        self.controller_manager.kill()
        self.scheduler.kill()
        try:
            yield
        finally:
            self.api_server.start()
            self.wait_for_api_server()
            self._start_controllers()

    def _restart_controllers(self, arguments: Sequence[object]) -> None:
        self.controller_manager.stop()
        self.controller_manager.arguments = arguments
        self.controller_manager.start()
        self._wait_for("controllers", self.controller_manager)

    def stop(self) -> None:
        """End all programs, the store last."""
        self.scheduler.stop()
        self.controller_manager.stop()
        # Open watches delay a graceful end by a minute, and their answers are not needed any more.
        self.api_server.kill()
        self.etcd.stop()

    def wait_for_api_server(self) -> None:
        """Wait until the API server answers that it is ready."""
        self._wait_for("api", self.api_server, "/readyz")

    def _wait_for(self, port: str, daemon: Daemon, path: str = "/healthz") -> None:
        address = f"https://127.0.0.1:{self._ports[port]}{path}"
        daemon.wait_until_ready(lambda: http_health(address, self._admin), _START_LIMIT)

    def kubeconfig_of(self, user: str, credential: Credential | None = None, groups: Sequence[str] = ()) -> Path:
        """Return a kubeconfig for a user, who has only the rights of the groups or of role bindings."""
        issued = credential or self.authority.issue(user, groups)
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        return write_kubeconfig(path, self.server, self.authority.certificate, issued)

    def _daemon(self, name: str, flags: list[str], inherited_files: Sequence[int] = ()) -> Daemon:
        arguments = [program(name), *flags]
        return Daemon(name, arguments, self.folder, outlives_us=self.outlives_us, inherited_files=inherited_files)

    def _etcd_flags(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{self._ports[port]}" for port in ("etcd", "peer"))
        return [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            # The data lives as long as the test session.
            "--unsafe-no-fsync",
        ]

    def _api_server_flags(self) -> list[str]:
        serving = self.authority.issue("kube-apiserver", hosts=["127.0.0.1", "localhost", SERVICE])
        to_kubelet = self.authority.issue("kube-apiserver-kubelet-client", [ADMIN_GROUP])
        accounts = self.authority.issue("service-accounts").key
        return [
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={self._ports['api']}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            # Nobody would make the accounts that it looks for.
            *(["--disable-admission-plugins=ServiceAccount"] if self.alone else []),
            "--allow-privileged=true",
            f"--client-ca-file={self.authority.certificate}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--kubelet-client-certificate={to_kubelet.certificate}",
            f"--kubelet-client-key={to_kubelet.key}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={accounts}",
            f"--service-account-signing-key-file={accounts}",
        ]

    def _controller_manager_flags(self) -> list[str]:
        return [
            *self._component_flags("controllers", "system:kube-controller-manager"),
            f"--root-ca-file={self.authority.certificate}",
            f"--service-account-private-key-file={self.folder / 'pki' / 'service-accounts.key'}",
            "--use-service-account-credentials=true",
            # The kubelets of the testbed renew their lease every 5 s, so a node without one for 20 s is dead.
            "--node-monitor-grace-period=20s",
            *_PACE,
            "--pvclaimbinder-sync-period=1s",  # by default a claim that is met in passing waits 15 s
        ]

    def _scheduler_flags(self) -> list[str]:
        return [*self._component_flags("scheduler", "system:kube-scheduler"), *_PACE]

    def _component_flags(self, port: str, user: str) -> list[str]:
        kubeconfig = self.kubeconfig_of(user)
        return [
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._ports[port]}",
            f"--cert-dir={self.folder / 'pki' / port}",
            "--leader-elect=false",
        ]


@contextlib.contextmanager
def running_api_server() -> Iterator[Kubernetes]:
    """Return an API server alone, which checks, defaults and stores objects: no root, no containers, nothing runs."""
    folder = Path(tempfile.mkdtemp(prefix="spotmpi-api-"))
    plane = ControlPlane(folder, alone=True)
    try:
        plane.start()
        yield Kubernetes(plane.kubeconfig)
    finally:
        plane.stop()
        shutil.rmtree(folder, ignore_errors=True)
