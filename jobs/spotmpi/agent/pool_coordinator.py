"""Node 0's end of the connections to the gang and to a pool's or stream's workers, which come and go in an attempt."""

from __future__ import annotations

from typing import Any

from . import protocol, record
from .connection import Connection
from .lines import Line
from .peers import Channel, Coordinator


class PoolCoordinator(Coordinator):
    """A `Coordinator` of a gang that expects any number of workers besides it, and no one of them to stay.

    Their nodes are those after the gang's. A worker's restart count is the number of pods that its index had before: a
    newer pod takes over from an older one, whose connection may outlive it. *run_record* gets an event for each worker
    that joins or leaves; *table* of the spec describes them.
    """

    def __init__(
        self,
        channel: Channel,
        nodes: int,
        restart_count: int | None,
        attempt: int,
        run_record: record.Record,
        table: str = "pool",
    ) -> None:
        super().__init__(channel, nodes, restart_count, attempt)
        self._record = run_record
        self._table = table
        self._leave_reasons: dict[int, str] = {}  # of nodes that have given notice

    def serve(self, timeout: float) -> None:
        """Handle what has arrived, and forget workers whose connection is lost."""
        super().serve(timeout)
        for node in [node for node, worker in self.workers.items() if worker.lost and self._is_worker(node)]:
            self._lose(node)

    def name_of(self, node: int) -> str:
        """A node as messages name it: worker k is the k-th node after the gang's."""
        return "worker %d" % (node - self._nodes) if self._is_worker(node) else super().name_of(node)

    def _is_worker(self, node: int) -> bool:
        return node >= self._nodes

    def _refusal(self, node: int, restart_count: int) -> str | None:
        if not self._is_worker(node):
            return super()._refusal(node, restart_count)
        if restart_count < self._restart_counts.get(node, 0):
            return "a newer pod of %s has joined" % self.name_of(node)
        self._restart_counts[node] = restart_count
        if node in self.workers:
            self._lose(node)
        return None

    def _lose(self, node: int) -> None:
        self.workers[node].close()
        reason = self._leave_reasons.pop(node, "node 0 lost the connection to it")
        if node in self.ready:
            self._record.event(record.LEFT, attempt=self._attempt, worker=node - self._nodes, reason=reason)
        self._forget(node)

    def _forget(self, node: int) -> None:
        super()._forget(node)
        self.ready.discard(node)

    def _handle(self, connection: Connection, message: dict[str, Any]) -> None:
        node = next((node for node, worker in self.workers.items() if worker is connection), None)
        if node is None:
            return  # a newer pod has taken over
        if not self._is_worker(node):
            super()._handle(connection, message)
        elif "notice" in message:
            self._leave_reasons[node] = str(message["notice"])
        elif "attempt" in message and message["attempt"] != self._attempt:
            return  # of one before
        elif "oom_killed" in message:
            self._print(
                "%s: the kernel killed a process for lack of memory: raise %s.memory"
                % (self.name_of(node), self._table)
            )
        elif message.get("ended", protocol.NOT_RETRYABLE) != protocol.NOT_RETRYABLE:
            self._print("%s tries again: %s" % (self.name_of(node), message.get("reason")))
        else:
            super()._handle(connection, message)
            if "ready" in message:
                machine = self.machines[node]
                self._record.event(record.JOINED, attempt=self._attempt, worker=node - self._nodes, machine=machine)

    def _print(self, text: str) -> None:
        self._record.line(self._attempt, 0, Line(None, "e", text))
