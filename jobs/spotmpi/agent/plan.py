"""The plan that the agents of a run carry out: a JSON object that the submitting side writes, read here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Dict, List, Literal, NamedTuple, Optional, TypedDict, TypeVar

VERSION = 1
T = TypeVar("T")

GANG, EACH = "gang", "each"  # how the processes of a role are restarted: all together, or each by itself
# Names of roles: nodes run ranks, or the driver of a pool; pods stand by for lost nodes. The postprocess of a stream
# may have workers of its own; else those that prepare do it.
NODE, WORKER, POSTPROCESS, STANDBY = "node", "worker", "postprocess", "standby"
WORKERS = (WORKER, POSTPROCESS)
ROLES = (NODE, *WORKERS, STANDBY)
_MAX_NUMBER = 1_000_000  # each member has files of its own


class Member(NamedTuple):
    """One of the members of a run, by its role and its number in it: node 0, worker 3; as text "node/0", "worker/3"."""

    role: str
    number: int

    def __str__(self) -> str:
        return "%s %d" % self

    @property
    def text(self) -> str:
        """As it is written where others read it."""
        return "%s/%d" % self

    @property
    def file(self) -> str:
        """As it is part of the names of files and folders."""
        return "%s-%d" % self


COORDINATOR = Member(NODE, 0)


def read_member(text: str) -> Member:
    """The member that *text* names, a number alone being that of a node; ValueError where it names none."""
    role, _, number = text.rpartition("/")
    role = role or NODE
    if role not in ROLES or not number.isdecimal() or str(int(number)) != number or int(number) >= _MAX_NUMBER:
        raise ValueError("%r is not a role and number" % text)
    return Member(role, int(number))


def nodes_in(values: Mapping[Member, T]) -> Dict[int, T]:
    """Those of *values* that belong to nodes, by number."""
    return {member.number: value for member, value in values.items() if member.role == NODE}


class Limits(TypedDict):
    """The limits of a run, times in seconds."""

    start: float
    run: Optional[float]
    no_progress: Optional[float]
    failures: int
    interruptions: int
    cost: Optional[float]  # US dollars
    silence: float  # after which a node is lost whose host answers nothing
    driver: Optional[float]  # that a pool stays up without a driver


class Role(TypedDict):
    """Processes of a run that do the same; a run's first role is its gang, of the nodes in ``hosts``.

    Its other roles, if any, are the workers of a pool or of the stages of a stream. The members of each have numbers
    from 0.
    """

    name: str
    count: int  # nodes; of workers, at the submission
    restart: str
    command: List[str]  # of each rank, or of a pool's driver; empty where there is no such command
    gpus: int  # per node
    environment: Dict[str, str]  # over that of the run
    table: str  # of the spec that describes it


class UserCode(TypedDict):
    """An archive of the user's code in a pod, and what to verify."""

    archive: str
    bytes: int
    sha256: str


# What each node copies before its ranks start; `stage` is "node" or "memory".
StagingPlan = TypedDict("StagingPlan", {"from": str, "to": str, "stage": str})


class Wheels(TypedDict):
    """The wheels of Dask for pods whose image has none: one archive in pieces, and what to verify."""

    name: str  # of the ConfigMaps with the pieces, before their numbers
    folder: str  # where pods have them, by number
    architecture: str
    sha256: str


class Block(TypedDict):
    """A Capacity Block: AWS starts nodes in it from *start*, and begins to end them 30 minutes before *end*."""

    reservation: str
    start: float  # Unix seconds, as the others
    leave: float  # by which a run ends its attempt there, with a checkpoint
    end: float


class _Placement(TypedDict):
    name: str
    node_selector: Dict[str, str]
    tolerations: List[Dict[str, Any]]
    machine: Dict[str, str]  # what is known of its nodes before they start
    rate: Optional[float]  # US dollars per hour of all nodes of the run, where known


class Placement(_Placement, total=False):
    """One node group that the gang of a run in an environment may be placed on, and what its pods need there."""

    block: Block  # of a group in a Capacity Block


class Ending(TypedDict):
    """By when a run has to end, in Unix seconds, and why."""

    at: float
    reason: str


class Deadline(TypedDict):
    """By when the work of a run has to be done, and by what its placement is decided; times in seconds."""

    at: Optional[float]  # Unix seconds, where it is a time
    after: Optional[float]  # since the submission, where it is a duration
    work: float
    lost_work: float
    market: Literal["auto", "spot", "on-demand"]
    budget: Optional[float]  # US dollars


class Forecast(TypedDict):
    """What a run with a deadline was expected to cost before it began, in US dollars."""

    dollars: float
    low: float  # 5 % of cases cost less
    high: float  # 5 % cost more
    in_time: float  # chance, from 0 to 1
    on_demand: float  # on on-demand nodes alone
    deadline: float  # seconds from the submission


class PlacedCapacity(TypedDict):
    """The node groups of a run, the first one first, and when another one is tried."""

    patience: float  # seconds for which pods wait for nodes
    partial: float  # seconds for which nodes that came wait for others
    retry: float  # seconds after which a gang on on-demand nodes asks spot groups again, see `placement.retry_at`
    overhead: float  # seconds that a start is expected to take
    pods: str  # selector of the gang's, and of those that stand by
    standby: int  # as many of these
    placements: List[Placement]
    reason: str  # for which it begins on the first
    deadline: Optional[Deadline]  # None where the order alone decides
    forecast: Optional[Forecast]


class Elastic(TypedDict):
    """The allowed numbers of nodes of a run that may have fewer than the hosts of its plan, the smallest first."""

    sizes: List[int]
    patience: float  # seconds for which the first attempt waits for the most nodes


class Mpi(TypedDict):
    """The mpirun of a run; without a path, agents look for the one of their image."""

    args: List[str]  # the user's
    path: Optional[str]
    family: int  # Open MPI's major version, where the path is known


class _RunPlan(TypedDict):
    version: int
    run: str
    name: str
    launcher: str
    run_on: str  # without a launcher: "all" nodes or the "first"
    slots: int
    hosts: List[str]  # by node index
    roles: List[Role]
    python: str  # that starts launchers and ranks
    pool_python: Optional[str]  # that of pools; where None, the agent's own
    mpi: Mpi
    folder: str  # where commands start
    environment: Dict[str, str]
    limits: Limits
    rate: Optional[float]  # US dollars per hour of all nodes, where known
    grace: float  # seconds for a checkpoint, and from a pod's notice to its end
    metrics_pattern: Optional[str]
    oversubscribed: bool
    work: Dict[str, Any]  # what identifies the work


class RunPlan(_RunPlan, total=False):
    """The plan of a run; what only one place needs may be missing."""

    # In pods.
    code: Optional[UserCode]
    staging: Optional[StagingPlan]
    files: Dict[str, str]  # texts by name, for the run folder
    machine: Dict[str, str]  # what is known of the nodes before they start
    versions: Optional[Dict[str, str]]  # of Python and packages of a driver outside of the pods; None where any fit
    wheels: Wheels  # filled in at submission
    capacity: PlacedCapacity  # where the gang may be placed on several node groups
    submitted: float  # Unix seconds by the API server's clock, filled in at submission
    attempts_before: int  # of earlier submissions, as far as the terminal knows that resumed the run
    preload: List[str]  # modules that a fork server imports for the ranks
    replaces_nodes: bool  # a lost node of the gang alone gets a new pod; else all of them do
    elastic: Elastic  # where the number of nodes changes between attempts
    margin: float  # seconds of the grace that are left when a notice ends an attempt; all where it is missing
    standby: List[str]  # host names of pods that stand by for lost nodes
    ending: Ending  # where nodes are there for a time and no others may follow
    # On this machine.
    backend: Literal["local"]
    spec: Dict[str, Any]
    notes: List[str]  # for people


class Command(TypedDict):
    """A process that an attempt starts for a member, with variables of its own."""

    member: Member
    name: str  # as messages name it
    arguments: List[str]
    environment: Dict[str, str]


def gang(plan: RunPlan) -> Role:
    """The role whose processes end together."""
    return plan["roles"][0]


def workers(plan: RunPlan) -> Dict[str, Role]:
    """The roles of a pool's or stream's workers by name; none for a run without."""
    return {role["name"]: role for role in plan["roles"] if role["restart"] == EACH}


def read_plan(path: str) -> RunPlan:
    """The plan in a file; OSError or ValueError where there is none."""
    with open(path, encoding="utf-8") as file:
        plan: RunPlan = json.load(file)
    return plan
