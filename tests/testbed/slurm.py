"""A real Slurm cluster on this machine: Debian's slurmctld, munged, and a slurmd for each node.

A node has what a machine has: a host name, an address, processes, memory and a /tmp of its own, by namespaces.
All other folders are the shared file system.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.testbed import leftovers
from tests.testbed.daemon import SYSTEM_PATH, Daemon, wait_until
from tests.testbed.errors import TestbedError, run_command
from tests.testbed.network import create_bridge
from tests.testbed.slot import Slot, take_slot

# What each Debian package is looked up by.
PACKAGES = {"slurm-wlm": "slurmctld", "slurmd": "slurmd", "munge": "munged", "iproute2": "ip"}
CPUS = 8  # of a node, whatever the machine has
GPUS = 2  # of a node, which no process finds: Slurm only counts them
START_LIMIT = 30.0  # seconds
SPOT, URGENT, CLOSED = "spot", "urgent", "closed"  # partitions: for runs, one that preempts it, one that is down

# A requeued job waits until the credential of its steps has expired: two minutes, unless that is set.
_CONFIGURATION = """\
ClusterName=spotmpi{index}
SlurmctldHost={host}({gateway})
SlurmUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPort={port}
SlurmdPort=6818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
TaskPluginParam=Cores
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=1,sched_interval=5,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
SlurmdTimeout=10
KillWait=5
MessageTimeout=10
ReturnToService=2
JobRequeue=1
GresTypes=gpu
{nodes}
PartitionName=spot Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=20 MaxTime=INFINITE
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE
PartitionName=closed Nodes=ALL State=DOWN
"""

# The node's own /tmp and /dev/shm hide those of the machine, but for the folders of the tests, which are shared. It has
# no name server, as it reaches none: Slurm 24.11 asks one at each launch, whose credential would expire meanwhile.
_NODE = """\
set -e
folder=$1 name=$2 address=$3 gateway=$4 shared=$5
hostname "$name"
ip link set lo up
until ip link show eth0 > /dev/null 2>&1; do sleep 0.02; done
ip address add "$address/24" dev eth0
ip link set eth0 up
ip route add default via "$gateway"
mount --bind "$folder/hosts" /etc/hosts
mount --bind /dev/null /etc/resolv.conf
mkdir -p "$shared" "$folder/shared-$name"
mount --bind "$shared" "$folder/shared-$name"
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /dev/shm
chmod 1777 /tmp
mkdir -p "$shared"
mount --bind "$folder/shared-$name" "$shared"
exec slurmd -D -N "$name" -f "$folder/slurm.conf"
"""


def missing_packages() -> list[str]:
    """The Debian packages whose program is missing."""
    return [name for name, probe in PACKAGES.items() if shutil.which(probe, path=SYSTEM_PATH) is None]


class Slurm:
    """A cluster in *slot* with *nodes* nodes, n0, n1, ...; /tmp of the nodes is their own but for *shared*."""

    def __init__(self, slot: Slot, nodes: int, shared: Path) -> None:
        self.slot = slot
        self.folder = slot.folder
        self.shared = shared
        self.names = [f"n{node}" for node in range(nodes)]
        self.configuration = self.folder / "slurm.conf"
        self._munged = Daemon("munged", self._munge_command(), self.folder)
        self._controller = Daemon("slurmctld", ["slurmctld", "-D", "-f", self.configuration], self.folder)
        self._nodes: dict[str, Daemon] = {}

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which Slurm's commands find this cluster."""
        return {"SLURM_CONF": str(self.configuration)}

    def start(self) -> None:
        """Start everything; returns once all nodes are idle."""
        for name in ("munge", "state", *(f"spool-{node}" for node in self.names)):
            (self.folder / name).mkdir(parents=True, mode=0o755)
        (self.folder / "munge" / "key").write_bytes(secrets.token_bytes(128))
        (self.folder / "munge" / "key").chmod(0o600)
        self.configuration.write_text(self._configuration_text())
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
        addresses = [f"{self.address(name)} {name}" for name in self.names]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *addresses, ""]))
        create_bridge(self.slot, 0)
        self._munged.start()
        self._munged.wait_until_ready(self._munge_problem, START_LIMIT)
        self._controller.start()
        for name in self.names:
            self.start_node(name)
        wait_until("Slurm", self._problem, START_LIMIT, self._controller, *self._nodes.values())

    def address(self, name: str) -> str:
        """The address of a node."""
        return self.slot.node_address(self.names.index(name))

    def start_node(self, name: str) -> None:
        """Switch a node on; it serves some time after this returns."""
        unshare = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        arguments = [self.folder, name, self.address(name), self.slot.gateway, self.shared]
        self._nodes[name] = node = Daemon(name, [*unshare, "sh", "-c", _NODE, "node", *arguments], self.folder)
        node.start()
        outside = f"{self.slot.bridge}{name}"
        self._remove_interface(name)  # of a cluster before: a connection to a dead node outlives processes
        run_command(["ip", "link", "add", outside, "type", "veth", "peer", "name", f"{outside}p"])
        run_command(["ip", "link", "set", outside, "master", self.slot.bridge, "up"])
        self._move_interface(f"{outside}p", node)

    def kill_node(self, name: str) -> None:
        """Switch a node off: all its processes end at once, and its network is gone."""
        self._nodes[name].kill()
        self._remove_interface(name)

    @contextmanager
    def without_controller(self) -> Iterator[None]:
        """Have no slurmctld during the block, which has saved its state; nodes and their jobs go on."""
        self._controller.stop()
        try:
            yield
        finally:
            self._controller.start()
            self._controller.wait_until_ready(self._controller_problem, START_LIMIT)

    def command(self, *arguments: object) -> str:
        """What one of Slurm's commands printed; TestbedError where it failed."""
        return run_command(arguments, {**os.environ, **self.environment}, limit=60.0)

    def wait_until_idle(self) -> None:
        """Wait until every node is up and no job is left; slurmctld asks for an end again after a minute."""
        wait_until("Slurm", self._problem, 150.0, self._controller)

    def stop(self) -> None:
        """End all daemons and remove what they put on this machine."""
        for daemon in (*self._nodes.values(), self._controller, self._munged):
            daemon.kill()
        for name in self.names:
            self._remove_interface(name)
        leftovers.clean(self.slot)

    def _remove_interface(self, name: str) -> None:
        command = ["ip", "link", "delete", f"{self.slot.bridge}{name}"]
        subprocess.run(command, check=False, capture_output=True)

    def _move_interface(self, name: str, node: Daemon) -> None:
        def problem() -> str:
            """The namespace of the node is not there at once."""
            if Path(f"/proc/{node.pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
                return "no network namespace"
            return ""

        wait_until(node.name, problem, START_LIMIT, node)
        run_command(["ip", "link", "set", name, "netns", node.pid, "name", "eth0"])

    def _munge_command(self) -> Sequence[object]:
        munge = self.folder / "munge"
        files = [f"--{name}-file={munge / name}" for name in ("key", "log", "pid", "seed")]
        return ["munged", "--foreground", "--force", f"--socket={munge / 'socket'}", *files]

    def _munge_problem(self) -> str:
        socket_file = self.folder / "munge" / "socket"
        return "" if socket_file.exists() else f"no {socket_file}"

    def _controller_problem(self) -> str:
        try:
            self.command("scontrol", "ping")
        except TestbedError as error:
            return str(error)
        return ""

    def _problem(self) -> str:
        try:
            states = self.command("sinfo", "--noheader", "--Node", "--format=%N %T", f"--partition={SPOT}").split()
        except TestbedError as error:
            return str(error)
        idle = {name for name, state in zip(states[::2], states[1::2], strict=True) if state == "idle"}
        return "" if idle == set(self.names) else f"nodes and states: {' '.join(states)}"

    def _configuration_text(self) -> str:
        capacity = f"CPUs={CPUS} RealMemory=4000 Gres=gpu:{GPUS}"
        return _CONFIGURATION.format(
            index=self.slot.index,
            host=socket.gethostname().partition(".")[0],
            gateway=self.slot.gateway,
            folder=self.folder,
            port=6820 + self.slot.index,
            nodes="\n".join(f"NodeName={name} NodeAddr={self.address(name)} {capacity}" for name in self.names),
        )


@contextmanager
def running_slurm(shared: Path, nodes: int = 2) -> Iterator[Slurm]:
    """A cluster during the block; its nodes see *shared* and all that is not in /tmp."""
    if os.geteuid() != 0:
        raise TestbedError("Slurm needs root (namespaces, a network bridge): run the tests as root")
    if packages := missing_packages():
        raise TestbedError(f"Debian packages are missing: {' '.join(packages)}; run scripts/slurm-packages")
    with ExitStack() as stack:
        slot, lock = take_slot()
        stack.enter_context(lock)
        leftovers.clean(slot)
        slurm = Slurm(slot, nodes, shared)
        stack.callback(slurm.stop)
        slurm.start()
        yield slurm
