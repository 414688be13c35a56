"""Node 0's end of the connections to a pool's workers, which come and go without ending the attempt."""

from __future__ import annotations

from typing import Any

from . import protocol, record
from .connection import Connection
from .lines import Line
from .peers import PORT, Coordinator


class PoolCoordinator(Coordinator):
    """A `Coordinator` that expects any number of workers at any time, and no one of them to stay.

    A worker's generation is the number of pods that its index had before: a newer pod takes over from an older one,
    whose connection may outlive it. *run_record* gets an event for each worker that joins or leaves.
    """

    def __init__(self, token: str, attempt: int, run_record: record.Record, port: int = PORT) -> None:
        super().__init__(token, 1, 0, attempt, port)
        self._record = run_record
        self._generations: dict[int, int] = {}  # of the newest pod of each node
        self._leave_reasons: dict[int, str] = {}  # of nodes that have given notice

    def serve(self, timeout: float) -> None:
        """Handle what has arrived, and forget workers whose connection is lost."""
        super().serve(timeout)
        for node in [node for node, worker in self.workers.items() if worker.lost]:
            self._lose(node)

    def name_of(self, node: int) -> str:
        """A node as messages name it: worker k is node k + 1."""
        return "worker %d" % (node - 1)

    def _refusal(self, node: int, generation: int) -> str | None:
        if node < 1:
            return "node %d is not a worker" % node
        if generation < self._generations.get(node, 0):
            return "a newer pod of %s has joined" % self.name_of(node)
        self._generations[node] = generation
        if node in self.workers:
            self._lose(node)
        return None

    def _lose(self, node: int) -> None:
        self.workers[node].close()
        reason = self._leave_reasons.pop(node, "node 0 lost the connection to it")
        if node in self.ready:
            self._record.event(record.LEFT, attempt=self._attempt, worker=node - 1, reason=reason)
        self._forget(node)

    def _forget(self, node: int) -> None:
        self._unconfirmed.discard(node)
        self.ready.discard(node)
        del self.workers[node], self.machines[node]

    def _handle(self, connection: Connection, message: dict[str, Any]) -> None:
        node = next((node for node, worker in self.workers.items() if worker is connection), None)
        if node is None:
            return  # a newer pod has taken over
        if "notice" in message:
            self._leave_reasons[node] = str(message["notice"])
        elif "oom_killed" in message:
            self._print("%s: the kernel killed a process for lack of memory: raise pool.memory" % self.name_of(node))
        elif message.get("ended", protocol.NOT_RETRYABLE) != protocol.NOT_RETRYABLE:
            self._print("%s tries again: %s" % (self.name_of(node), message.get("reason")))
        else:
            super()._handle(connection, message)
            if "ready" in message:
                machine = self.machines[node]
                self._record.event(record.JOINED, attempt=self._attempt, worker=node - 1, machine=machine)

    def _print(self, text: str) -> None:
        self._record.line(self._attempt, 0, Line(None, "e", text))
