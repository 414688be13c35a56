"""etcd, the API server, the controller manager and the scheduler, on loopback ports that were free."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.testbed.certificates import Authority, Credential, service_account_key, write_kubeconfig
from tests.testbed.daemon import Daemon
from tests.testbed.programs import program
from tests.testbed.web import free_ports, https_health

ADMIN_GROUP = "system:masters"
SERVICE_RANGE = "10.96.0.0/16"
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
            self.controller_manager.start()
            self.scheduler.start()
            self._wait_for_controllers()
            self.scheduler.wait_until_ready(lambda: self._health("scheduler", "/healthz"), _START_LIMIT)

    @contextlib.contextmanager
    def patient_with_nodes(self) -> Iterator[None]:
        """Inside the block nodes may be silent for an hour, as the thousand nodes of kwok are."""
        usual = self.controller_manager.arguments
        self._restart_controllers([*usual, "--node-monitor-grace-period=1h"])
        try:
            yield
        finally:
            self._restart_controllers(usual)

    def _restart_controllers(self, arguments: Sequence[object]) -> None:
        self.controller_manager.stop()
        self.controller_manager.arguments = arguments
        self.controller_manager.start()
        self._wait_for_controllers()

    def _wait_for_controllers(self) -> None:
        self.controller_manager.wait_until_ready(lambda: self._health("controllers", "/healthz"), _START_LIMIT)

    def stop(self) -> None:
        """End all programs, the store last."""
        for daemon in (self.scheduler, self.controller_manager):
            daemon.stop()
        # Open watches delay a graceful end by a minute, and their answers are not needed any more.
        self.api_server.kill()
        self.etcd.stop()

    def wait_for_api_server(self) -> None:
        """Wait until the API server answers that it is ready."""
        self.api_server.wait_until_ready(lambda: self._health("api", "/readyz"), _START_LIMIT)

    def kubeconfig_of(self, user: str, credential: Credential | None = None, groups: Sequence[str] = ()) -> Path:
        """Return a kubeconfig for a user, who has only the rights of the groups or of role bindings."""
        issued = credential or self.authority.issue(user, groups)
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        return write_kubeconfig(path, self.server, self.authority.certificate, issued)

    def _daemon(self, name: str, flags: list[str], inherited_files: Sequence[int] = ()) -> Daemon:
        arguments = [program(name), *flags]
        return Daemon(name, arguments, self.folder, outlives_us=self.outlives_us, inherited_files=inherited_files)

    def _health(self, port: str, path: str) -> str:
        return https_health(f"https://127.0.0.1:{self._ports[port]}{path}", self._admin)

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
        serving = self.authority.issue("kube-apiserver", hosts=["127.0.0.1", "localhost"])
        to_kubelet = self.authority.issue("kube-apiserver-kubelet-client", [ADMIN_GROUP])
        accounts = service_account_key(self.folder / "pki" / "service-accounts.key")
        return [
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={self._ports['api']}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
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
