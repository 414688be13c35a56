"""A worker of a pool or stream: runs the worker process for as long as the run is up, whatever happens to either.

It joins node 0, starts the worker process, and starts another one when that ends. Node 0 may be replaced: then it joins
the next one. It ends when node 0 says that the pool is over, or when this pod received a signal.
"""

from __future__ import annotations

import os
import sys

from . import hardware, protocol, record
from .attempt import Attempt
from .context import AgentContext
from .files import error_text, exists
from .launch import Launch
from .launcher_output import Line
from .node import check_hardware, connected, location, unpack_code, write_environment
from .outcomes import NOT_RETRYABLE, STOPPED, Outcome, StopRequest, outcome_of_error
from .pod_record import PodRecord
from .replicas import Replicas
from .stop_requests import PreemptionNotice
from .tcp import Tcp
from .worker import CoordinatorClient, join_coordinator, stage_data, without_progress

RETURN_LIMIT = 3600.0  # seconds for which a worker waits for node 0 to come back; its node costs money meanwhile
RETRY_PAUSE = 10.0  # seconds before an error of this pod is tried again
_LEAVE = StopRequest(Outcome(STOPPED, "this worker leaves the pool"), False)


class PoolCoordinatorClient(CoordinatorClient):
    """The connection to node 0 of a pool; a `StopSignal` that also ends the worker process on notice."""

    def pending(self) -> StopRequest | None:
        """The `StopRequest` for the worker process, or None."""
        return super().pending() or (_LEAVE if self.notice.reason else None)

    @property
    def is_connected(self) -> bool:
        """Whether node 0 answers and this worker stays."""
        return not (self.over or self.connection.lost or self.notice.reason)


def run(context: AgentContext, transport: Tcp, notice: PreemptionNotice, started: float) -> int:
    """Work for the pool until it is over; the pod's exit code."""
    try:
        os.makedirs(context.folder, exist_ok=True)
        # Kubernetes counts failed pods, but forgets them when a pool shrinks; where the run folder lasts, it knows
        # better.
        logs = os.path.join(context.folder, "logs")
        paths = {each: os.path.join(logs, str(each), context.member.file + ".log") for each in record.numbers(logs)}
        own = [each for each, path in paths.items() if exists(path)]
        number = 1 + max(context.restart_count, max(own, default=0))
        pod_record = PodRecord(context.folder, context.clock)
    except OSError as error:
        sys.stderr.write("the output of this worker cannot be recorded: %s\n" % error_text(error))
        return protocol.FAILED
    try:
        return PoolWorker(context, transport, notice, pod_record, number).run(started)
    finally:
        pod_record.close()


class PoolWorker:
    """What one worker's agent does; *number* is the attempt under which its output is recorded."""

    def __init__(
        self, context: AgentContext, transport: Tcp, notice: PreemptionNotice, pod_record: PodRecord, number: int
    ) -> None:
        self._context = context
        self._transport = transport
        self._notice = notice
        self._record = pod_record
        self._number = number
        self._hardware: hardware.Facts | None = None  # once this pod is prepared

    def run(self, since: float) -> int:
        """Join node 0 as often as there is one, which is expected within ``limits.start`` at first.

        *since* is the Unix time from which on this node works for the run.

        A node 0 that was lost may need long for another node, while nobody follows the run: nothing starts a worker
        again that has ended, so it waits for longer.
        """
        limit = self._context.plan["limits"]["start"]
        if self._context.restart_count:
            limit = max(limit, RETURN_LIMIT)
        while True:
            joined = join_coordinator(self._context, self._transport, self._notice, since, limit)
            if joined is None:
                break
            coordinator = PoolCoordinatorClient(joined, self._notice, self._context.mounts.cgroup)
            self._take_part(coordinator)
            while coordinator.is_connected and coordinator.newest > coordinator.attempt:
                coordinator.begin()
                self._take_part(coordinator)
            coordinator.connection.close()
            if coordinator.over:
                return 0
            if self._notice.reason:
                break
            since, limit = self._context.clock(), max(limit, RETURN_LIMIT)
        if self._notice.reason:
            return protocol.INTERRUPTED
        name = "limits.start (%gs)" if limit == self._context.plan["limits"]["start"] else "%gs"
        self._print("no connection to node 0 within %s: this worker ends" % (name % limit))
        return 0

    def _take_part(self, coordinator: PoolCoordinatorClient) -> None:
        """`_work` in the attempt of *coordinator*, with its failure reported."""
        failure = self._work(coordinator)
        if failure:
            coordinator.report_end(failure.exit_code, failure.reason)
            self._wait(coordinator, float("inf") if failure.cause == NOT_RETRYABLE else RETRY_PAUSE)

    def _work(self, coordinator: PoolCoordinatorClient) -> Outcome | None:
        """Keep a worker process running while *coordinator* is alive; the outcome where no other attempt can help."""
        self._context = connected(self._context, coordinator.connection.address)
        try:
            if self._hardware is None:
                facts = check_hardware(self._context)
                unpack_code(self._context)
                if not stage_data(self._context, coordinator):  # which reports its failure
                    self._wait(coordinator, RETRY_PAUSE)
                    return None
                self._hardware = facts
            coordinator.report(ready=1, hardware=self._hardware)
            return self._keep_running(coordinator, write_environment(self._context, self._number))
        except hardware.Incompatible as error:
            return Outcome(NOT_RETRYABLE, str(error))
        except OSError as error:
            return outcome_of_error(error, self._context.folder)

    def _keep_running(self, coordinator: PoolCoordinatorClient, environment: dict[str, str]) -> Outcome | None:
        """Run one worker process after another, until the attempt is over; the outcome where none can ever work."""
        replicas = Replicas(self._context, location(self._context, environment))
        launch = Launch([], environment, self._context.pid_file, replicas)
        plan, clock = without_progress(self._context.plan), self._context.clock  # a worker without calls is not stuck
        outcome = Attempt(self._number, plan, launch, self._record, coordinator, clock).run()
        return outcome if outcome.cause == NOT_RETRYABLE else None

    def _print(self, text: str) -> None:
        self._record.line(self._number, self._context.member, Line(None, "e", text))

    def _wait(self, coordinator: PoolCoordinatorClient, seconds: float) -> None:
        """Serve *coordinator* for so long, or until its attempt is over."""
        clock = self._context.clock
        deadline = clock.uptime() + seconds
        while not (coordinator.ends or self._notice.reason) and clock.uptime() < deadline:
            coordinator.wait()
