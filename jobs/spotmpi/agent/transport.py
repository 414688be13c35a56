"""The interfaces of what differs between places: how node 0 reaches members, and which workers an agent restarts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Dict, List, Optional, Protocol, Set, Tuple, Union

from .context import AgentContext
from .launch import Launch
from .outcomes import Outcome, StopSignal
from .plan import Command, Member
from .record import Record


class Members(Protocol):
    """The other nodes of a run in its current attempt, as node 0 knows them; the dictionaries are by member."""

    @property
    def workers(self) -> Mapping[Member, Any]:
        """Connections."""
        ...

    @property
    def machines(self) -> Mapping[Member, Dict[str, Any]]:
        """As `hardware.identify` gives them, that of node 0 included where machines are billed."""
        ...

    @property
    def hardware(self) -> Mapping[Member, Dict[str, Any]]:
        """As `hardware.describe_pod` gives it."""
        ...

    @property
    def notices(self) -> Mapping[Member, str]:
        """Why nodes are about to go away."""
        ...

    @property
    def unfit(self) -> Mapping[Member, str]:
        """What is wrong with the nodes that have failed their check."""
        ...

    @property
    def ended(self) -> Mapping[Member, Tuple[int, str]]:
        """Exit code and reason of the launchers that other agents started."""
        ...

    @property
    def idle(self) -> Set[Member]:
        """The nodes on which no process of the attempt is left."""
        ...

    @property
    def pods(self) -> Optional[List[Member]]:
        """The pods of all nodes, by what they were at the beginning; None where these never change."""
        ...

    def larger_size(self) -> Optional[int]:
        """The number of nodes with which the run could go on now, where that is more than the attempt has."""
        ...

    def others(self) -> int:
        """How many nodes are there besides those of the attempt, of a run that may have fewer."""
        ...

    @property
    def standby_ready(self) -> int:
        """How many pods stand by and are ready."""
        ...

    def is_whole(self) -> bool:
        """Whether the next attempt can run on the same nodes: none is lost, or about to go away."""
        ...

    @property
    def gang(self) -> Mapping[Member, Any]:
        """The connections to nodes."""
        ...

    def lost(self) -> list[Member]:
        """The nodes that are lost though they have not reported their end."""
        ...

    def serve(self, timeout: float) -> None:
        """Handle what has arrived, waiting at most *timeout* seconds for something."""
        ...

    def name_of(self, node: Member) -> str:
        """A member as messages name it."""
        ...

    def dismiss(self, node: Member, reason: str) -> None:
        """Let another node leave the run."""
        ...

    def broadcast(self, **message: Any) -> None:
        """Send a message to every member."""
        ...

    def broadcast_to_gang(self, **message: Any) -> None:
        """Send a message to every node."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class Transport(Protocol):
    """How the members of a run are reached, and whether something starts node 0's agent again."""

    supervised: bool  # by the exit code of node 0's agent, something decides whether to start all agents anew

    def open_record(self, context: AgentContext) -> Record:
        """The record of the run."""
        ...

    def open_members(self, context: AgentContext, number: int, record: Record) -> Union[Members, Outcome]:
        """The other nodes of attempt *number*, to which other methods refer from now on, or why it cannot begin.

        Those of the attempt before stay, unless it was closed: each ends what is left of that one.
        """
        ...

    def prepare(
        self, context: AgentContext, number: int, stop_signal: StopSignal, record: Record, since: float
    ) -> Union[Launch, Outcome]:
        """What node 0 starts once all members are ready, or how the attempt ended before.

        *since* is the Unix time from which on node 0 works for the attempt.
        """
        ...

    def oom_nodes(self, context: AgentContext) -> list[int]:
        """The nodes where the kernel has killed a process for lack of memory, as far as is known."""
        ...

    def remote_launchers(self, context: AgentContext) -> int:
        """How many launchers other agents start."""
        ...


class ReplicatedRole(Protocol):
    """A role whose processes are restarted each by itself."""

    cgroup: str  # folder of the control group that counts kills for lack of memory
    interruption_pause: float  # seconds before a process is started again that ended as interrupted

    def members(self) -> Collection[Member]:
        """Those whose processes are to run now."""
        ...

    def is_ready(self) -> bool:
        """Whether processes may be started now."""
        ...

    def command(self, member: Member) -> Command:
        """The process of a member, whose working folder is that of its earlier processes."""
        ...

    def started(self, member: Member, process: int) -> None:
        """Learn the id of a process."""
        ...

    def label(self, member: Member) -> str:
        """What stands before the reason for which a process can never work; empty where others name it."""
        ...
