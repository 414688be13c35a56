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
from .files import mode
from .lines import Line
from .node import POLL_INTERVAL, Notice, attempt_plan, check_hardware, unpack_code, write_environment
from .outcomes import INTERRUPTION, NOT_RETRYABLE, STOPPED, Outcome, StopRequest, outcome_of_error
from .pod_record import PodRecord
from .worker import CoordinatorLink, join_coordinator, stage_data

STABLE = 30.0  # seconds after which a worker process that ends is started again at once
SCHEDULER_GRACE = 2.0  # seconds in which node 0 follows its scheduler
RETURN_LIMIT = 3600.0  # seconds for which a worker waits for node 0 to come back; its node costs money meanwhile
MAX_PAUSE = 10.0  # seconds between two starts of worker processes that end early
_LEAVE = StopRequest(Outcome(STOPPED, "this worker leaves the pool", 0), False)


class PoolLink(CoordinatorLink):
    """The connection to node 0 of a pool; a `StopSource` that also ends the worker process on notice."""

    def pending(self) -> StopRequest | None:
        """The `StopRequest` for the worker process, or None."""
        return super().pending() or (_LEAVE if self.notice.reason else None)

    @property
    def is_alive(self) -> bool:
        """Whether node 0 answers and this worker has work to do."""
        return not (self.over or self.connection.lost or self.notice.reason)


def run(context: AgentContext, notice: Notice, started: float) -> int:
    """Work for the pool until it is over; the pod's exit code."""
    try:
        os.makedirs(context.folder, exist_ok=True)
        number = _attempt_number(context)
        pod_record = PodRecord(context.folder, context.clock)
    except OSError as error:
        sys.stderr.write("the output of this worker cannot be recorded: %s\n" % error)
        return protocol.FAILED
    try:
        return PoolWorker(context, notice, pod_record, number).run(started)
    finally:
        pod_record.close()


def _attempt_number(context: AgentContext) -> int:
    """The number of this pod among those of its worker, by which its lines are known.

    Kubernetes counts failed pods, but forgets them when a pool shrinks; where the run folder lasts, it knows better.
    """
    logs = os.path.join(context.folder, "logs")
    paths = {each: os.path.join(logs, str(each), "node-%d.log" % context.node) for each in record.numbers(logs)}
    own = [each for each, path in paths.items() if mode(path) is not None]
    return 1 + max(context.generation, max(own, default=0))


class PoolWorker:
    """What one worker's agent does; *number* is the attempt under which its output is recorded."""

    def __init__(self, context: AgentContext, notice: Notice, pod_record: PodRecord, number: int) -> None:
        self._context = context
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
        if self._context.generation:
            limit = max(limit, RETURN_LIMIT)
        while True:
            joined = join_coordinator(self._context, self._notice, since, limit)
            if joined is None:
                break
            link = PoolLink(joined[0], self._notice, lambda: None, self._context.mounts.cgroup)
            failure = self._work(link)
            if failure:
                link.report_end(failure.exit_code, failure.reason)
                self._wait(link, float("inf") if failure.cause == NOT_RETRYABLE else MAX_PAUSE)
            link.connection.close()
            if link.over:
                return 0
            if self._notice.reason:
                break
            since, limit = self._context.clock(), max(limit, RETURN_LIMIT)
        if self._notice.reason:
            return protocol.INTERRUPTED
        name = "limits.start (%gs)" if limit == self._context.plan["limits"]["start"] else "%gs"
        self._print("no connection to node 0 within %s: this worker ends" % (name % limit))
        return 0

    def _work(self, link: PoolLink) -> Outcome | None:
        """Keep a worker process running while *link* is alive; the outcome where no other attempt can help."""
        try:
            if self._hardware is None:
                facts = check_hardware(self._context)
                unpack_code(self._context)
                if not stage_data(self._context, link):  # which reports its failure
                    self._wait(link, MAX_PAUSE)
                    return None
                self._hardware = facts
            link.connection.send(ready=1, hardware=self._hardware)
            return self._keep_running(link, write_environment(self._context, self._number))
        except hardware.Incompatible as error:
            return Outcome(NOT_RETRYABLE, str(error), protocol.NOT_RETRYABLE)
        except OSError as error:
            outcome = outcome_of_error(error)
            if error.errno in record.DISK_FULL:
                return outcome._replace(reason=record.disk_full_reason(error, self._context.folder))
            return outcome

    def _keep_running(self, link: PoolLink, environment: dict[str, str]) -> Outcome | None:
        clock, pause = self._context.clock, POLL_INTERVAL
        while link.is_alive:
            plan = attempt_plan(self._context, environment)
            plan["limits"] = {**plan["limits"], "no_progress": None}  # a worker without calls is not stuck
            started = clock.awake()
            outcome = Attempt(self._number, plan, self._record, link, {"start": None, "run": None}, clock).run()
            reason = (outcome.reason or "it ended").replace("the launcher on node %d" % self._context.node, "it")
            if outcome.cause == NOT_RETRYABLE:
                return outcome._replace(reason=reason)
            if outcome.cause == INTERRUPTION:  # its scheduler is gone, and node 0 may be about to follow
                self._wait(link, SCHEDULER_GRACE)
            if link.is_alive:
                self._print("the worker process is started again: %s" % reason)
                pause = POLL_INTERVAL if clock.awake() > started + STABLE else min(pause * 2, MAX_PAUSE)
                self._wait(link, pause)
        return None

    def _print(self, text: str) -> None:
        self._record.line(self._number, self._context.node, Line(None, "e", text))

    def _wait(self, link: PoolLink, seconds: float) -> None:
        """Serve *link* for so long, or until it is over."""
        clock = self._context.clock
        deadline = clock.awake() + seconds
        while link.is_alive and clock.awake() < deadline:
            link.poll()
            clock.sleep(POLL_INTERVAL)
