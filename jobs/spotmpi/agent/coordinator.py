"""Node 0's agent, in pods and on a laptop: attempt after attempt, until the run ends or one of its nodes is lost.

Each attempt is prepared, launched and recorded, and what its end means for the run follows from the history of all.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from . import protocol, record, stop_requests
from .attempt import Attempt, Launch
from .attempt_history import AttemptHistory
from .context import AgentContext
from .fencing import Fenced
from .launch import change_reason
from .lines import Line
from .notice import Notice, NoticedNodes
from .outcomes import (
    FAILURE,
    INTERRUPTION,
    NOT_RETRYABLE,
    PAUSES,
    STOPPED,
    SUCCEEDED,
    Outcome,
    StopRequest,
    is_futile,
    outcome_of_error,
    repeat,
    restart_pause,
)
from .plan import COORDINATOR, NODE, WORKER, Member, nodes_in, workers
from .progress import Progress

if TYPE_CHECKING:  # interfaces: to make them delays a start
    from .transport import Members, Transport

POLL_INTERVAL = 0.05  # seconds
# Seconds in which every agent has to answer or send a heartbeat after a launcher failed, beyond those after which a
# silent host counts as lost, of which the kernel may need half as many more.
LIVENESS_MARGIN = 2.0
_EXIT = {SUCCEEDED: 0, STOPPED: 0, FAILURE: 1, INTERRUPTION: 75, NOT_RETRYABLE: 78}
_CAUSES = {protocol.NOT_RETRYABLE: NOT_RETRYABLE, protocol.INTERRUPTED: INTERRUPTION}  # by exit code; others: FAILURE
T = TypeVar("T")


def run(context: AgentContext, transport: Transport, notice: Notice) -> int:
    """Run node 0's part of a run; the exit code tells JobSet whether to start its agents anew."""
    try:
        return AttemptLoop(context, transport, notice).run()
    except Fenced as fenced:
        sys.stderr.write("%s\n" % fenced)
        return protocol.INTERRUPTED


class CoordinatorStopSource:
    """The `StopSource` of node 0: everything it learns during an attempt, in the order of importance.

    Each poll also serves the members, and raises `Fenced` where a newer attempt has begun.
    """

    def __init__(
        self,
        context: AgentContext,
        members: Members,
        notice: Notice,
        transport: Transport,
        check_fence: Callable[[], None] = lambda: None,
        echo: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._context = context
        self._members = members
        self._notice = notice
        self._transport = transport
        self._check_fence = check_fence
        self._noticed = NoticedNodes(context.plan, context.clock, echo)
        # Of the attempt, once its ranks are started, which go on for a while after a notice.
        self.progress: Progress | None = None

    def pending(self) -> StopRequest | None:
        """The `StopRequest` that is pending, or None."""
        self._check_fence()
        self._members.serve(0)
        self._note_launchers_end()
        requested = stop_requests.pending(self._context.mounts)
        if requested is not None:
            return StopRequest(Outcome(STOPPED, requested.reason, 0), requested.kind == stop_requests.STOP)
        notice = self._notice_reason()
        if notice:
            return StopRequest(Outcome(INTERRUPTION, notice, protocol.INTERRUPTED), True)
        failure = self._deletion() or self._lost_hosts() or self.launcher_failure()
        return StopRequest(failure, False) if failure else self._growth()

    def _growth(self) -> StopRequest | None:
        """The end, at a checkpoint, of an attempt that can go on with more nodes; a program without any stays."""
        size = self._members.larger_size()
        if size is None or self.progress is None or (self.progress.checkpoint or self.progress.resumed) is None:
            return None
        nodes = len(self._members.pods or ())
        return StopRequest(Outcome(INTERRUPTION, change_reason(nodes, size), protocol.INTERRUPTED), True)

    def _deletion(self) -> Outcome | None:
        """The end of a run on this machine whose folder is gone."""
        events = os.path.join(self._context.folder, record.EVENTS)
        if self._context.mounts.requests is None or stop_requests.file_exists(events) is not False:
            return None
        return Outcome(NOT_RETRYABLE, "the run folder was deleted", protocol.NOT_RETRYABLE)

    def _note_launchers_end(self) -> None:
        """Let the scheduler of a stream end with node 0's launcher, once those of the other nodes have ended."""
        remote = self._transport.remote_launchers(self._context.with_pods(self._members.pods))
        if remote and workers(self._context.plan) and len(nodes_in(self._members.ended)) == remote:
            with contextlib.suppress(OSError):  # it is tried again
                open(self._context.launchers_ended_file, "a").close()

    def kill_requested(self) -> bool:
        """Whether to end without a checkpoint; a pod is deleted for that. Members are served while the attempt ends."""
        self._check_fence()
        self._members.serve(0)
        return stop_requests.pending(self._context.mounts, (stop_requests.KILL,)) is not None

    def launcher_failure(self) -> Outcome | None:
        """How the launcher of another node failed, or None."""
        for node, (code, reason) in self._members.ended.items():
            if code:
                text = "%s: %s" % (self._members.name_of(node), reason)
                return Outcome(_CAUSES.get(code, FAILURE), text, code, node=node.number if node.role == NODE else None)
        return None

    def interruption(self) -> Outcome | None:
        """How an attempt that has ended counts as interrupted, as far as is known now, or None."""
        self._members.serve(0.05)
        notice = self._notice_reason()
        return Outcome(INTERRUPTION, notice, protocol.INTERRUPTED) if notice else self._lost_hosts()

    def lost_nodes(self) -> tuple[int, ...]:
        """The nodes that are lost and gave no notice."""
        lost = set(self._members.lost()) - set(self._members.notices)
        return tuple(sorted(node.number for node in lost))

    def _notice_reason(self) -> str | None:
        """Why the attempt is to end for a notice now, or None."""
        if self._notice.reason:
            return "node 0: %s" % self._notice.reason
        notices = self._members.notices
        names = {self._members.name_of(node): reason for node, reason in notices.items()}
        if not notices or (self.progress and not self._noticed.are_due(names, self._members.standby_ready)):
            return None
        return next("%s: %s" % item for item in names.items())

    def _lost_hosts(self) -> Outcome | None:
        lost = self._members.lost()
        if not lost:
            return None
        hosts = self._context.with_pods(self._members.pods).hosts
        names = [hosts[node.number] if self._transport.supervised else self._members.name_of(node) for node in lost]
        reason = "lost %s" % ", ".join(names)
        return Outcome(INTERRUPTION, reason, protocol.INTERRUPTED, self.lost_nodes())


class AttemptLoop:
    """What node 0's agent does, attempt after attempt."""

    def __init__(self, context: AgentContext, transport: Transport, notice: Notice) -> None:
        self._context = context
        self._transport = transport
        self._notice = notice
        self._errors = 0  # of this machine, which ended the last attempts
        self._futile = 0  # the last attempts, as many as came to nothing
        self._started = context.clock.awake()
        self._run_deadline: float | None = None  # as `Clock.awake` counts

    def run(self) -> int:
        """Run attempts until the end; the exit code."""
        try:
            run_record = self._repeat(lambda: self._transport.open_record(self._context))
        except OSError as error:
            return self._end_without_record(error)
        try:
            for name, text in self._context.plan.get("files", {}).items():
                run_record.write_text(name, text)
            return self._run_attempts(self._repeat(lambda: self._open_history(run_record)))
        except OSError as error:
            run_record.release_reserve()
            return self._end_without_record(error, run_record)
        except Exception as error:
            if self._transport.supervised or isinstance(error, Fenced):
                raise
            import traceback  # delays no start

            traceback.print_exc()
            return self._end("internal error of spotmpi, see agent.log: %r" % error, run_record)
        finally:
            run_record.close()

    def _run_attempts(self, history: AttemptHistory) -> int:
        end = history.recorded_end() if self._transport.supervised else None
        if end is not None:
            return self._exit_code_of_ended_run(end)
        self._run_deadline = self._deadline_of_run(history)
        final = history.reconcile_lost_attempt() or self._restart_limit()
        while True:
            outcome, goes_on = self._run_attempt(history, final)
            if not goes_on:
                return _EXIT[outcome.cause]

    def _exit_code_of_ended_run(self, cause: str) -> int:
        """The exit code that lets JobSet end as the run did, whose other agents find no node 0 to join any more."""
        plan = self._context.plan
        waits_for_all = plan["launcher"] == "none" and plan["run_on"] == "all" and not self._context.replaces_nodes
        return _EXIT[NOT_RETRYABLE] if waits_for_all else _EXIT[cause]

    def _run_attempt(self, history: AttemptHistory, final: Outcome | None) -> tuple[Outcome, bool]:
        """One attempt, *final* if it has ended already: what its end means for the run, and whether the next follows.

        It follows here where all members stay, or lost ones are replaced; else whatever supervises this agent starts
        all of them anew, or this one alone, which the others join.
        """
        number = self._repeat(history.begin)
        self._repeat(lambda: history.record_decisions(self._context.decisions))
        members = self._transport.open_members(self._context, number, history.record)
        if isinstance(members, Outcome):
            return self._record_outcome(history, members), False
        is_over = goes_on = False
        try:
            outcome = final or self._attempt(history, members, number)
            outcome = self._record_outcome(history, outcome)
            is_over = outcome.cause not in (FAILURE, INTERRUPTION)
            if not is_over:
                self._pause(lambda: members.serve(0), history.record)
                goes_on = (members.is_whole() or self._context.replaces_nodes) and self._notice.reason is None
        finally:
            if is_over:
                members.broadcast(over=1, exit_code=_EXIT[outcome.cause])
            elif not goes_on and not self._context.replaces_nodes:  # the workers of a pool or stream stay
                members.broadcast_to_gang(over=1)
            if not goes_on:
                members.close()
        return outcome, goes_on

    def _attempt(self, history: AttemptHistory, members: Members, number: int) -> Outcome:
        """How the attempt ended, which is recorded also where nothing was launched."""
        stop_source = CoordinatorStopSource(
            self._context,
            members,
            self._notice,
            self._transport,
            history.record.check_fence,
            lambda text: history.record.line(number, COORDINATOR, Line(None, "e", text)),
        )
        progress, started, launched = Progress(history.held_since), history.held_since, self._context.clock.awake()
        errors, self._errors = self._errors, 0
        try:
            launch = self._transport.prepare(self._context, number, stop_source, history.record, history.held_since)
            if isinstance(launch, Outcome):
                outcome = launch
            elif self._context.slurm and (machine := history.avoided_machine(nodes_in(members.machines))) is not None:
                outcome = self._given_again(history, machine)
            else:
                attempt = self._start(history, members, number, launch, stop_source)
                progress, started, launched = attempt.progress, self._context.clock(), self._context.clock.awake()
                outcome = self._run_launchers(attempt, members, stop_source)
        except OSError as error:
            outcome = self._outcome_of_error(error, history.record)
            if outcome.cause == INTERRUPTION:
                self._errors = errors + 1
        lasted = self._context.clock.awake() - launched
        self._futile = self._futile + 1 if members.is_whole() and is_futile(progress, lasted) else 0
        outcome = self._avoid_unfit(history, members, outcome)
        try:
            self._record_end(history, members, number, progress, outcome, started)
        except OSError as error:
            outcome = self._outcome_of_error(error, history.record)
            self._record_end(history, members, number, progress, outcome, started)
        return outcome

    def _record_end(
        self,
        history: AttemptHistory,
        members: Members,
        number: int,
        progress: Progress,
        outcome: Outcome,
        started: float,
    ) -> None:
        history.hardware = nodes_in(members.hardware)
        machine = None if outcome.node is None else members.machines.get(Member(NODE, outcome.node), {}).get("name")
        self._repeat(lambda: history.end(number, progress, outcome, started, machine))
        if outcome.cause != FAILURE or outcome.node is None or len(self._context.hosts) == 1:
            return
        if not self._context.slurm:  # nothing in a cluster would keep the next pod from the same machine
            return
        reason = history.failure_of_machine(machine)
        if machine is not None and reason is not None and self._avoid(history, machine, reason, False):
            text = "machine %s is avoided for this run: %s" % (machine, reason)
            if outcome.node == 0:
                self._notice.give(text)
            else:
                members.dismiss(Member(NODE, outcome.node), text)

    def _avoid_unfit(self, history: AttemptHistory, members: Members, outcome: Outcome) -> Outcome:
        """*outcome*, once the machines of nodes that have failed their check are avoided; they leave by themselves."""
        for node, reason in members.unfit.items():
            machine = members.machines.get(node, {}).get("name")
            if node == COORDINATOR:
                self._notice.give(reason)
            if machine is not None and not self._avoid(history, machine, reason, True):
                return self._given_again(history, machine)
        return outcome

    def _avoid(self, history: AttemptHistory, machine: str, reason: str, checked: bool) -> bool:
        return self._repeat(lambda: history.avoid(machine, reason, checked))

    def _given_again(self, history: AttemptHistory, machine: str) -> Outcome:
        """The end of an attempt whose nodes include a *machine* that the run avoids.

        Slurm gets the job back, with the node excluded. In a cluster only another submission can exclude it, and the
        next pod may pass the check there: the run goes on, and says how to go on without.
        """
        avoided = history.avoided()
        text = "the run got %s again, which it avoids (%s)" % (machine, avoided[machine])
        if not self._context.slurm:
            remedy = "to go on without: spotmpi stop %s, and spotmpi run --resume %s --set 'kubernetes.avoid=%s'"
            run = self._context.plan["run"]
            text += "; " + remedy % (run, run, json.dumps(sorted(avoided)))
        return Outcome(INTERRUPTION, text, protocol.INTERRUPTED)

    def _start(
        self,
        history: AttemptHistory,
        members: Members,
        number: int,
        launch: Launch,
        stop_source: CoordinatorStopSource,
    ) -> Attempt:
        """The attempt, once all members know that it starts."""
        machines, pods = nodes_in(members.machines), members.pods
        if pods is not None:
            self._repeat(lambda: history.set_pods(self._context.with_pods(pods).plan, pods, members.others()))
        self._repeat(lambda: history.record_start(number, [machines[node] for node in sorted(machines)]))
        members.broadcast(go=1)
        plan, clock = self._context.plan, self._context.clock
        assert history.world is not None, "it has begun"
        launch = launch._replace(rate=history.world.rate)
        return Attempt(number, plan, launch, history.record, stop_source, self._deadlines(history), clock)

    def _run_launchers(self, attempt: Attempt, members: Members, stop_source: CoordinatorStopSource) -> Outcome:
        stop_source.progress = attempt.progress
        outcome = attempt.run()
        if outcome.cause == SUCCEEDED:
            outcome = self._wait_for_launchers(members, stop_source)
        if outcome.cause == FAILURE:
            outcome = self._find_interruption(attempt.number, members, stop_source) or self._add_oom_nodes(outcome)
            outcome = self._add_missing_workers(members, outcome)
        # mpirun may have noticed first that a host is gone, and it names no node.
        if outcome.cause == INTERRUPTION and not outcome.lost_nodes:
            members.serve(0.05)
            outcome = outcome._replace(lost_nodes=stop_source.lost_nodes())
        return outcome

    def _record_outcome(self, history: AttemptHistory, outcome: Outcome) -> Outcome:
        """Record what *outcome* means for the run; the final outcome where a limit or a request turned it into one."""
        if outcome.cause in (FAILURE, INTERRUPTION):
            final = self._repeat(lambda: history.final_outcome(outcome))
            if self._is_to_end():
                final = Outcome(STOPPED, outcome.reason, outcome.exit_code)
            if final is None:
                self._repeat(lambda: history.record_restart(outcome))
                return outcome
            outcome = final
        ended = outcome
        self._repeat(lambda: history.finish(ended))
        return outcome

    def _is_to_end(self) -> bool:
        """Whether no other attempt is wanted: by a user, or by notice where nothing starts this agent again."""
        requested = stop_requests.pending(self._context.mounts) is not None
        return requested or (not self._transport.supervised and self._notice.reason is not None)

    def _pause(self, serve: Callable[[], None], run_record: record.Record | None = None) -> None:
        """Wait before another attempt if errors of this machine ended the last ones, unless the run is to end.

        On a cluster also where several came to nothing, for what they lack, such as shared storage, may come back; the
        record tells so. JobSet restarts a run at once, however often. *serve* is called meanwhile, again and again.
        """
        futile = 2 * (self._futile - 1) if self._transport.supervised else 0
        clock = self._context.clock
        seconds = restart_pause(max(self._errors, futile))
        if seconds and futile > self._errors and run_record is not None:
            text = "%d attempts in a row came to no iteration and no checkpoint; the next one begins after %d s"
            with contextlib.suppress(OSError):
                run_record.event(record.WAITING, reason=text % (self._futile, seconds))
        deadline = clock.awake() + seconds
        while (left := deadline - clock.awake()) > 0 and not self._notice.reason and not self._is_to_end():
            serve()
            clock.sleep(min(left, POLL_INTERVAL))

    def _open_history(self, run_record: record.Record) -> AttemptHistory:
        """The attempts so far; those before count against no limit where this agent starts all of a submission."""
        context = self._context
        submitted = context.plan.get("submitted")
        first = None if submitted is not None else run_record.next_attempt()
        since = context.clock() if submitted is None else submitted
        return AttemptHistory(run_record, context.plan, since, context.clock, first, context.mounts.image_record)

    def _deadline_of_run(self, history: AttemptHistory) -> float | None:
        """When ``limits.run`` is over, as `Clock.awake` counts.

        In pods only the API server's clock, against this node's, tells how much of a run is over; if this one is late,
        at least the time for which its attempts ran is.
        """
        clock, limit = self._context.clock, self._context.plan["limits"]["run"]
        if limit is None:
            return None
        submitted = self._context.plan.get("submitted")
        if submitted is None:
            return self._started + limit
        return clock.awake() + limit - max(clock() - submitted, history.held)

    def _deadlines(self, history: AttemptHistory) -> dict[str, float | None]:
        """As `Attempt` takes them; ``limits.start`` counts from this attempt."""
        start = self._context.clock.awake() + self._context.plan["limits"]["start"]
        return {"start": start, "run": self._run_deadline, "cost": history.cost_deadline()}

    def _restart_limit(self) -> Outcome | None:
        """The end of a run that was restarted more often than both limits allow: without a volume, no record counts.

        JobSet counts failures, not interruptions; a pod that is killed for its memory, again and again, looks like one.
        """
        limits, restarts = self._context.plan["limits"], self._context.restart_count
        allowed = limits["failures"] + limits["interruptions"]
        if restarts <= allowed:
            return None
        reason = "restarted %d times: no retries left (limits.failures + limits.interruptions = %d)" % (
            restarts,
            allowed,
        )
        return Outcome(NOT_RETRYABLE, reason, protocol.NOT_RETRYABLE)

    def _wait_for_launchers(self, members: Members, stop_source: CoordinatorStopSource) -> Outcome:
        """How the launchers of the other nodes ended, once node 0's own has succeeded."""
        while len(members.ended) < self._transport.remote_launchers(self._context.with_pods(members.pods)):
            stop_request = stop_source.pending()
            if stop_request:
                return stop_request.outcome
            members.serve(0.1)
        return stop_source.launcher_failure() or Outcome(SUCCEEDED, None, 0)

    def _find_interruption(self, number: int, members: Members, stop_source: CoordinatorStopSource) -> Outcome | None:
        """An interruption, where the launcher failed because a host went.

        Every agent ends what is left of the attempt and answers; one that is busy may send a heartbeat before.
        """
        clock = self._context.clock
        failed = clock.awake()
        members.broadcast_to_gang(end=number)
        while clock.awake() < failed + self._context.plan["limits"]["silence"] * 1.5 + LIVENESS_MARGIN:
            interruption = stop_source.interruption()
            if interruption:
                return interruption
            gang = members.gang.items()
            if all(node in members.idle or worker.last_received > failed + 0.5 for node, worker in gang):
                return None
        return None

    def _add_oom_nodes(self, outcome: Outcome) -> Outcome:
        """The failure *outcome*, with the nodes where the kernel has killed a process for lack of memory."""
        killed = self._transport.oom_nodes(self._context)
        if not killed:
            return outcome
        nodes = ", ".join("node %d" % node for node in killed)
        return outcome._replace(reason="%s; out of memory on %s: raise resources.memory" % (outcome.reason, nodes))

    def _add_missing_workers(self, members: Members, outcome: Outcome) -> Outcome:
        """*outcome*, with a stream's lack of workers where nothing went on: they may lack nodes, or a queue's quota."""
        if not self._transport.supervised or outcome.limit != "no_progress":
            return outcome
        connected = {member.role for member in members.workers}
        for role in workers(self._context.plan):
            if role not in connected:
                kind = "" if role == WORKER else role + " "
                outcome = outcome._replace(reason="%s; no %sworker of the stream is connected" % (outcome.reason, kind))
        return outcome

    def _outcome_of_error(self, error: OSError, run_record: record.Record) -> Outcome:
        """The outcome of an attempt that *error* ends; on a full disk there is room now to record it."""
        if error.errno in record.DISK_FULL:
            run_record.release_reserve()
        return outcome_of_error(error, self._context.folder)

    def _end_without_record(self, error: OSError, run_record: record.Record | None = None) -> int:
        """The exit code of an agent that cannot record the run; only JobSet's restarts count its attempts then."""
        outcome = outcome_of_error(error, self._context.folder)
        if not self._transport.supervised:
            outcome = Outcome(NOT_RETRYABLE, outcome.reason, protocol.NOT_RETRYABLE)  # it has been tried for minutes
        elif outcome.cause != NOT_RETRYABLE:
            outcome = self._restart_limit() or outcome
        remedy = "; make the volume writable for user or group 1000" if error.errno == errno.EACCES else ""
        sys.stderr.write("the run cannot be recorded: %s%s\n" % (error, remedy))
        if outcome.cause == NOT_RETRYABLE:
            return self._end(str(outcome.reason), run_record)
        self._errors = self._context.restart_count
        self._pause(lambda: None)
        return outcome.exit_code

    def _end(self, reason: str, run_record: record.Record | None) -> int:
        """Record that the run has failed, if that is possible; the exit code. One event may fit on a full disk."""
        with contextlib.suppress(OSError):
            if run_record is not None:
                run_record.event(record.FAILED, reason=reason)
            else:
                with open(os.path.join(self._context.folder, record.EVENTS), "a") as events:
                    events.write(
                        json.dumps({"t": self._context.clock(), "event": record.FAILED, "reason": reason}) + "\n"
                    )
        return _EXIT[NOT_RETRYABLE]

    def _repeat(self, step: Callable[[], T]) -> T:
        """What *step* gives; JobSet repeats what fails in a pod, by another one."""
        return repeat(step, self._context.clock, () if self._transport.supervised else PAUSES)
