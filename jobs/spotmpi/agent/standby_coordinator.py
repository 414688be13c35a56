"""Node 0's end of the connections where pods stand by, which take the places of lost nodes."""

from __future__ import annotations

from typing import Any

from . import record
from .connection import Connection
from .context import AgentContext
from .launcher_output import Line
from .peers import Channel
from .places import ExpectedPods, Places, Promotion
from .plan import COORDINATOR, NODE, STANDBY, Member
from .pool_coordinator import PoolCoordinator, tables

JOIN_GRACE = 5.0  # seconds in which agents that live join the next agent of node 0, before others take their places


class StandbyCoordinator(PoolCoordinator):
    """A `PoolCoordinator` with or without workers, whose other members have places (see `places`).

    At the beginning of an attempt, and while one waits for nodes, pods that stand by and are ready take the places of
    lost nodes. *run_record* gets an event for each that is ready, leaves or is promoted. *at_work* is that of `Places`.
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
        self._places = Places(nodes, standby, at_work)
        self._prepared: set[Member] = set()  # places that stand by and have been ready since their agent has joined
        self._last_seen: dict[Member, float] = {}  # when a node's lost agent was last heard, as `Clock.uptime` counts
        self._promoted: dict[Member, Promotion] = {}  # by node, until the ranks are started
        self._fill_after = self._clock.uptime() + JOIN_GRACE

    @property
    def pods(self) -> list[Member]:
        """The pod of each node."""
        return self._places.at_work

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
        """Handle what has arrived, and fill places that have become vacant."""
        super().serve(timeout)
        for place in [place for place in self.workers if place.role == STANDBY and self.workers[place].lost]:
            self._lose_standby(place, "node 0 lost the connection to it")
        if self._clock.uptime() >= self._fill_after:
            for promotion in self._fill_places():
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

    def _fill_places(self) -> list[Promotion]:
        nodes = [Member(NODE, index) for index in range(1, self._nodes)]
        vacant = [node for node in nodes if node not in self.workers]
        promotions = self._places.promote(vacant, self._prepared) if vacant else []
        for promotion in promotions:
            self._prepared.discard(promotion.place)
            self.workers[promotion.node] = self.workers.pop(promotion.place)
            self.machines[promotion.node] = {**self.machines.pop(promotion.place), "member": promotion.node.text}
            before = self._promoted.get(promotion.node, promotion)
            self._promoted[promotion.node] = promotion._replace(replaced=before.replaced)
        return promotions

    def _place(self, pod: Member) -> Member:
        return self._places.of(pod) if pod in self._places.pods.values() else pod

    def _welcome(self, node: Member, **more: Any) -> None:
        super()._welcome(node, **more, place=node.text)

    def _refusal(self, member: Member, restart_count: int) -> str | None:
        place = self._place(member)
        is_back = place in self.workers and restart_count >= self._restart_counts.get(member, 0)
        if place.role == STANDBY and is_back:
            self._lose_standby(place, "its agent has joined again")
        return super()._refusal(member, restart_count)

    def _lose_standby(self, place: Member, reason: str) -> None:
        """Forget a pod that stood by."""
        self.workers[place].close()
        if place in self._prepared:
            self._record.event(record.LEFT, attempt=self._attempt, standby=self._name(place), reason=reason)
        self._forget(place)

    def _forget(self, node: Member) -> None:
        super()._forget(node)
        self._prepared.discard(node)

    def _name(self, place: Member) -> str:
        return self._host(self._places.pods[place])

    def _handle(self, connection: Connection, message: dict[str, Any]) -> None:
        """Take a message of a node, or of a pod that stands by, into account."""
        place = next((place for place, worker in self.workers.items() if worker is connection), None)
        if place is None:
            return  # of a pod that has been lost meanwhile
        if place.role != STANDBY:
            super()._handle(connection, message)
            return
        self._unconfirmed.discard(place)
        if "notice" in message:
            self._lose_standby(place, str(message["notice"]))
        elif message.get("attempt") != self._attempt:
            return  # of one before
        elif "ready" in message:
            self._prepared.add(place)
            machine = self.machines[place]
            self._record.event(record.JOINED, attempt=self._attempt, standby=self._name(place), machine=machine)
        elif "ended" in message:
            self._prepared.discard(place)
            text = "%s cannot stand by: %s" % (self._name(place), message.get("reason"))
            self._record.line(self._attempt, COORDINATOR, Line(None, "e", text))
