"""CoreDNS on the bridge's address: names of services and pods, and a clear no for every other name."""

from __future__ import annotations

from tests.testbed.control_plane import ControlPlane
from tests.testbed.daemon import Daemon
from tests.testbed.node import DOMAIN
from tests.testbed.programs import program
from tests.testbed.slot import Slot
from tests.testbed.web import free_ports, http_health

_COREFILE = """\
{domain}:53 in-addr.arpa:53 ip6.arpa:53 {{
  bind {address}
  errors
  ready 127.0.0.1:{ready}
  kubernetes {domain} in-addr.arpa ip6.arpa {{
    kubeconfig {kubeconfig} testbed
    pods insecure
  }}
}}

.:53 {{
  bind {address}
  template ANY ANY . {{
    rcode NXDOMAIN
  }}
}}
"""


class Dns:
    """The cluster's name server."""

    def __init__(self, slot: Slot, plane: ControlPlane) -> None:
        self._ready = free_ports(1)[0]
        corefile = slot.folder / "Corefile"
        corefile.write_text(
            _COREFILE.format(address=slot.gateway, ready=self._ready, domain=DOMAIN, kubeconfig=plane.kubeconfig)
        )
        arguments = [program("coredns"), "-conf", corefile]
        self.daemon = Daemon("coredns", arguments, slot.folder, outlives_us=plane.outlives_us)

    def start(self) -> None:
        """Start it, without waiting."""
        self.daemon.start()

    def wait_until_ready(self, limit: float = 30.0) -> None:
        """Wait until it knows the cluster's services."""
        self.daemon.wait_until_ready(lambda: http_health(f"http://127.0.0.1:{self._ready}/ready"), limit)

    def stop(self) -> None:
        """End it."""
        self.daemon.stop()
