"""Node 0's end of the connections where pods stand by, which take the places of lost nodes."""

from __future__ import annotations

from typing import Any

from . import record
from .assignment import Assignment, ExpectedPods, Promotion
from .connection import Connection
from .context import AgentContext
from .launcher_output import Line
from .peers import Channel
from .plan import COORDINATOR, NODE, STANDBY, Member
from .pool_coordinator import CONNECTION_LOST, PoolCoordinator, tables

JOIN_GRACE = 5.0  # seconds in which agents that live join the next agent of node 0, before others take their places


class StandbyCoordinator(PoolCoordinator):
    """A `PoolCoordinator` with or without workers, where pods may do the work of other members (see `assignment`).

    At the beginning of an attempt, and while one waits for nodes, pods that stand by and are ready take the places of
    lost nodes. *run_record* gets an event for each that is ready, leaves or is promoted; *at_work* as for `Assignment`.
    """

    def __init__(
        self,
        channel: Channel,
        context: AgentContext,
        attempt: int,
        run_record: record.Record,
        at_work: list[Member] | None = None,
    ) -> None:
        nodes, standby = len(context.hosts), len(context.standby)
        expected = ExpectedPods(nodes, standby=standby)
        super().__init__(channel, expected, attempt, run_record, tables(context.plan))
        self._host = context.host
        self._assignment = Assignment(nodes, standby, at_work)
        self._prepared: set[Member] = set()  # standby members that have been ready since their agent has joined
        self._last_seen: dict[Member, float] = {}  # when a node's lost agent was last heard, as `Clock.uptime` counts
        self._promoted: dict[Member, Promotion] = {}  # by node, until the ranks are started
        self._fill_after = self._clock.uptime() + JOIN_GRACE

    @property
    def pods(self) -> list[Member]:
        """The pod of each node."""
        return self._assignment.at_work

    @property
    def standby_ready(self) -> int:
        """How many pods stand by and are ready."""
        return len(self._prepared)

    def begin(self, attempt: int) -> None:
        """Begin the next attempt, with pods that stood by in the places of nodes that are lost or about to go away."""
        for node in self._leaving():
            self._last_seen[node] = self.workers[node].last_received
        super().begin(attempt)

    def serve(self, timeout: float) -> None:
        """Handle what has arrived, and let pods that stand by do the work of lost nodes."""
        super().serve(timeout)
        for member in [member for member in self.workers if member.role == STANDBY and self.workers[member].lost]:
            self._lose_standby(member, CONNECTION_LOST)
        if self._clock.uptime() >= self._fill_after:
            for promotion in self._fill_vacancies():
                self._welcome(promotion.node)

    def broadcast(self, **message: Any) -> None:
        """Send a message to every agent; record the promotions with which the ranks are started."""
        super().broadcast(**message)
        if "go" in message:
            for node, promotion in sorted(self._promoted.items()):
                if promotion.pod == promotion.replaced:  # which came back before any other
                    continue
                lost_at = self._last_seen.get(node)
                self._record.event(
                    record.PROMOTED,
                    attempt=self._attempt,
                    node=node.number,
                    standby=self._host(promotion.pod),
                    replaces=self._host(promotion.replaced),
                    seconds=None if lost_at is None else self._clock.uptime() - lost_at,
                )
            self._promoted.clear()
            self._last_seen.clear()

    def _fill_vacancies(self) -> list[Promotion]:
        nodes = [Member(NODE, index) for index in range(1, self._nodes)]
        vacant = [node for node in nodes if node not in self.workers]
        promotions = self._assignment.promote(vacant, self._prepared) if vacant else []
        for promotion in promotions:
            self._prepared.discard(promotion.standby)
            self.workers[promotion.node] = self.workers.pop(promotion.standby)
            self.machines[promotion.node] = {**self.machines.pop(promotion.standby), "member": promotion.node.text}
            before = self._promoted.get(promotion.node, promotion)
            self._promoted[promotion.node] = promotion._replace(replaced=before.replaced)
        return promotions

    def _member_of(self, pod: Member) -> Member:
        return self._assignment.of(pod) if pod in self._assignment.pods.values() else pod

    def _welcome(self, node: Member, **more: Any) -> None:
        super()._welcome(node, **more, member=node.text)

    def _refusal(self, pod: Member, restart_count: int) -> str | None:
        member = self._member_of(pod)
        is_back = member in self.workers and restart_count >= self._restart_counts.get(pod, 0)
        if member.role == STANDBY and is_back:
            self._lose_standby(member, "its agent has joined again")
        return super()._refusal(pod, restart_count)

    def _lose_standby(self, member: Member, reason: str) -> None:
        """Forget a pod that stood by."""
        self.workers[member].close()
        if member in self._prepared:
            self._record.event(record.LEFT, attempt=self._attempt, standby=self._name(member), reason=reason)
        self._forget(member)

    def _forget(self, node: Member) -> None:
        super()._forget(node)
        self._prepared.discard(node)

    def _name(self, member: Member) -> str:
        return self._host(self._assignment.pods[member])

    def _handle(self, connection: Connection, message: dict[str, Any]) -> None:
        """Take a message of a node, or of a pod that stands by, into account."""
        member = next((member for member, worker in self.workers.items() if worker is connection), None)
        if member is None:
            return  # of a pod that has been lost meanwhile
        if member.role != STANDBY:
            super()._handle(connection, message)
            return
        self._unconfirmed.discard(member)
        if "notice" in message:
            self._lose_standby(member, str(message["notice"]))
        elif message.get("attempt") != self._attempt:
            return  # of one before
        elif "ready" in message:
            self._prepared.add(member)
            machine = self.machines[member]
            self._record.event(record.JOINED, attempt=self._attempt, standby=self._name(member), machine=machine)
        elif "ended" in message:
            self._prepared.discard(member)
            text = "%s cannot stand by: %s" % (self._name(member), message.get("reason"))
            self._record.line(self._attempt, COORDINATOR, Line(None, "e", text))
