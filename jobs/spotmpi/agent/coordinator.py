"""Node 0's part of an attempt: wait for all hosts, launch, record, and decide how it ended."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable

from . import hardware, protocol, record, ssh
from .attempt import Attempt
from .attempt_history import AttemptHistory
from .clock import Clock
from .context import AgentContext
from .fencing import Fenced
from .node import Daemon, Notice, attempt_plan, check_hardware, unpack_code, write_environment
from .outcomes import (
    FAILURE,
    INTERRUPTION,
    NOT_RETRYABLE,
    STOPPED,
    SUCCEEDED,
    Outcome,
    StopRequest,
    outcome_of_error,
)
from .peers import Coordinator
from .pod_record import PodRecord
from .pool_coordinator import PoolCoordinator
from .progress import Progress
from .readiness import Readiness
from .staging import Staging

LIVENESS_TIMEOUT = 5.0  # seconds in which every agent has to send a heartbeat after a launcher failed
_EXIT = {SUCCEEDED: 0, STOPPED: 0, FAILURE: 1, INTERRUPTION: 75, NOT_RETRYABLE: 78}
_CAUSES = {protocol.NOT_RETRYABLE: NOT_RETRYABLE, protocol.INTERRUPTED: INTERRUPTION}  # by exit code; others: FAILURE


def run(context: AgentContext, notice: Notice) -> int:
    """Coordinate one attempt; the pod's exit code."""
    try:
        return _coordinate(context, notice)
    except Fenced as fenced:
        sys.stderr.write("%s\n" % fenced)
        return protocol.INTERRUPTED


class CoordinatorStopSource:
    """The `StopSource` of node 0: everything it learns during an attempt, in the order of importance.

    Each poll also serves the workers, and raises `Fenced` where *check_fence* does.
    """

    def __init__(
        self,
        context: AgentContext,
        coordinator: Coordinator,
        notice: Notice,
        daemon: Daemon,
        check_fence: Callable[[], None] = lambda: None,
    ) -> None:
        self._context = context
        self._coordinator = coordinator
        self._notice = notice
        self._daemon = daemon
        self._check_fence = check_fence

    def pending(self) -> StopRequest | None:
        """The `StopRequest` that is pending, or None."""
        self._check_fence()
        self._coordinator.serve(0)
        self._note_launchers_end()
        stop_request = self._context.stop_request()
        if stop_request:
            return stop_request
        notice = self._notice_reason()
        if notice:
            return StopRequest(Outcome(INTERRUPTION, notice, protocol.INTERRUPTED), True)
        failure = self._daemon_failure() or self._lost_hosts() or self.launcher_failure()
        return StopRequest(failure, False) if failure else None

    def _note_launchers_end(self) -> None:
        """Let the scheduler of a stream end with node 0's launcher, once those of the other nodes have ended."""
        ended = self._coordinator.of_gang(self._coordinator.ended)
        if self._context.plan["pool"] and len(ended) == self._context.launcher_count - 1:
            with contextlib.suppress(OSError):  # it is tried again
                open(self._context.launchers_ended_file, "a").close()

    def kill_requested(self) -> bool:
        """Whether a user wants that. Workers are served while the attempt ends, too."""
        self._check_fence()
        self._coordinator.serve(0)
        return self._context.kill_requested()

    def launcher_failure(self) -> Outcome | None:
        """How the launcher of another node failed, or None."""
        for node, (code, reason) in self._coordinator.ended.items():
            if code:
                return Outcome(_CAUSES.get(code, FAILURE), "%s: %s" % (self._coordinator.name_of(node), reason), code)
        return None

    def interruption(self) -> Outcome | None:
        """How an attempt that has ended counts as interrupted, as far as is known now, or None.

        Its end took all processes of this pod along, sshd too, whose state therefore means nothing any more.
        """
        self._coordinator.serve(0.05)
        notice = self._notice_reason()
        return Outcome(INTERRUPTION, notice, protocol.INTERRUPTED) if notice else self._lost_hosts()

    def lost_nodes(self) -> tuple[int, ...]:
        """The nodes that are lost and gave no notice."""
        return tuple(sorted(set(self._coordinator.lost()) - set(self._coordinator.notices)))

    def _notice_reason(self) -> str | None:
        if self._notice.reason:
            return "node 0: %s" % self._notice.reason
        return next(("node %d: %s" % item for item in self._coordinator.notices.items()), None)

    def _daemon_failure(self) -> Outcome | None:
        error = self._daemon.error()
        return Outcome(INTERRUPTION, "node 0: %s" % error, protocol.INTERRUPTED) if error else None

    def _lost_hosts(self) -> Outcome | None:
        lost = self._coordinator.lost()
        if not lost:
            return None
        reason = "lost %s" % ", ".join(self._context.hosts[node] for node in lost)
        return Outcome(INTERRUPTION, reason, protocol.INTERRUPTED, self.lost_nodes())


def _coordinate(context: AgentContext, notice: Notice) -> int:
    try:
        os.makedirs(context.folder, exist_ok=True)
        pod_record = PodRecord(
            context.folder, context.clock, before=context.plan.get("attempts_before", 0) + context.generation
        )
    except OSError as error:
        return _end_without_record(context, notice, error)
    try:
        for name, text in context.plan["files"].items():
            pod_record.write_text(name, text)
        return _run_recorded(context, notice, pod_record)
    except OSError as error:
        pod_record.release_reserve()
        return _end_without_record(context, notice, error, pod_record)
    finally:
        pod_record.close()


def _end_without_record(
    context: AgentContext, notice: Notice, error: OSError, pod_record: PodRecord | None = None
) -> int:
    """The exit code of an attempt that cannot be recorded; only JobSet's restarts count it then."""
    outcome = outcome_of_error(error)
    outcome = outcome if outcome.cause == NOT_RETRYABLE else _restart_limit(context) or outcome
    reason = record.disk_full_reason(error, context.folder) if error.errno in record.DISK_FULL else outcome.reason
    remedy = "; make the volume writable for user or group 1000" if error.errno == errno.EACCES else ""
    sys.stderr.write("the run cannot be recorded: %s%s\n" % (error, remedy))
    if pod_record and outcome.cause == NOT_RETRYABLE:
        with contextlib.suppress(OSError):
            pod_record.event(record.FAILED, reason=reason)
    if outcome.cause == INTERRUPTION:
        notice.wait(context.generation, lambda: None)
    return outcome.exit_code


def _run_recorded(context: AgentContext, notice: Notice, pod_record: PodRecord) -> int:
    history = AttemptHistory(
        pod_record, context.plan, context.submitted, context.clock, image_record=context.mounts.image_record
    )
    final = history.settle_lost_attempt() or _restart_limit(context)
    number = pod_record.take_attempt()
    coordinator = _open_coordinator(context, number, pod_record)
    is_over = False
    try:
        outcome = final or _attempt(context, notice, history, coordinator, number, pod_record.check_fence)
        outcome = _record_outcome(history, outcome)
        is_over = outcome.cause not in (FAILURE, INTERRUPTION)
    finally:
        if is_over:
            coordinator.broadcast(over=1)
        else:  # the workers of a pool or stream stay for the next attempt
            coordinator.broadcast_to_gang(over=1)
        coordinator.close()
    return _EXIT[outcome.cause]


def _open_coordinator(context: AgentContext, number: int, pod_record: PodRecord) -> Coordinator:
    """Node 0's end of the connections to the other nodes."""
    pool = context.plan["pool"]
    if pool is None:
        ports = context.ports
        return Coordinator(
            context.token, len(context.hosts), context.generation, number, ports.agents, clock=context.clock
        )
    return PoolCoordinator(
        context.token,
        len(context.hosts),
        context.generation,
        number,
        pod_record,
        pool["table"],
        context.ports.agents,
        clock=context.clock,
    )


def _restart_limit(context: AgentContext) -> Outcome | None:
    """The end of a run that was restarted more often than both limits allow: without a volume, no record counts them.

    JobSet counts failures, not interruptions; a pod that is killed for its memory, again and again, looks like one.
    """
    allowed = context.plan["limits"]["failures"] + context.plan["limits"]["interruptions"]
    if context.generation <= allowed:
        return None
    reason = "restarted %d times: no retries left (limits.failures + limits.interruptions = %d)" % (
        context.generation,
        allowed,
    )
    return Outcome(NOT_RETRYABLE, reason, protocol.NOT_RETRYABLE)


def _attempt(
    context: AgentContext,
    notice: Notice,
    history: AttemptHistory,
    coordinator: Coordinator,
    number: int,
    check_fence: Callable[[], None],
) -> Outcome:
    """How the attempt ended, which is recorded also where nothing was launched."""
    try:
        history.hardware[0] = check_hardware(context)
        unpack_code(context)
        daemon = Daemon(context)
        stop_source = CoordinatorStopSource(context, coordinator, notice, daemon, check_fence)
        staging = Staging(context.plan["staging"], context.mounts.cgroup)
        readiness = Readiness(context.hosts, coordinator, staging, context.clock, fixed_names=context.slurm)
        failure = readiness.wait(context.plan["limits"]["start"], history.record, stop_source)
        history.hardware.update(coordinator.of_gang(coordinator.hardware))
        if failure is None:
            daemon.pin(readiness.addresses)
            plan = attempt_plan(context, write_environment(context, number))
            attempt = Attempt(number, plan, history.record, stop_source, _deadlines(context, history), context.clock)
    except (ssh.InvalidKeys, hardware.Incompatible) as error:
        failure = Outcome(NOT_RETRYABLE, str(error), protocol.NOT_RETRYABLE)
    except OSError as error:
        failure = outcome_of_error(error)
        if failure.cause == INTERRUPTION:
            notice.wait(context.generation, lambda: coordinator.serve(0))
    if failure:
        history.end(number, Progress(history.held_since), failure, history.held_since)
        return failure
    return _launch(context, history, coordinator, stop_source, attempt)


def _launch(
    context: AgentContext,
    history: AttemptHistory,
    coordinator: Coordinator,
    stop_source: CoordinatorStopSource,
    attempt: Attempt,
) -> Outcome:
    machines = coordinator.of_gang(coordinator.machines)
    history.record_start(attempt.number, [hardware.identify(0, history.held_since), *machines.values()])
    coordinator.broadcast(go=1)
    started = context.clock()
    try:
        outcome = _run_launchers(context, coordinator, stop_source, attempt)
    except OSError as error:
        if error.errno in record.DISK_FULL:
            raise
        outcome = outcome_of_error(error)
    history.end(attempt.number, attempt.progress, outcome, started)
    return outcome


def _run_launchers(
    context: AgentContext, coordinator: Coordinator, stop_source: CoordinatorStopSource, attempt: Attempt
) -> Outcome:
    outcome = attempt.run()
    if outcome.cause == SUCCEEDED:
        outcome = _wait_for_launchers(coordinator, stop_source, context.launcher_count - 1)
    if outcome.cause == FAILURE:
        interruption = _find_interruption(coordinator, stop_source, context.clock)
        outcome = interruption or _add_oom_nodes(coordinator, outcome, context.mounts.cgroup)
        outcome = _add_missing_workers(context, coordinator, outcome)
    # mpirun may have noticed first that a host is gone, and it names no node.
    if outcome.cause == INTERRUPTION and not outcome.lost_nodes:
        coordinator.serve(0.05)
        outcome = outcome._replace(lost_nodes=stop_source.lost_nodes())
    return outcome


def _deadlines(context: AgentContext, history: AttemptHistory) -> dict[str, float | None]:
    """As `Attempt` takes them; only the API server's clock, against this node's, tells how much of a run is over."""
    limits, awake = context.plan["limits"], context.clock.awake()
    run = limits["run"]
    return {
        "start": awake + limits["start"],
        "run": run and awake + (context.submitted + run - context.clock()),
        "cost": history.cost_deadline(),
    }


def _wait_for_launchers(coordinator: Coordinator, stop_source: CoordinatorStopSource, count: int) -> Outcome:
    """How the launchers of the other nodes ended, once node 0's own has succeeded."""
    while len(coordinator.ended) < count:
        stop_request = stop_source.pending()
        if stop_request:
            return stop_request.outcome
        coordinator.serve(0.1)
    return stop_source.launcher_failure() or Outcome(SUCCEEDED, None, 0)


def _find_interruption(coordinator: Coordinator, stop_source: CoordinatorStopSource, clock: Clock) -> Outcome | None:
    """An interruption, where the launcher failed because a host went: waits until every agent has sent a message."""
    failed = clock.awake()
    while clock.awake() < failed + LIVENESS_TIMEOUT:
        interruption = stop_source.interruption()
        if interruption:
            return interruption
        if all(worker.last_received > failed + 0.5 for worker in coordinator.of_gang(coordinator.workers).values()):
            return None
    return None


def _add_oom_nodes(coordinator: Coordinator, outcome: Outcome, cgroup: str) -> Outcome:
    """The failure *outcome*, with the nodes where the kernel has killed a process for lack of memory."""
    oom_killed = [*([0] if hardware.oom_kills(cgroup) else []), *sorted(coordinator.oom_killed)]
    if not oom_killed:
        return outcome
    nodes = ", ".join("node %d" % node for node in oom_killed)
    return outcome._replace(reason="%s; out of memory on %s: raise resources.memory" % (outcome.reason, nodes))


def _add_missing_workers(context: AgentContext, coordinator: Coordinator, outcome: Outcome) -> Outcome:
    """*outcome*, with a stream's lack of workers where nothing went on: they may lack nodes, or quota of a queue."""
    has_workers = len(coordinator.workers) > len(coordinator.of_gang(coordinator.workers))
    if context.plan["pool"] is None or has_workers or outcome.limit != "no_progress":
        return outcome
    return outcome._replace(reason="%s; no worker of the stream is connected" % outcome.reason)


def _record_outcome(history: AttemptHistory, outcome: Outcome) -> Outcome:
    """Record what *outcome* means for the run; the final outcome where a limit turned it into one."""
    if outcome.cause in (FAILURE, INTERRUPTION):
        final = history.final_outcome(outcome)
        if final is None:
            history.record_restart(outcome)
            return outcome
        outcome = final
    history.finish(outcome)
    return outcome
