"""The interface of what differs between places: how node 0 reaches the members of a run."""

from __future__ import annotations

from typing import Protocol, Union

from .context import AgentContext, Members
from .launch import Launch
from .outcomes import Outcome, StopSignal
from .record import Record


class Transport(Protocol):
    """How the members of a run are reached."""

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
