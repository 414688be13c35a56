"""The interfaces of what differs between places: how node 0 reaches members, and which workers an agent restarts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, Union

from .context import AgentContext, Members
from .launch import Launch
from .outcomes import Outcome, StopSignal
from .plan import Command, Member
from .record import Record


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
