"""Node 0's end of the connections to the gang and to a pool's or stream's workers, which come and go in an attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import protocol, record
from .assignment import ExpectedPods
from .connection import Connection
from .launcher_output import Line
from .peers import Channel, Coordinator
from .plan import COORDINATOR, Member, RunPlan, workers

CONNECTION_LOST = "node 0 lost the connection to it"  # why a pod without a place of its own left


def tables(plan: RunPlan) -> dict[str, str]:
    """The tables of the spec that describe the workers of a run, by role."""
    return {name: role["table"] for name, role in workers(plan).items()}


class PoolCoordinator(Coordinator):
    """A `Coordinator` of a gang that expects any number of workers besides it, and no one of them to stay.

    A worker's restart count is the number of pods that its index had before: a newer pod takes over from an older one,
    whose connection may outlive it. *run_record* gets an event for each worker that joins or leaves; *tables* of
    the spec, by role, describe them.
    """

    def __init__(
        self,
        channel: Channel,
        expected: ExpectedPods,
        attempt: int,
        run_record: record.Record,
        tables: Mapping[str, str],
    ) -> None:
        super().__init__(channel, expected, attempt)
        self._record = run_record
        self._tables = tables
        self._leave_reasons: dict[Member, str] = {}  # of workers that have given notice

    def serve(self, timeout: float) -> None:
        """Handle what has arrived, and forget workers whose connection is lost."""
        super().serve(timeout)
        for member in [each for each, worker in self.workers.items() if worker.lost and each.role in self._tables]:
            self._lose(member)

    def _refusal(self, member: Member, restart_count: int) -> str | None:
        if member.role not in self._tables:
            return super()._refusal(member, restart_count)
        reason = self._superseded(member, restart_count)
        if not reason and member in self.workers:
            self._lose(member)
        return reason

    def _lose(self, member: Member) -> None:
        self.workers[member].close()
        reason = self._leave_reasons.pop(member, CONNECTION_LOST)
        if member in self.ready:
            self._record.event(record.LEFT, attempt=self._attempt, member=member.text, reason=reason)
        self._forget(member)

    def _forget(self, node: Member) -> None:
        super()._forget(node)
        self.ready.discard(node)

    def _handle(self, connection: Connection, message: dict[str, Any]) -> None:
        """Take a message of a node or worker into account; workers come and go within an attempt."""
        member = next((each for each, worker in self.workers.items() if worker is connection), None)
        if member is None:
            return  # a newer pod has taken over
        if member.role not in self._tables:
            super()._handle(connection, message)
        elif "notice" in message:
            self._leave_reasons[member] = str(message["notice"])
        elif "attempt" in message and message["attempt"] != self._attempt:
            return  # of one before
        elif "oom_killed" in message:
            self._print(
                "%s: the kernel killed a process for lack of memory: raise %s.memory"
                % (member, self._tables[member.role])
            )
        elif message.get("ended", protocol.NOT_RETRYABLE) != protocol.NOT_RETRYABLE:
            self._print("%s tries again: %s" % (member, message.get("reason")))
        else:
            super()._handle(connection, message)
            if "ready" in message:
                machine = self.machines[member]
                self._record.event(record.JOINED, attempt=self._attempt, member=member.text, machine=machine)

    def _print(self, text: str) -> None:
        self._record.line(self._attempt, COORDINATOR, Line(None, "e", text))
