"""A whole Kubernetes cluster on this machine: control plane, nodes, DNS, and the chosen controllers."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tests.testbed import cgroups, images, leftovers, prerequisites
from tests.testbed.containerd import Containerd
from tests.testbed.control_plane import ControlPlane
from tests.testbed.controller import Controller
from tests.testbed.dns import Dns
from tests.testbed.jobset import JobSet
from tests.testbed.kubernetes import Kubernetes
from tests.testbed.network import create_bridge
from tests.testbed.node import Node
from tests.testbed.objects import shared_claim
from tests.testbed.policy_engine import PolicyEngine
from tests.testbed.slot import Slot, take_slot
from tests.testbed.store import Store

NODES = 2


class Cluster(Kubernetes):
    """A running test cluster; its parts are handles that tests may stop, start and break."""

    def __init__(self, slot: Slot, plane: ControlPlane, nodes: int, crio_pause: str | None = None) -> None:
        super().__init__(plane.kubeconfig)
        self.slot = slot
        self.plane = plane
        self.nodes = [Node(slot, index, plane, crio_pause) for index in range(nodes)]
        self.dns = Dns(slot, plane)
        self.jobset = JobSet(plane)
        self.policy_engine = PolicyEngine(slot, plane)
        self.images: dict[str, str] = {}
        self._lock: IO[str] | None = None

    def start(self) -> None:
        """Start every part and wait until pods can run; TestbedError tells which part did not come up, and why."""
        self.plane.start()
        cgroups.create(self.slot.cgroup)
        create_bridge(self.slot, len(self.nodes))
        controllers: list[Controller] = [self.dns, self.jobset, self.policy_engine]
        for controller in controllers:
            controller.start()
        for node in self.nodes:
            if isinstance(node.runtime, Containerd):
                Store().lend_to(node.folder)
            node.start()
        for node in self.nodes:
            node.wait_until_ready()
        for controller in controllers:
            controller.wait_until_ready()

    def stop(self) -> None:
        """Stop every part and remove all its resources from this machine."""
        for node in self.nodes:
            node.stop()
        for controller in (self.policy_engine, self.jobset, self.dns):
            controller.stop()
        self.plane.stop()
        leftovers.clean(self.slot)
        if self._lock:
            # Not before all is gone, or the next cluster in this slot would lose its parts to the clean-up.
            self._lock.close()

    def shared_volume(self, namespace: str, name: str = "shared", megabytes: int | None = None) -> Path:
        """Create a claim that pods of all nodes may mount at once, as user 1000, and return its folder on this machine.

        With `megabytes` the volume is no bigger, for tests that fill it.
        """
        folder = self.slot.folder / "volumes" / f"{namespace}-{name}"
        folder.mkdir(parents=True)
        if megabytes:
            size = f"size={megabytes}m,uid=1000,gid=1000"
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], check=True)
        os.chown(folder, 1000, 1000)
        self.apply(*shared_claim(f"{namespace}-{name}", name, folder), namespace=namespace)
        bound = "--for=jsonpath={.status.phase}=Bound"
        self.kubectl("wait", bound, "pvc", name, "-n", namespace, "--timeout=60s", limit=90)
        return folder

    def node(self, name: str) -> Node:
        """Return the node of that name."""
        return next(node for node in self.nodes if node.name == name)


def start_cluster(
    image_names: set[str], nodes: int = NODES, *, outlives_us: bool = False, crio_pause: str | None = None
) -> Cluster:
    """Return a started cluster with these images on its nodes; nothing remains if it fails to start.

    With `crio_pause` its nodes run CRI-O and have no images: they pull that one, and those of pods, from its registry.
    """
    prerequisites.require()
    references = {} if crio_pause else images.provide(image_names)
    slot, lock = take_slot()
    leftovers.clean(slot)
    try:
        slot.folder.mkdir(parents=True)
        # etcd holds the lock, too: as long as it runs, the slot is taken.
        plane = ControlPlane(slot.folder, outlives_us=outlives_us, inherited_files=[lock.fileno()])
        cluster = Cluster(slot, plane, nodes, crio_pause)
        cluster.images, cluster._lock = references, lock
        cluster.start()
    except BaseException:
        leftovers.clean(slot)
        lock.close()
        raise
    return cluster


def stop_cluster(slot: Slot) -> None:
    """Stop a cluster that another process started, and remove all its resources from this machine."""
    leftovers.kill_programs(slot)
    if lock := slot.lock():
        with lock:
            leftovers.clean(slot)


@contextlib.contextmanager
def running_cluster(image_names: set[str], nodes: int = NODES, *, crio_pause: str | None = None) -> Iterator[Cluster]:
    """Return a running cluster, which is removed with all its resources at the end of the block."""
    cluster = start_cluster(image_names, nodes, crio_pause=crio_pause)
    try:
        yield cluster
    finally:
        cluster.stop()
