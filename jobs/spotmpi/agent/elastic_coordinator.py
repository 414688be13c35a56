"""Node 0's end of the connections to a gang that may have fewer nodes than pods: each attempt has those there."""

from __future__ import annotations

from typing import Any

from . import protocol, record
from .connection import Connection
from .context import AgentContext
from .launch import largest_size
from .peers import JOIN_GRACE, Channel, Coordinator
from .plan import COORDINATOR, NODE, STANDBY, Member

_SHARE_OF_START = 0.9  # of limits.start for which the first attempt waits for more nodes at most


class ElasticCoordinator(Coordinator):
    """A `Coordinator` that chooses at the beginning of each attempt how many pods are nodes; others stand by.

    These are the most allowed ones that are ready. Until the first ranks of a submission have started, it waits for the
    others for the patience of the plan, and once the run *began* only for agents that may still join node 0's new one.
    A gang that was moved to another node group begins there anew.
    """

    def __init__(
        self, channel: Channel, context: AgentContext, attempt: int, run_record: record.Record, began: bool
    ) -> None:
        self._elastic = context.plan["elastic"]
        super().__init__(channel, context, attempt, run_record)
        self._all = self._nodes
        self._patience = min(self._elastic["patience"], _SHARE_OF_START * context.plan["limits"]["start"])
        self._wait = JOIN_GRACE if began else self._patience
        self._since = self._clock.uptime()
        self._chosen = False

    @property
    def hint(self) -> str:
        """What happens while nodes are missing."""
        if self._chosen:
            return ""
        sizes = ", ".join(map(str, self._elastic["sizes"]))
        return "; after %s it begins on as many of %s nodes as are ready" % (protocol.duration(self._wait), sizes)

    def begin(self, attempt: int) -> None:
        """Begin the next attempt: any pod may be one of its nodes."""
        self._arrange(sorted(self._assignment.pods, key=lambda member: (member.role != NODE, member.number)), self._all)
        self._prepared.clear()
        if self._chosen:
            self._wait = JOIN_GRACE
        self._chosen, self._since = False, self._clock.uptime()
        super().begin(attempt)

    def serve(self, timeout: float) -> None:
        """Handle what has arrived, and choose the nodes of the attempt once that is due."""
        super().serve(timeout)
        if not self._chosen:
            self._choose()

    def larger_size(self) -> int | None:
        """The most allowed nodes that are ready, where these are more than the attempt has."""
        ready = [member for member in self._live() if member.role == NODE or member in self._prepared]
        size = largest_size(self._elastic, 1 + len(ready)) if self._chosen else None
        return size if size is not None and size > self._nodes else None

    def others(self) -> int:
        """The pods that stand by."""
        return sum(member.role == STANDBY for member in self.workers)

    def _live(self) -> list[Member]:
        return [member for member, worker in self.workers.items() if not worker.lost and member not in self.notices]

    def _choose(self) -> None:
        """Choose the nodes of the attempt once no more are waited for: the largest size that those ready fill."""
        live, waited = self._live(), self._clock.uptime() - self._since
        ready = [member for member in live if member in self.ready]
        is_getting_ready = len(ready) < len(live) and waited < self._patience
        if 1 + len(ready) < self._all and (waited < self._wait or is_getting_ready):
            return
        size = largest_size(self._elastic, 1 + len(ready))
        if size is None:
            return
        self._chosen = True
        if size < self._all:
            first = [COORDINATOR, *sorted(ready)]
            self._arrange([*first, *(member for member in self._assignment.pods if member not in first)], size)
            self.ready.clear()
            for member in self.workers:
                self._welcome(member)

    def _arrange(self, order: list[Member], nodes: int) -> None:
        """Assign all pods anew in this *order* of present members: the first *nodes* are nodes, others stand by."""
        new = [Member(NODE, index) if index < nodes else Member(STANDBY, index - nodes) for index in range(self._all)]
        member_of = dict(zip(order, new))  # noqa: B905 (Python 3.8 has no strict)
        self._assignment.pods = {member_of[before]: self._assignment.pods[before] for before in order}
        by_member = (self.workers, self.machines, self.hardware, self.notices, self.ended, self._last_seen)
        for values in by_member:
            _rename(values, member_of)
        for member, machine in self.machines.items():
            machine["member"] = member.text
        for members in (self._unconfirmed, self.idle, self.oom_killed):
            moved = {member_of[member] for member in members}
            members.clear()
            members.update(moved)
        self._nodes = nodes

    def _welcome(self, node: Member, **more: Any) -> None:
        super()._welcome(node, **more, nodes=self._nodes)

    def _handle(self, connection: Connection, message: dict[str, Any]) -> None:
        if "unfit" in message:
            self._leave_out(connection, str(message.get("notice")))
        elif "ready" not in message or message.get("nodes") == self._nodes:  # else it is about to get ready anew
            super()._handle(connection, message)

    def _leave_out(self, connection: Connection, reason: str) -> None:
        """Go on without a pod whose machine has failed its check, which comes before it is a node of an attempt."""
        member = next((member for member, worker in self.workers.items() if worker is connection), None)
        if member is None:
            return  # of a pod that has been lost meanwhile
        machine = self.machines[member].get("name")
        if machine is not None:
            self.avoid(str(machine), reason)
        connection.close()
        self._forget(member)


def _rename(values: dict[Member, Any], member_of: dict[Member, Member]) -> None:
    moved = {member_of[member]: value for member, value in values.items()}
    values.clear()
    values.update(moved)
