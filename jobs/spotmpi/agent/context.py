"""The context of one agent: the plan, which member of the run it is, the paths of its mounts, its clock, and others."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from . import hardware, pod_context, record
from .clock import Clock
from .launch import launcher_count, on_hosts
from .plan import COORDINATOR, NODE, STANDBY, WORKERS, Member, Role, RunPlan, gang, read_plan, workers

if TYPE_CHECKING:
    from .connection import Identity
    from .placement import Decision

PID_FILE = "rank-0.pid"
REQUESTS = "control"  # folder in it


class Mounts(NamedTuple):
    """The paths that one agent reads and writes; None where its place has no such thing."""

    plan: str  # file of the plan
    work: str  # folder of this agent alone
    runs: str  # folder with the run folder, which all agents of a run share
    image_record: str  # file in which the build of an image recorded its versions
    cgroup: str  # folder of the control group that counts kills for lack of memory
    secret: Optional[str] = None  # folder of the run's keys
    requests: Optional[str] = None  # folder of users' requests to end the run
    pod_info: Optional[str] = None  # folder with the annotations and labels of a pod
    shared_memory: Optional[str] = None  # folder of shared memory that nothing but the run uses


class AgentContext(NamedTuple):
    """One agent of a run."""

    plan: RunPlan
    member: Member  # where pods stand by, the one whose work it does now (see `peers.Assignment`)
    restart_count: int  # how many agents of this member there were before
    identity: Optional[Identity]  # None where all members are this agent's own processes
    mounts: Mounts
    clock: Clock
    rendezvous: int = 23456  # the port of the ranks at node 0; torch's users know it
    slurm: bool = False  # in a job of Slurm's: nodes keep their names, and mpirun reaches them by srun, not ssh
    decisions: Tuple[Decision, ...] = ()  # on where the gang is placed
    node_0: Optional[str] = None  # its address, once this agent is connected with others (`node.connected`)

    @property
    def folder(self) -> str:
        """The run folder."""
        return os.path.join(self.mounts.runs, self.plan["run"])

    @property
    def is_coordinator(self) -> bool:
        """Whether this is node 0."""
        return self.member == COORDINATOR

    @property
    def is_worker(self) -> bool:
        """Whether this is a worker of a pool or stream."""
        return self.member.role in WORKERS

    @property
    def has_launcher(self) -> bool:
        """Whether this node starts a launcher of its own."""
        return self.member.role == NODE and self.member.number < self.launcher_count

    @property
    def launcher_count(self) -> int:
        """How many nodes start a launcher of their own."""
        return launcher_count(self.plan)

    @property
    def remote_launchers(self) -> int:
        """How many launchers agents of other nodes start."""
        return self.launcher_count - 1 if self.is_supervised else 0

    @property
    def is_supervised(self) -> bool:
        """Whether something decides by the exit code of node 0's agent whether to start all agents anew.

        Nothing does where all members are its own processes.
        """
        return self.identity is not None

    @property
    def hosts(self) -> list[str]:
        """The host name of every node of the gang, by node index."""
        return self.plan["hosts"]

    @property
    def standby(self) -> list[str]:
        """The host name of every pod that stands by at the beginning."""
        return self.plan.get("standby", [])

    @property
    def stands_by(self) -> bool:
        """Whether this pod stands by for lost nodes now."""
        return self.member.role == STANDBY

    def host(self, pod: Member) -> str:
        """The host name of a pod, by what it was at the beginning."""
        return (self.standby if pod.role == STANDBY else self.hosts)[pod.number]

    def with_pods(self, pods: Optional[List[Member]]) -> AgentContext:
        """The context of an attempt with these *pods* as its nodes; the same one where it is None."""
        if pods is None:
            return self
        return self._replace(plan=on_hosts(self.plan, [self.host(pod) for pod in pods]))

    @property
    def role(self) -> Role:
        """What this member does in the run."""
        return workers(self.plan)[self.member.role] if self.is_worker else gang(self.plan)

    @property
    def replaces_nodes(self) -> bool:
        """Whether a lost node of the gang alone gets a new agent, which joins those that stay."""
        return self.plan.get("replaces_nodes", False)

    @property
    def environment_file(self) -> str:
        """Where the environment of this node's ranks is written."""
        return os.path.join(self.mounts.work, "environment.json")

    @property
    def pid_file(self) -> str:
        """Where rank 0 writes its process id, if it runs here; not in a folder that nodes share."""
        return os.path.join(self.mounts.work, PID_FILE)

    @property
    def launchers_ended_file(self) -> str:
        """What exists on node 0 once the launchers of all other nodes have ended."""
        return os.path.join(self.mounts.work, "launchers-ended")

    @property
    def start_socket(self) -> str:
        """Where node 0's agent takes requests to start processes on other nodes."""
        return os.path.join(self.mounts.work, "start.sock")

    @property
    def wheels_folder(self) -> str:
        """Where wheels of Dask are unpacked; there is no such folder where the image has what it needs."""
        return os.path.join(self.mounts.work, "wheels")

    @property
    def ssh_folder(self) -> str:
        """The folder of the SSH keys and configurations."""
        return os.path.join(self.mounts.work, "ssh")


class Members:
    """The other nodes of a run in its current attempt, as node 0 knows them, by member; here there are none."""

    def __init__(self) -> None:
        self.workers: Dict[Member, Any] = {}  # connections
        # As `hardware.identify` gives them, that of node 0 included where machines are billed.
        self.machines: Dict[Member, Dict[str, Any]] = {}
        self.hardware: Dict[Member, Dict[str, Any]] = {}  # as `hardware.describe_pod` gives it
        self.notices: Dict[Member, str] = {}  # why nodes are about to go away
        self.unfit: Dict[Member, str] = {}  # what is wrong with the nodes that have failed their check
        # Takes the name of a machine and what is wrong with it, where the attempt goes on without that node.
        self.avoid: Callable[[str, str], object] = lambda machine, reason: None
        self.ended: Dict[Member, Tuple[int, str]] = {}  # exit code and reason of launchers that other agents started
        self.ranks: Dict[Member, Dict[int, str]] = {}  # the states of ranks, as `RankWatch` of their node has them
        self.idle: Set[Member] = set()  # the nodes on which no process of the attempt is left
        self.oom_killed: Set[Member] = set()  # where the kernel has killed a process for lack of memory

    @property
    def gang(self) -> Dict[Member, Any]:
        """The connections to nodes."""
        return {member: worker for member, worker in self.workers.items() if member.role == NODE}

    def begin(self, attempt: int) -> None:
        """Begin the next attempt."""

    @property
    def pods(self) -> Optional[List[Member]]:
        """The pods of all nodes, by what they were at the beginning; None where these never change."""
        return None

    @property
    def standby_ready(self) -> int:
        """How many pods stand by and are ready."""
        return 0

    def larger_size(self) -> Optional[int]:
        """The number of nodes with which the run could go on now, where that is more than the attempt has."""
        return None

    def others(self) -> int:
        """How many nodes are there besides those of the attempt, of a run that may have fewer."""
        return 0

    def is_whole(self) -> bool:
        """Whether the next attempt can run on the same nodes: none is lost, or about to go away."""
        return True

    def lost(self) -> List[Member]:
        """The nodes that are lost though they have not reported their end."""
        return []

    def serve(self, timeout: float) -> None:
        """Handle what has arrived, waiting at most *timeout* seconds for something."""

    def name_of(self, node: Member) -> str:
        """A member as messages name it."""
        return str(node)

    def dismiss(self, node: Member, reason: str) -> None:
        """Let another node leave the run."""

    def broadcast(self, **message: Any) -> None:
        """Send a message to every member."""

    def broadcast_to_gang(self, **message: Any) -> None:
        """Send a message to every node."""

    def close(self) -> None:
        """Close all connections."""


def in_pod() -> Mounts:
    """The mounts of a pod."""
    return Mounts(
        plan=os.path.join(pod_context.CONFIG, pod_context.AGENT_PLAN),
        work=pod_context.WORK,
        runs=pod_context.RUNS,
        image_record=hardware.IMAGE_RECORD,
        secret=pod_context.SECRET,
        pod_info=pod_context.POD_INFO,
        shared_memory=pod_context.SHARED_MEMORY,
        cgroup=hardware.CGROUP,
    )


def in_run_folder(folder: str, work: str, cgroup: str, shared_memory: Optional[str] = None) -> Mounts:
    """The mounts of an agent whose run, all of it on this machine and in its *cgroup*, is in *folder*."""
    return Mounts(
        plan=os.path.join(folder, record.PLAN),
        work=work,
        runs=os.path.dirname(folder),
        image_record=hardware.IMAGE_RECORD,
        cgroup=cgroup,
        requests=os.path.join(folder, REQUESTS),
        shared_memory=shared_memory,
    )


def read_pod_context(mounts: Mounts, clock: Clock) -> AgentContext:
    """That of this pod's agent, from its environment and *mounts*."""
    from .connection import Identity  # delays no start of a local run

    assert mounts.secret is not None and mounts.pod_info is not None, "pods have both"
    plan = read_plan(mounts.plan)
    number = int(os.environ[pod_context.ENV_INDEX]) + _number(pod_context.ENV_JOB_INDEX)
    member = Member(os.environ[pod_context.ENV_ROLE], number)  # at the beginning
    if member.role in WORKERS:  # how many pods of this index have failed before
        counts = (_annotation(mounts.pod_info, name) for name in pod_context.FAILURE_COUNTS)
        restart_count = sum(int(count or 0) for count in counts)
    else:  # how often JobSet has restarted the Job of this pod
        restart_count = _number(pod_context.ENV_RESTART_COUNT) + _number(pod_context.ENV_JOB_RESTARTS)
    context = AgentContext(plan, member, restart_count, Identity(plan["run"], mounts.secret), mounts, clock)
    text = _annotation(mounts.pod_info, pod_context.PLACEMENT_ANNOTATION)
    return context if text is None else _with_placement(context, text)


def _with_placement(context: AgentContext, text: str) -> AgentContext:
    """*context* on the node group that the annotation with this *text* names."""
    from . import placement

    state = placement.parse(text)
    if state is None:
        return context
    return context._replace(plan=placement.with_placement(context.plan, state), decisions=tuple(state["decisions"]))


def is_controller() -> bool:
    """Whether this pod is not a member of the run, but decides where its gang is placed."""
    return os.environ.get(pod_context.ENV_ROLE) == pod_context.CONTROLLER


def stop_reason(pod_info: str) -> str | None:
    """The reason of a request to stop this run, from the pod's annotations, or None."""
    return _annotation(pod_info, pod_context.STOP_ANNOTATION)


def _number(variable: str) -> int:
    return int(os.environ.get(variable) or 0)


def _annotation(pod_info: str, name: str) -> str | None:
    """The value of an annotation of this pod, or None."""
    try:
        with open(os.path.join(pod_info, "annotations"), encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition("=")
                if key == name:
                    return str(json.loads(value))
    except (OSError, ValueError):
        pass
    return None
