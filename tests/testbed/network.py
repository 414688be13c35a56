"""The bridge that joins the pods of a test cluster, and the CNI configuration that puts them on it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tests.testbed.control_plane import SERVICE, ControlPlane
from tests.testbed.errors import TestbedError, run_command
from tests.testbed.proxies import running_proxies
from tests.testbed.slot import Slot


def create_bridge(slot: Slot, nodes: int) -> None:
    """Make the bridge with the machine's own addresses on it: the gateway and one per node."""
    routes = _ip("route", "show", "to", "match", slot.gateway, "table", "all")
    if any(line and not line.startswith("default") for line in routes.splitlines()):
        raise TestbedError(f"{slot.network}.0/24 is in use on this machine: {routes.strip()}")
    # Without an address of its own a bridge has the lowest of its ports': where the pod that lends it ends, the others
    # lose the gateway, and with it the name server, for 20 to 30 s.
    _ip("link", "add", slot.bridge, "address", f"02:00:00:00:00:{slot.index:02x}", "type", "bridge")
    for address in (slot.gateway, *(slot.node_address(node) for node in range(nodes))):
        _ip("address", "add", f"{address}/24", "dev", slot.bridge)
    _ip("link", "set", slot.bridge, "up")


@contextlib.contextmanager
def api_service(slot: Slot, plane: ControlPlane) -> Iterator[None]:
    """Inside the block pods reach the API server at the address of its service, to which nothing else leads here.

    On port 443 alone, as on EKS. One cluster at a time can have it.
    """
    api_server = urlsplit(plane.server)
    _ip("address", "add", f"{SERVICE}/32", "dev", slot.bridge)
    try:
        with running_proxies([(str(api_server.hostname), int(api_server.port or 0))], host=SERVICE, port=443):
            yield
    finally:
        _ip("address", "del", f"{SERVICE}/32", "dev", slot.bridge)


def write_cni_configuration(slot: Slot, node: int, folder: Path) -> None:
    """Write into `folder` how a node's pods get their interface; all nodes share the bridge, each has its own range."""
    first, last = slot.pod_range(node)
    addresses = {"subnet": f"{slot.network}.0/24", "rangeStart": first, "rangeEnd": last, "gateway": slot.gateway}
    bridge = {
        "type": "bridge",
        "bridge": slot.bridge,
        "ipam": {
            "type": "host-local",
            "ranges": [[addresses]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(folder / "leases"),
        },
    }
    # The network's name is how leftovers.py finds what CNI keeps in its fixed folder.
    configuration = {"cniVersion": "0.4.0", "name": f"{slot.bridge}-node{node}", "plugins": [bridge]}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "10-testbed.conflist").write_text(json.dumps(configuration, indent=2))


def _ip(*arguments: str) -> str:
    return run_command(["ip", *arguments])
