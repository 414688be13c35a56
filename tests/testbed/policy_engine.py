"""Enforces the NetworkPolicies of a test cluster: a program that turns them into iptables rules of this machine.

No policy engine is to be had as a Go module here (kube-router and kube-network-policies are not served, and the second
needs the kernel's nft_queue), so this stands for VPC CNI's. As in its standard mode, a pod's traffic is open until its
address is known here.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightkube import Client, KubeConfig
from lightkube.config.models import Cluster, Context, User
from lightkube.core.decoders import WatchEvent
from lightkube.resources.core_v1 import Namespace, Pod
from lightkube.resources.networking_v1 import NetworkPolicy

from spotmpi.core.structs import inspected
from tests.testbed.control_plane import ControlPlane
from tests.testbed.controller import Controller
from tests.testbed.errors import TestbedError
from tests.testbed.network_policies import NAME_LABEL, Endpoint, endpoint, rules
from tests.testbed.slot import Slot
from tests.tools import REPOSITORY

# Where packets pass between pods, and from a pod to an address of this machine.
_JUMPS = (("FORWARD", "-s", "{network}"), ("FORWARD", "-d", "{network}"), ("INPUT", "-i", "{bridge}"))
_BRIDGED = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
_SETTLE = 0.02  # seconds in which changes that come together are taken together


class PolicyEngine(Controller):
    """The program that enforces policies; ready once its rules are applied."""

    name = "policy-engine"

    def __init__(self, slot: Slot, plane: ControlPlane) -> None:
        self._slot = slot
        super().__init__(plane)

    def command(self) -> list[str]:
        environment = [f"PYTHONPATH={REPOSITORY}", f"XDG_CACHE_HOME={self._slot.folder.parents[2]}"]
        arguments = [str(self.plane.kubeconfig), str(self._slot.index)]
        return ["env", *environment, sys.executable, "-m", __name__, *arguments]

    def install(self) -> None:
        """Have bridged packets filtered."""
        if not _BRIDGED.exists():
            subprocess.run(["modprobe", "br_netfilter"], check=False, capture_output=True)
        if not _BRIDGED.exists():
            raise TestbedError("the kernel does not filter bridged packets: run `modprobe br_netfilter`")
        _BRIDGED.write_text("1\n")

    def refusal(self) -> str:
        return "" if has_rules(self._slot) else "its rules are not applied yet"

    def stop(self) -> None:
        """Stop it and remove its rules."""
        super().stop()
        remove_rules(self._slot)


def _chain(slot: Slot) -> str:
    return slot.bridge.upper()


def _jumps(slot: Slot) -> list[list[str]]:
    places = {"network": f"{slot.network}.0/24", "bridge": slot.bridge}
    return [[each.format(**places) for each in jump] for jump in _JUMPS]


def remove_rules(slot: Slot) -> None:
    """Remove all rules of a slot, if there are any."""
    chain = _chain(slot)
    for hook, *match in _jumps(slot):
        while _iptables("-D", hook, *match, "-j", chain):
            pass
    for action in ("-F", "-X"):
        for each in (chain, f"{chain}-IN"):
            _iptables(action, each)


def has_rules(slot: Slot) -> bool:
    """Whether rules of a slot are on this machine."""
    return _iptables("-S", _chain(slot))


def _iptables(*arguments: str) -> bool:
    try:
        return subprocess.run(["iptables", "-w", *arguments], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


class _Watched:
    """A watch of all objects of some kinds; `changed` is set whenever one changes."""

    def __init__(self, kubeconfig: Path) -> None:
        self.changed = threading.Event()
        self._kubeconfig = kubeconfig
        self._objects: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
        self._kinds = (NetworkPolicy, Pod, Namespace)

    def start(self) -> None:
        """Watch from now on."""
        for model in (*self._kinds, WatchEvent, Cluster, Context, User):
            inspected(model)
        for kind in self._kinds:
            threading.Thread(target=self._watch, args=(kind,), daemon=True).start()

    def whole(self) -> bool:
        """Whether every kind has been listed."""
        return len(self._objects) == len(self._kinds)

    def of(self, kind: Any) -> list[dict[str, Any]]:
        """The objects of a kind as plain values."""
        return list(self._objects[kind.__name__].values())

    def _watch(self, kind: Any) -> None:
        config = KubeConfig.from_file(self._kubeconfig).get()
        assert config is not None
        while True:
            try:
                self._follow(Client(config, trust_env=False), kind)
            except Exception as error:
                print(f"{kind.__name__}: {error!r}; listing anew", file=sys.stderr, flush=True)
                time.sleep(0.2)

    def _follow(self, client: Any, kind: Any) -> None:
        everywhere = {} if kind is Namespace else {"namespace": "*"}
        listed = client.list(kind, **everywhere)
        self._objects[kind.__name__] = {_key(each): each.to_dict() for each in listed}
        self.changed.set()
        for change, each in client.watch(kind, resource_version=listed.resourceVersion, **everywhere):
            if change == "DELETED":
                self._objects[kind.__name__].pop(_key(each), None)
            else:
                self._objects[kind.__name__][_key(each)] = each.to_dict()
            self.changed.set()


def _key(each: Any) -> tuple[str, str]:
    return each.metadata.namespace or "", each.metadata.name


def enforce(slot: Slot, kubeconfig: Path) -> None:
    """Keep the rules of this machine as the cluster's policies want them, for ever."""
    watched, applied = _Watched(kubeconfig), ""
    watched.start()
    while True:
        watched.changed.wait()
        time.sleep(_SETTLE)
        watched.changed.clear()
        if not watched.whole():
            continue
        rules_text = "\n".join(["*filter", *_rule_lines(slot, watched), "COMMIT", ""])
        if rules_text != applied:
            first, applied = not applied, rules_text
            subprocess.run(["iptables-restore", "--noflush", "-w"], input=rules_text, text=True, check=True)
            if first:
                for hook, *match in _jumps(slot):
                    subprocess.run(["iptables", "-w", "-I", hook, *match, "-j", _chain(slot)], check=True)


def _rule_lines(slot: Slot, watched: _Watched) -> list[str]:
    namespaces = {each["metadata"]["name"]: each["metadata"].get("labels") or {} for each in watched.of(Namespace)}
    pods = [pod_endpoint for each in watched.of(Pod) if (pod_endpoint := endpoint(each))]
    # The name server is a program on the bridge here, and a pod of this name in clusters.
    dns = Endpoint("kube-system", {"k8s-app": "kube-dns"}, slot.gateway)
    namespaces.setdefault(dns.namespace, {NAME_LABEL: dns.namespace})
    ours = [each for each in pods if each.address.startswith(f"{slot.network}.")]
    return rules(_chain(slot), watched.of(NetworkPolicy), [*ours, dns], namespaces)


def main(arguments: Sequence[str]) -> None:
    """Enforce the policies of the cluster with that kubeconfig and slot number."""
    enforce(Slot(int(arguments[1])), Path(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
