"""Node 0's end of the connections to a gang with pods that stand by: they take the places of lost nodes."""

from __future__ import annotations

from typing import Any

from . import record
from .connection import Connection
from .context import AgentContext
from .lines import Line
from .peers import Channel, Coordinator
from .places import Places, Promotion

JOIN_GRACE = 5.0  # seconds in which agents that live join the next agent of node 0, before others take their places


class StandbyCoordinator(Coordinator):
    """A `Coordinator` whose workers have places (see `places`): the nodes of the gang first, then those that stand by.

    At the beginning of an attempt, and while one waits for nodes, pods that stand by and are ready take the places of
    lost ones. *run_record* gets an event for each that is ready, leaves or is promoted. *at_work* is that of `Places`.
    """

    def __init__(
        self,
        channel: Channel,
        context: AgentContext,
        attempt: int,
        run_record: record.Record,
        at_work: list[int] | None = None,
    ) -> None:
        self._hosts = [*context.hosts, *context.standby]
        super().__init__(channel, len(context.hosts), None, attempt, len(self._hosts))
        self._places = Places(self._nodes, len(self._hosts), at_work)
        self._record = run_record
        self._prepared: set[int] = set()  # places that stand by and have been ready since their agent has joined
        self._last_seen: dict[int, float] = {}  # when a node's lost agent was last heard, as `Clock.awake` counts
        self._promoted: dict[int, Promotion] = {}  # by node, until the ranks are started
        self._fill_after = self._clock.awake() + JOIN_GRACE

    @property
    def pods(self) -> list[int]:
        """The number of each node's pod."""
        return self._places.at_work

    def begin(self, attempt: int) -> None:
        """Begin the next attempt, with pods that stood by in the places of nodes that are lost or about to go away."""
        for node in self._leaving():
            self._last_seen[node] = self.workers[node].last_received
        super().begin(attempt)

    def serve(self, timeout: float) -> None:
        """Handle what has arrived, and fill places that have become vacant."""
        super().serve(timeout)
        for place in [place for place in self.workers if self._stands_by(place) and self.workers[place].lost]:
            self._lose(place, "node 0 lost the connection to it")
        if self._clock.awake() >= self._fill_after:
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
                    node=node,
                    standby=self._hosts[promotion.pod],
                    replaces=self._hosts[promotion.replaced],
                    seconds=None if lost_at is None else self._clock.awake() - lost_at,
                )
            self._promoted.clear()
            self._last_seen.clear()

    def _fill_places(self) -> list[Promotion]:
        vacant = [node for node in range(1, self._nodes) if node not in self.workers]
        promotions = self._places.promote(vacant, self._prepared) if vacant else []
        for promotion in promotions:
            self._prepared.discard(promotion.place)
            self.workers[promotion.node] = self.workers.pop(promotion.place)
            self.machines[promotion.node] = {**self.machines.pop(promotion.place), "node": promotion.node}
            before = self._promoted.get(promotion.node, promotion)
            self._promoted[promotion.node] = promotion._replace(replaced=before.replaced)
        return promotions

    def _stands_by(self, place: int) -> bool:
        return place >= self._nodes

    def _place(self, number: int) -> int:
        return self._places.of(number)

    def _welcome(self, node: int, **more: Any) -> None:
        super()._welcome(node, **more, place=node)

    def _refusal(self, node: int, restart_count: int) -> str | None:
        place = self._place(node) if 0 < node < self._numbers else 0
        if place in self.workers and self._stands_by(place) and restart_count >= self._restart_counts.get(node, 0):
            self._lose(place, "its agent has joined again")
        return super()._refusal(node, restart_count)

    def _lose(self, place: int, reason: str) -> None:
        """Forget a pod that stood by."""
        self.workers[place].close()
        if place in self._prepared:
            self._record.event(record.LEFT, attempt=self._attempt, standby=self._name(place), reason=reason)
        self._forget(place)

    def _forget(self, node: int) -> None:
        super()._forget(node)
        self._prepared.discard(node)

    def _name(self, place: int) -> str:
        return self._hosts[self._places.pods[place]]

    def _handle(self, connection: Connection, message: dict[str, Any]) -> None:
        place = next((place for place, worker in self.workers.items() if worker is connection), None)
        if place is None:
            return  # of a pod that has been lost meanwhile
        if not self._stands_by(place):
            super()._handle(connection, message)
            return
        self._unconfirmed.discard(place)
        if "notice" in message:
            self._lose(place, str(message["notice"]))
        elif message.get("attempt") != self._attempt:
            return  # of one before
        elif "ready" in message:
            self._prepared.add(place)
            machine = self.machines[place]
            self._record.event(record.JOINED, attempt=self._attempt, standby=self._name(place), machine=machine)
        elif "ended" in message:
            self._prepared.discard(place)
            text = "%s cannot stand by: %s" % (self._name(place), message.get("reason"))
            self._record.line(self._attempt, 0, Line(None, "e", text))
