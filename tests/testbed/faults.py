"""The faults of the test cluster: what is done to a pod, a process, a volume, a connection or a clock, and to parts of
the cluster. In an order that a seed determines, or one by one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import struct
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.errors import run_command
from tests.testbed.kubernetes import Kubernetes

TAKEN = ("delete", "force", "evict")  # ways to take a pod
_CLOCK_SOURCE = Path(__file__).with_name("shifted_clock.c")
_PIECE = 1 << 20  # bytes


@dataclass(frozen=True)
class Fault:
    """One fault: its kind, the node that it hits, and how many iterations it comes after the recovery from the last.

    Some last for *seconds*; a partition separates the node from an *other* one, and a clock jumps by *jump* seconds.
    """

    kind: str
    node: int
    gap: int = 0
    seconds: float = 0.0
    other: int = 0
    jump: int = 0


def rounds(generator: random.Random, kinds: Collection[str], count: int) -> Iterator[str]:
    """So many kinds of faults: each once, in random order, before any comes again."""
    while count > 0:
        yield from generator.sample(sorted(kinds), len(kinds))[:count]
        count -= len(kinds)


def take_pod(cluster: Kubernetes, namespace: str, *pods: str, how: str) -> None:
    """Take pods from whoever runs them, in one of the ways of `TAKEN`."""
    if how == "evict":
        for pod in pods:
            cluster.evict(pod, namespace)
        return
    options = ["--force", "--grace-period=0"] if how == "force" else []
    cluster.kubectl("delete", "pod", *pods, "-n", namespace, "--wait=false", *options)


@contextlib.contextmanager
def stopped(process: int) -> Iterator[None]:
    """Stop a process, and let it go on at the end of the block if it is still there."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


@contextlib.contextmanager
def partitioned(process: int, address: str, other_process: int, other_address: str) -> Iterator[None]:
    """Drop every packet between two pods, each given by one of its processes and its address, in both directions.

    The rules are in the pods' own network namespaces and end with them, so none is left on this machine. They are
    removed whether or not the processes are still there.
    """
    with contextlib.ExitStack() as opened:
        cut = []
        for inside, source in ((process, other_address), (other_process, address)):
            namespace = os.open(f"/proc/{inside}/ns/net", os.O_RDONLY)
            opened.callback(os.close, namespace)
            cut.append((namespace, source))
        for namespace, source in cut:
            _filter(namespace, "-I", source)
            opened.callback(_filter, namespace, "-D", source)
        yield


def _filter(namespace: int, action: str, source: str) -> None:
    """Add or delete the rule by which a network namespace, an open file, drops what comes from a source."""
    command = [
        "nsenter",
        f"--net=/proc/self/fd/{namespace}",
        "iptables",
        "-w",
        action,
        "INPUT",
        "-s",
        source,
        "-j",
        "DROP",
    ]
    subprocess.run(command, check=True, capture_output=True, pass_fds=[namespace])


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Fill the volume of a folder to its last byte, and free it again at the end of the block."""
    path = folder / ".filling"
    try:
        with path.open("wb", buffering=0) as file:
            size = _PIECE
            while size:
                try:
                    file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2
        yield
    finally:
        path.unlink(missing_ok=True)


class ShiftedClocks:
    """Clocks of pods that differ from the machine's; each pod finds *folder* at the path *inside*."""

    def __init__(self, folder: Path, inside: str) -> None:
        self._folder, self._inside = folder, inside
        folder.mkdir()
        command = ["gcc", "-shared", "-fPIC", "-O2", "-o", folder / "clock.so", _CLOCK_SOURCE, "-ldl"]
        run_command(command)

    @property
    def variables(self) -> list[dict[str, str]]:
        """The variables of a container whose processes have such a clock."""
        values = {"LD_PRELOAD": f"{self._inside}/clock.so", "SHIFTED_CLOCKS": self._inside}
        return [{"name": name, "value": value} for name, value in values.items()]

    def set(self, host: str, seconds: int) -> None:
        """Let the clock of the pod with that host name differ by so many seconds from now on.

        The file has to be there before its pod begins.
        """
        path = self._folder / host
        if not path.exists():
            path.write_bytes(struct.pack("l", seconds))
            return
        with path.open("r+b") as file:  # in place: processes have it mapped
            file.write(struct.pack("l", seconds))
