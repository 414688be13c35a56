"""CoreDNS on the bridge's address: names of services and pods, and a clear no for every other name.

It keeps answers, also that there is none, for the 5 s that names of pods are valid for, as in clusters of EKS and kops,
whose Corefile has ``cache 30`` and no ``ttl`` (coredns.io/plugins/kubernetes, coredns.io/plugins/cache).
"""

from __future__ import annotations

from tests.testbed.control_plane import ControlPlane
from tests.testbed.controller import Controller
from tests.testbed.node import DOMAIN
from tests.testbed.slot import Slot
from tests.testbed.web import free_port, http_health

_COREFILE = """\
{domain}:53 in-addr.arpa:53 ip6.arpa:53 {{
  bind {address}
  errors
  ready 127.0.0.1:{ready}
  kubernetes {domain} in-addr.arpa ip6.arpa {{
    kubeconfig {kubeconfig} testbed
    pods insecure
  }}
  cache 30
}}

.:53 {{
  bind {address}
  template ANY ANY . {{
    rcode NXDOMAIN
  }}
}}
"""


class Dns(Controller):
    """The cluster's name server; ready once it knows the cluster's services."""

    name = "coredns"

    def __init__(self, slot: Slot, plane: ControlPlane) -> None:
        self._address, self._ready = slot.gateway, free_port()
        super().__init__(plane)

    def flags(self) -> list[str]:
        corefile = self.folder / "Corefile"
        corefile.write_text(
            _COREFILE.format(address=self._address, ready=self._ready, domain=DOMAIN, kubeconfig=self.plane.kubeconfig)
        )
        return ["-conf", str(corefile)]

    def refusal(self) -> str:
        return http_health(f"http://127.0.0.1:{self._ready}/ready")
