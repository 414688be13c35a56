"""What an attempt runs on, and what agents start for it, from a plan: pods, a laptop and ``--dry-run`` alike. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional

from . import launchers, protocol
from .plan import NODE, WORKER, Command, Elastic, Member, Role, RunPlan, gang, workers
from .schema import WorldRecord

if TYPE_CHECKING:  # interfaces: to make them delays a start
    from .replicas import Replicas

LAUNCHER, SCHEDULER = "launcher", "scheduler"  # names of commands
# In the control folder of a pool on one machine: where its scheduler listens, with its process id, and how many workers
# the pool shall have, which any process may write.
ADDRESS = "address.json"
RANK_WRAPPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank_wrapper.py")


def size_file(role: str) -> str:
    """The file in a pool's control folder with the number of workers that it shall have in a role."""
    return "workers" if role == WORKER else "workers-" + role


class World(NamedTuple):
    """The members of an attempt, how many ranks each has, and what all of them cost."""

    attempt: int
    members: List[str]  # hosts by node index
    ranks: int  # of each member
    size: int  # ranks in all
    rate: Optional[float]  # US dollars per hour of all nodes and pods that stand by, where known
    standby: int = 0  # pods that stand by
    pods: Optional[List[Member]] = None  # of all nodes, by what they were at the beginning, where some stand by

    def record(self) -> WorldRecord:
        """As the record of the attempt holds it."""
        values: WorldRecord = {"members": self.members, "ranks": self.ranks, "size": self.size, "rate": self.rate}
        if self.standby:
            values["standby"] = self.standby
        if self.pods is not None:
            values["pods"] = [pod.text for pod in self.pods]
        return values


class Launch(NamedTuple):
    """What an attempt starts on this machine.

    The *commands* end together with the first that fails; without any, the attempt lasts until it is to end. *replicas*
    are restarted each by itself meanwhile.
    """

    commands: List[Command]
    environment: Dict[str, str]
    pid_file: str  # of rank 0
    replicas: Optional[Replicas] = None
    start_deadline: Optional[float] = None  # when it has to print something, as `Clock.uptime` counts
    ranks: Mapping[Member, Mapping[int, str]] = {}  # as `Members` has those of other nodes


class Location(NamedTuple):
    """What the arguments of processes depend on besides the plan: where their agent runs, and how it reaches others."""

    python: str  # that runs rank wrappers, and pools whose plan names no other
    port: str = launchers.PORT  # for the rendezvous of ranks, or of a pool's scheduler on one machine
    address: str = "127.0.0.1"  # of node 0
    environment_file: Optional[str] = None  # for ranks that do not inherit the environment of their launcher
    mpi: Optional[launchers.OpenMpi] = None
    worker_host: str = "127.0.0.1"  # at which a worker of a pool is reached
    control: Optional[str] = None  # the folder of a pool whose processes are all on this machine
    wait_for: Optional[str] = None  # the file that node 0's scheduler waits for, once its launcher has ended
    fork_socket: Optional[str] = None  # of the fork server of each node
    worker_forks: Optional[Dict[str, str]] = None  # those of a pool's or stream's processes, by the roles of workers

    @property
    def rank_wrapper(self) -> list[str]:
        """What starts a process that is to end with the one that started it."""
        start = [self.python, "-I", "-S", RANK_WRAPPER]
        return start if self.environment_file is None else [*start, "--env", self.environment_file]

    @property
    def fork_wrapper(self) -> list[str]:
        """What starts a rank: in a fork of the fork server, if there is one."""
        return self.rank_wrapper if self.fork_socket is None else [*self.rank_wrapper, "--fork", self.fork_socket]

    def pool_python(self, plan: RunPlan) -> str:
        """The interpreter of a pool's or stream's processes."""
        return plan["pool_python"] or self.python

    def worker_wrapper(self, role: str) -> list[str]:
        """What starts a worker, or a scheduler by the role `WORKER`: in a fork, if there can be one."""
        forks = (self.worker_forks or {}).get(role)
        return self.rank_wrapper if forks is None else [*self.rank_wrapper, "--may-fork", forks]


def node_count(plan: RunPlan) -> int:
    """How many nodes run ranks: one where a plain command is for the first alone."""
    return 1 if plan["run_on"] == "first" else len(plan["hosts"])


def on_hosts(plan: RunPlan, hosts: List[str]) -> RunPlan:
    """The plan of an attempt on these *hosts*, by node; where it may have fewer nodes, as many as there are."""
    if "elastic" not in plan:
        return {**plan, "hosts": hosts}
    environment = {
        **plan["environment"],
        protocol.ENV_WORLD_SIZE: str(len(hosts) * plan["slots"]),
        protocol.ENV_HOSTS: str(len(set(hosts))),
    }
    ranks: Role = {**gang(plan), "count": len(hosts)}
    rate = plan["rate"]
    if rate is not None and plan.get("backend") != "local":  # where all nodes are one machine
        rate *= len(hosts) / len(plan["hosts"])
    return {**plan, "hosts": hosts, "roles": [ranks], "environment": environment, "rate": rate}


def sizes_of(plan: RunPlan) -> List[int]:
    """The allowed numbers of nodes of a run, the smallest first."""
    return plan["elastic"]["sizes"] if "elastic" in plan else [len(plan["hosts"])]


def largest_size(elastic: Elastic, nodes: int) -> Optional[int]:
    """The most allowed nodes of which there are *nodes*; None where there are too few."""
    return max((size for size in elastic["sizes"] if size <= nodes), default=None)


def change_reason(nodes: int, size: int) -> str:
    """Why an attempt on *nodes* ends where *size* of them are there."""
    ready = protocol.counted(size, "node is", "nodes are")
    return "%s ready: continues on %d instead of %d" % (ready, size, nodes)


def world_of(plan: RunPlan, attempt: int) -> World:
    """The world of an attempt on all hosts of *plan*."""
    nodes = node_count(plan)
    standby = len(plan.get("standby", []))
    return World(attempt, plan["hosts"][:nodes], plan["slots"], nodes * plan["slots"], plan["rate"], standby)


def launcher_count(plan: RunPlan) -> int:
    """How many nodes start a launcher of their own."""
    return launchers.start_count(plan["launcher"], len(plan["hosts"]), plan["run_on"])


def gang_commands(plan: RunPlan, nodes: Iterable[int], location: Location) -> list[Command]:
    """The launchers of *nodes*, or a pool's scheduler with its driver."""
    return [_gang_command(plan, node, location) for node in nodes]


def worker_command(plan: RunPlan, member: Member, location: Location, folder: str) -> Command:
    """A worker of a pool or stream, which works in *folder*."""
    address = _pool_address(plan, location)
    arguments = launchers.pool_worker(location.pool_python(plan), member.text, address, folder)
    host = location.worker_host
    arguments.append("--host=" + ("[%s]" % host if ":" in host else host))
    environment = dict(workers(plan)[member.role]["environment"])
    if location.control is not None:
        environment[protocol.ENV_POOL] = address
    return {
        "member": member,
        "name": str(member),
        "arguments": [*location.worker_wrapper(member.role), *arguments],
        "environment": environment,
    }


def _gang_command(plan: RunPlan, node: int, location: Location) -> Command:
    """The launcher of a node, with the scheduler of a pool or stream before it on node 0."""
    driver, has_workers = gang(plan)["command"], bool(workers(plan))
    name = LAUNCHER
    environment: dict[str, str] = {}
    forks = (location.worker_forks or {}).get(WORKER)
    if plan["launcher"] == "pool":
        scheduler = _scheduler(plan, location, ends_alone=not driver)
        if driver:
            arguments = [*location.rank_wrapper, *launchers.pool_driver(scheduler, driver, forks)]
        else:
            name, arguments = SCHEDULER, [*location.worker_wrapper(WORKER), *scheduler]
    else:
        arguments, environment = _rank_launcher(plan, node, location)
        if has_workers and node == 0:  # with the scheduler of its stream
            scheduler = _scheduler(plan, location)
            driver = launchers.pool_driver(scheduler, arguments, forks, location.wait_for)
            arguments = [*location.rank_wrapper, *driver]
    if has_workers and location.control is not None:
        environment = {**environment, protocol.ENV_POOL: _pool_address(plan, location)}
    return {"member": Member(NODE, node), "name": name, "arguments": arguments, "environment": environment}


def _rank_launcher(plan: RunPlan, node: int, location: Location) -> tuple[list[str], dict[str, str]]:
    """The arguments of what starts a node's ranks, and its variables."""
    launcher = launchers.LAUNCHERS[plan["launcher"]]
    start = launchers.Start(node_count(plan), plan["slots"], node, location.address, plan["python"], location.mpi)
    arguments = [part.replace(launchers.PORT, location.port) for part in launcher.arguments(start)]
    environment = launcher.environment(start)
    variables = {key: value.replace(launchers.PORT, location.port) for key, value in environment.items()}
    return [*arguments, *location.fork_wrapper, *launcher.wrapper_options(), *gang(plan)["command"]], variables


def _scheduler(plan: RunPlan, location: Location, ends_alone: bool = False) -> list[str]:
    """The scheduler of a pool or stream; one that *ends_alone* does so where no driver comes or stays."""
    limits = plan["limits"]
    driver = limits["driver"] if ends_alone else None
    scheduler = launchers.pool_scheduler(
        location.pool_python(plan),
        workers(plan)[WORKER]["count"],
        limits["interruptions"],
        limits["start"] if driver is not None else None,
        driver,
        # On a cluster a lost worker may need another machine, as at the start; here it is restarted at once.
        replacement=limits["start"] if location.control is None else None,
    )
    if location.control is None:
        return scheduler
    address = os.path.join(location.control, ADDRESS)
    return [*scheduler, "--host=127.0.0.1", "--port=" + location.port, "--address-file=" + address]


def _pool_address(plan: RunPlan, location: Location) -> str:
    """Where the scheduler listens."""
    return plan["environment"][protocol.ENV_POOL] if location.control is None else "tls://127.0.0.1:" + location.port


def local_location(plan: RunPlan, python: str, root: bool) -> Location:
    """That of a run whose processes are all on the machine of its agent; *root* is whether its user is root."""
    path = plan["mpi"]["path"]
    mpi = None if path is None else launchers.OpenMpi(path, plan["mpi"]["family"], root)
    return Location(python, launchers.PORT, mpi=mpi, control=plan["environment"].get(protocol.ENV_POOL_CONTROL))
