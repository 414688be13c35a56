"""One node: a real kubelet on a container runtime of its own; several fit on one machine, side by side."""

from __future__ import annotations

import contextlib
from pathlib import Path

import yaml

from tests.testbed import cgroups
from tests.testbed.containerd import Containerd
from tests.testbed.control_plane import ControlPlane
from tests.testbed.crio import Crio
from tests.testbed.daemon import Daemon, wait_until
from tests.testbed.errors import TestbedError
from tests.testbed.kubernetes import Kubernetes
from tests.testbed.network import write_cni_configuration
from tests.testbed.programs import program
from tests.testbed.slot import Slot
from tests.testbed.store import PAUSE_IMAGE
from tests.testbed.web import free_ports
from tests.tools import IS_NEWEST

DOMAIN = "cluster.local"
_START_LIMIT = 60.0
_MOST_RESTARTS = 3


class Node:
    """A node of the test cluster, and the handles by which tests break it.

    Its runtime is containerd, or with `crio_pause` CRI-O, which pulls that image and those of pods from its registry.
    """

    def __init__(self, slot: Slot, index: int, plane: ControlPlane, crio_pause: str | None = None) -> None:
        self.name = f"node-{index}"
        self.address = slot.node_address(index)
        self._slot, self._index, self._plane = slot, index, plane
        self._kubernetes = Kubernetes(plane.kubeconfig)
        self._cgroup = f"{slot.cgroup}/{self.name}"
        self._gpus = 0
        self.folder = slot.folder / self.name
        self.runtime: Containerd | Crio
        if crio_pause:
            self.runtime = Crio(self.folder, f"crio-{index}", crio_pause, outlives_us=plane.outlives_us)
        else:
            name, outlives = f"containerd-{index}", plane.outlives_us
            self.runtime = Containerd(self.folder, name, PAUSE_IMAGE, outlives_us=outlives, is_newer=IS_NEWEST)
        self.kubelet = Daemon(f"kubelet-{index}", self._kubelet_command(), slot.folder, outlives_us=plane.outlives_us)

    def start(self) -> None:
        """Start the runtime and the kubelet, without waiting for the node to be ready."""
        cgroups.create(self._cgroup)
        write_cni_configuration(self._slot, self._index, self.folder / "cni")
        self.runtime.start()
        self.kubelet.start()

    def wait_until_ready(self, limit: float = _START_LIMIT) -> None:
        """Wait until the cluster counts this node as ready.

        A kubelet that ends meanwhile is started again, as systemd does by kubeadm's unit (`Restart=always`): of several
        that start at once, one may find another's socket in the folder of device plugins, which all share.
        """
        restarts = 0

        def readiness() -> str:
            nonlocal restarts
            if self.kubelet.pid is None:
                if restarts == _MOST_RESTARTS:
                    ends = f"{self.name} is not ready: its kubelet ended {restarts + 1} times"
                    raise TestbedError(f"{ends}\n{self.kubelet.explain()}")
                restarts += 1
                self.kubelet.start()
            return self._readiness()

        wait_until(self.name, readiness, limit, self.runtime.daemon)

    def stop(self) -> None:
        """End the kubelet, every container and the runtime; the Node object stays, as it does when a machine dies."""
        self.kubelet.stop()
        self.kill_containers()
        self.runtime.stop()

    def stop_kubelet(self) -> None:
        """End the kubelet alone: containers go on, the node turns NotReady after 20 s."""
        self.kubelet.stop()

    def start_kubelet(self) -> None:
        """Start the kubelet again and wait for the node; GPUs that were patched in are patched in anew."""
        self.kubelet.start()
        self.wait_until_ready()
        if self._gpus:
            # A starting kubelet sets every resource without a device plugin to zero.
            self.set_gpus(self._gpus)

    def kill_containers(self) -> None:
        """Kill every process of every pod on this node, as a power cut would."""
        cgroups.kill(cgroups.processes(self._cgroup))

    def pod_processes(self, uid: str) -> dict[int, str]:
        """Return the command line of every process of a pod, by process id, for tests that kill one of them."""
        lines = {}
        for pid in cgroups.processes(self._cgroup):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if _belongs_to(pid, uid):
                    lines[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return {pid: line.decode(errors="replace").strip() for pid, line in lines.items()}

    def set_gpus(self, count: int) -> None:
        """Set the number of GPUs that the scheduler and the kubelet see on the node."""
        gpus = {"nvidia.com/gpu": str(count)}
        patch = yaml.safe_dump({"status": {"capacity": gpus, "allocatable": gpus}})
        self._kubernetes.kubectl("patch", "node", self.name, "--subresource=status", "--patch", patch)
        self._gpus = count

    def delete(self) -> None:
        """Delete the Node object, as the cloud's controller does when the machine is gone."""
        self._kubernetes.kubectl("delete", "node", self.name)

    def _readiness(self) -> str:
        ready = ".status.conditions[?(@.type=='Ready')]"
        state = f"jsonpath={{{ready}.status}} {{{ready}.message}} {{.spec.taints[*].key}}"
        result = self._kubernetes.try_kubectl("get", "node", self.name, "-o", state)
        if result.returncode:
            return result.stderr.strip()
        is_ready = result.stdout.startswith("True") and "node.kubernetes.io/not-ready" not in result.stdout
        return "" if is_ready else result.stdout.strip() or "the kubelet has not told its state yet"

    def _kubelet_command(self) -> list[str | Path]:
        identity = self._plane.authority.issue(f"system:node:{self.name}", ["system:nodes"])
        configuration = self.folder / "kubelet.yaml"
        configuration.write_text(yaml.safe_dump(self._kubelet_configuration()))
        return [
            program("kubelet"),
            f"--config={configuration}",
            f"--kubeconfig={self._plane.kubeconfig_of(f'system:node:{self.name}', identity)}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--cert-dir={self.folder / 'pki'}",
        ]

    def _kubelet_configuration(self) -> dict[str, object]:
        port, health = free_ports(2)
        resolver = self.folder / "resolv.conf"
        resolver.touch()
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "port": port,
            "address": self.address,
            "healthzPort": health,
            "authentication": {"x509": {"clientCAFile": str(self._plane.authority.certificate)}},
            "authorization": {"mode": "Webhook"},
            "clusterDNS": [self._slot.gateway],
            "clusterDomain": DOMAIN,
            "resolvConf": str(resolver),
            "containerRuntimeEndpoint": f"unix://{self.runtime.socket}",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            # Two kubelets on one root would remove each other's pods as orphans.
            "cgroupRoot": f"/{self._cgroup}",
            "enforceNodeAllocatable": [],
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "podLogsDir": str(self.folder / "pod-logs"),
            "containerLogMaxSize": "3Mi",  # 10Mi by default and on EKS; the same rotation after fewer lines
            "volumePluginDir": str(self.folder / "volume-plugins"),
            "nodeStatusUpdateFrequency": "5s",
            "nodeLeaseDurationSeconds": 20,
            # A developer's disk may be fuller than a node's should be; images can't be fetched again.
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
        }


def _belongs_to(pid: int, uid: str) -> bool:
    """Tell whether a process is in a container of the pod with this uid."""
    try:
        return f"pod{uid}" in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False
