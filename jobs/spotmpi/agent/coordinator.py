"""Node 0's agent, in pods and on a laptop: attempt after attempt, until the run ends or one of its nodes is lost.

Each attempt is prepared, launched and recorded, and what its end means for the run follows from the history of all.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from . import hardware, protocol, record, stop_requests
from .attempt import Attempt
from .attempt_history import AttemptHistory, end_of
from .context import AgentContext, Members
from .launch import Launch
from .launcher_output import Line
from .outcomes import (
    FAILURE,
    INTERRUPTION,
    NOT_RETRYABLE,
    PAUSES,
    STOPPED,
    SUCCEEDED,
    Outcome,
    is_futile,
    outcome_of_error,
    repeat,
    restart_limit,
    restart_pause,
)
from .plan import COORDINATOR, NODE, WORKER, Member, nodes_in, workers
from .pod_record import Fenced
from .progress import Progress
from .stop_requests import CoordinatorStopSignal, PreemptionNotice

if TYPE_CHECKING:  # interfaces: to make them delays a start
    from .transport import Transport

POLL_INTERVAL = 0.05  # seconds
# Seconds in which every agent has to answer or send a heartbeat after a launcher failed, beyond those after which a
# silent host counts as lost, of which the kernel may need half as many more.
LIVENESS_MARGIN = 2.0
_QUIET = 2.0  # seconds of a wait for other launchers of which nothing is said
T = TypeVar("T")


def run(context: AgentContext, transport: Transport, notice: PreemptionNotice) -> int:
    """Run node 0's part of a run; the exit code tells JobSet whether to start its agents anew."""
    try:
        return AttemptLoop(context, transport, notice).run()
    except Fenced as fenced:
        sys.stderr.write("%s\n" % fenced)
        return protocol.INTERRUPTED


class _NodeZero:
    """What node 0's agent works with, attempt after attempt and in each of them."""

    def __init__(self, context: AgentContext, transport: Transport, notice: PreemptionNotice) -> None:
        self._context = context
        self._transport = transport
        self._notice = notice

    def _repeat(self, step: Callable[[], T]) -> T:
        """What *step* gives; JobSet repeats what fails in a pod, by another one."""
        return repeat(step, self._context.clock, () if self._context.is_supervised else PAUSES)


class CoordinatedAttempt(_NodeZero):
    """Attempt *number*, on *members* and this node: it is prepared, launched and recorded.

    After it, *met_error* says whether an error of this machine that may pass has ended it, and *was_futile* whether it
    came to nothing although all members stayed.
    """

    def __init__(
        self,
        context: AgentContext,
        transport: Transport,
        notice: PreemptionNotice,
        history: AttemptHistory,
        members: Members,
        number: int,
    ) -> None:
        super().__init__(context, transport, notice)
        self._history = history
        self._members = members
        self._number = number
        self._stop_signal = CoordinatorStopSignal(
            context,
            members,
            notice,
            history.record.check_fence,
            lambda text: history.record.line(number, COORDINATOR, Line(None, "e", text)),
        )
        # Of the ranks, once they are started, which may never happen.
        self._progress, self._started = Progress(history.allocated_since), history.allocated_since
        self._oom_kills = hardware.oom_kills(context.mounts.cgroup)  # before this attempt
        self.met_error = self.was_futile = False

    def run(self) -> Outcome:
        """How it ended, which is recorded also where nothing was launched."""
        launched = self._context.clock.uptime()
        try:
            launch = self._launch()
            if isinstance(launch, Outcome):
                outcome = launch
            else:
                attempt = self._start(launch)
                self._progress, self._started = attempt.progress, self._context.clock()
                launched = self._context.clock.uptime()
                outcome = self._run_launchers(attempt)
        except OSError as error:
            outcome = self._outcome_of_error(error)
            self.met_error = outcome.cause == INTERRUPTION
        lasted = self._context.clock.uptime() - launched
        self.was_futile = self._members.is_whole() and is_futile(self._progress, lasted)
        outcome = self._avoid_unfit(outcome)
        try:
            self._record_end(outcome)
        except OSError as error:
            outcome = self._outcome_of_error(error)
            self._record_end(outcome)
        return outcome

    def _launch(self) -> Launch | Outcome:
        """What is launched once every member is ready, or why nothing can be."""
        history = self._history
        self._stop_signal.deadlines = history.deadlines()
        launch = self._transport.prepare(
            self._context, self._number, self._stop_signal, history.record, history.allocated_since
        )
        if isinstance(launch, Outcome):
            return launch
        if self._context.slurm:
            machine = history.avoided_machine(nodes_in(self._members.machines))
            if machine is not None:
                return self._end_on_avoided(machine)
        pods = self._members.pods
        if pods is not None:
            self._repeat(lambda: history.set_pods(self._context.with_pods(pods).plan, pods, self._members.others()))
            self._stop_signal.deadlines = history.deadlines()  # at their price
        exceeded = self._stop_signal.deadlines.exceeded(self._context.plan, self._context.clock)
        return exceeded.outcome if exceeded else launch

    def _start(self, launch: Launch) -> Attempt:
        """The attempt, once all members know that it starts."""
        machines = nodes_in(self._members.machines)
        plan, clock, history = self._context.plan, self._context.clock, self._history
        self._repeat(lambda: history.record_start(self._number, [machines[node] for node in sorted(machines)]))
        self._members.broadcast(go=1)
        start = clock.uptime() + plan["limits"]["start"]  # counts from this attempt
        launch = launch._replace(start_deadline=start, ranks=self._members.ranks)
        return Attempt(self._number, plan, launch, history.record, self._stop_signal, clock)

    def _run_launchers(self, attempt: Attempt) -> Outcome:
        self._stop_signal.progress = attempt.progress
        outcome = attempt.run()
        if outcome.cause == SUCCEEDED:
            outcome = self._wait_for_launchers()
        if outcome.cause == FAILURE:
            outcome = self._find_interruption() or self._add_oom_nodes(outcome)
            outcome = self._add_missing_workers(outcome)
        # mpirun may have noticed first that a host is gone, and it names no node.
        if outcome.cause == INTERRUPTION and not outcome.lost_nodes:
            self._members.serve(0.05)
            outcome = outcome._replace(lost_nodes=self._stop_signal.lost_nodes())
        return outcome

    def _wait_for_launchers(self) -> Outcome:
        """How the launchers of the other nodes ended, once that of node 0 has succeeded."""
        clock, is_silent = self._context.clock, True
        says_so_at = clock.uptime() + _QUIET
        while len(self._members.ended) < (count := self._context.with_pods(self._members.pods).remote_launchers):
            stop_request = self._stop_signal.pending()
            if stop_request:
                return stop_request.outcome
            self._members.serve(0.1)
            if is_silent and clock.uptime() > says_so_at:
                is_silent = False
                ended = nodes_in(self._members.ended)
                left = ", ".join(str(number) for number in range(1, count + 1) if number not in ended)
                text = "the launcher of node 0 has ended, those of these nodes have not: %s" % left
                with contextlib.suppress(OSError):
                    self._history.record.event(record.WAITING, reason=text)
        return self._stop_signal.launcher_failure() or Outcome(SUCCEEDED)

    def _find_interruption(self) -> Outcome | None:
        """An interruption, where the launcher failed because a host went.

        Every agent ends what is left of the attempt and answers; one that is busy may send a heartbeat before.
        """
        clock = self._context.clock
        failed = clock.uptime()
        self._members.broadcast_to_gang(end=self._number)
        while clock.uptime() < failed + self._context.plan["limits"]["silence"] * 1.5 + LIVENESS_MARGIN:
            interruption = self._stop_signal.interruption()
            if interruption:
                return interruption
            gang = self._members.gang.items()
            if all(node in self._members.idle or worker.last_received > failed + 0.5 for node, worker in gang):
                return None
        return None

    def _add_oom_nodes(self, outcome: Outcome) -> Outcome:
        """The failure *outcome*, with the nodes where the kernel has killed a process for lack of memory."""
        on_node_0 = hardware.oom_kills(self._context.mounts.cgroup) > self._oom_kills
        killed = [*([0] if on_node_0 else []), *sorted(node.number for node in self._members.oom_killed)]
        if not killed:
            return outcome
        if not self._context.is_supervised:  # the kernel may have killed a process of others
            reason = "%s; this machine or its container was out of memory: use fewer slots, or less memory in each"
            return outcome._replace(reason=reason % outcome.reason) if "killed" in str(outcome.reason) else outcome
        nodes = ", ".join("node %d" % node for node in killed)
        return outcome._replace(reason="%s; out of memory on %s: raise resources.memory" % (outcome.reason, nodes))

    def _add_missing_workers(self, outcome: Outcome) -> Outcome:
        """*outcome*, with a stream's lack of workers where nothing went on: they may lack nodes, or a queue's quota."""
        if not self._context.is_supervised or outcome.limit != "no_progress":
            return outcome
        connected = {member.role for member in self._members.workers}
        for role in workers(self._context.plan):
            if role not in connected:
                kind = "" if role == WORKER else role + " "
                outcome = outcome._replace(reason="%s; no %sworker of the stream is connected" % (outcome.reason, kind))
        return outcome

    def _record_end(self, outcome: Outcome) -> None:
        """Record how the attempt ended, and avoid the machine from now on on which it failed again."""
        self._history.hardware = nodes_in(self._members.hardware)
        machine = None if outcome.node is None else self._machine(Member(NODE, outcome.node))
        self._repeat(lambda: self._history.end(self._number, self._progress, outcome, self._started, machine))
        if outcome.cause != FAILURE or outcome.node is None or machine is None or len(self._context.hosts) == 1:
            return
        reason = self._history.failure_of_machine(machine)
        if reason is None:
            return
        if self._is_left_to_user:
            reason += self._remedy([*self._history.avoided(), machine])
        # In a cluster a pod keeps its machine until a placement controller gives the gang others.
        if self._avoid(machine, reason, False) and self._context.slurm:
            text = "machine %s is avoided for this run: %s" % (machine, reason)
            if outcome.node == 0:
                self._notice.give(text)
            else:
                self._members.dismiss(Member(NODE, outcome.node), text)

    def _avoid_unfit(self, outcome: Outcome) -> Outcome:
        """*outcome*, once the machines of nodes that have failed their check are avoided; they leave by themselves."""
        again = []
        for node, reason in self._members.unfit.items():
            machine = self._machine(node)
            if node == COORDINATOR:
                self._notice.give(reason)
            if machine is not None and not self._avoid(machine, reason, True):
                again.append(machine)
        return self._end_on_avoided(again[0]) if again else outcome

    def _machine(self, node: Member) -> str | None:
        """The name of the machine of a node, if it is known."""
        return self._members.machines.get(node, {}).get("name")

    def _avoid(self, machine: str, reason: str, checked: bool) -> bool:
        return self._repeat(lambda: self._history.avoid(machine, reason, checked))

    def _end_on_avoided(self, machine: str) -> Outcome:
        """The end of an attempt whose nodes include a *machine* that the run avoids.

        Slurm gets the job back, with the node excluded. In a cluster only another submission can exclude it, and the
        next pod may pass the check there: the run goes on, and says how to go on without. Where it has a placement
        controller, that gives the gang other nodes.
        """
        avoided = self._history.avoided()
        text = "the run got %s again, which it avoids (%s)" % (machine, avoided[machine])
        if self._is_left_to_user:
            text += self._remedy(avoided)
        return Outcome(INTERRUPTION, text)

    @property
    def _is_left_to_user(self) -> bool:
        """Whether nothing but another submission keeps the run off a machine."""
        return not self._context.slurm and "capacity" not in self._context.plan

    def _remedy(self, avoided: Iterable[str]) -> str:
        run, names = self._context.plan["run"], json.dumps(sorted({*avoided}))
        text = "; to go on without: spotmpi stop %s && spotmpi run --resume %s --set 'kubernetes.avoid+=%s'"
        return text % (run, run, names)

    def _outcome_of_error(self, error: OSError) -> Outcome:
        """The outcome of an attempt that *error* ends; on a full disk there is room now to record it."""
        if error.errno in record.DISK_FULL:
            self._history.record.release_reserve()
        return outcome_of_error(error, self._context.folder)


class AttemptLoop(_NodeZero):
    """What node 0's agent does, attempt after attempt."""

    def __init__(self, context: AgentContext, transport: Transport, notice: PreemptionNotice) -> None:
        super().__init__(context, transport, notice)
        self._errors = 0  # of this machine, which ended the last attempts
        self._futile = 0  # the last attempts, as many as came to nothing
        self._started = context.clock.uptime()

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
            if self._context.is_supervised or isinstance(error, Fenced):
                raise
            import traceback  # delays no start

            traceback.print_exc()
            return self._end("internal error of spotmpi, see agent.log: %r" % error, run_record)
        finally:
            run_record.close()

    def _run_attempts(self, history: AttemptHistory) -> int:
        end = history.recorded_end() if self._context.is_supervised else None
        if end is not None:
            # JobSet shall end as the run did; its other agents find no node 0 to join any more.
            plan = self._context.plan
            waits_for_all = plan["launcher"] == "none" and plan["run_on"] == "all" and not self._context.replaces_nodes
            return Outcome(NOT_RETRYABLE if waits_for_all else end).exit_code
        history.run_deadline = self._deadline_of_run(history)
        final = history.reconcile_lost_attempt() or restart_limit(self._context.plan, self._context.restart_count)
        while True:
            outcome, continues = self._run_attempt(history, final)
            if not continues:
                return outcome.exit_code

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
        members.avoid = lambda machine, reason: self._repeat(lambda: history.avoid(machine, reason, True))
        is_over = continues = False
        try:
            outcome = final or self._run_one(history, members, number)
            outcome = self._record_outcome(history, outcome)
            is_over = outcome.cause not in (FAILURE, INTERRUPTION)
            if not is_over:
                self._pause(lambda: members.serve(0), history.record)
                continues = (members.is_whole() or self._context.replaces_nodes) and self._notice.reason is None
        finally:
            if is_over:
                members.broadcast(over=1, exit_code=outcome.exit_code)
            elif not continues and not self._context.replaces_nodes:  # the workers of a pool or stream stay
                members.broadcast_to_gang(over=1)
            if not continues:
                members.close()
        return outcome, continues

    def _run_one(self, history: AttemptHistory, members: Members, number: int) -> Outcome:
        attempt = CoordinatedAttempt(self._context, self._transport, self._notice, history, members, number)
        outcome = attempt.run()
        self._errors = self._errors + 1 if attempt.met_error else 0
        self._futile = self._futile + 1 if attempt.was_futile else 0
        return outcome

    def _record_outcome(self, history: AttemptHistory, outcome: Outcome) -> Outcome:
        """Record what *outcome* means for the run; the final outcome where a limit or a request turned it into one."""
        if outcome.cause in (FAILURE, INTERRUPTION):
            final = self._repeat(lambda: history.final_outcome(outcome))
            if self._is_to_end():
                final = Outcome(STOPPED, outcome.reason)
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
        return requested or (not self._context.is_supervised and self._notice.reason is not None)

    def _pause(self, serve: Callable[[], None], run_record: record.Record | None = None) -> None:
        """Wait before another attempt if errors of this machine ended the last ones, unless the run is to end.

        On a cluster also where several came to nothing, for what they lack, such as shared storage, may come back; the
        record tells so. JobSet restarts a run at once, however often. *serve* is called meanwhile, again and again.
        """
        futile = 2 * (self._futile - 1) if self._context.is_supervised else 0
        clock = self._context.clock
        seconds = restart_pause(max(self._errors, futile))
        if seconds and futile > self._errors and run_record is not None:
            text = "%d attempts in a row reached no iteration and wrote no checkpoint; the next one begins after %d s"
            with contextlib.suppress(OSError):
                run_record.event(record.WAITING, reason=text % (self._futile, seconds))
        deadline = clock.uptime() + seconds
        while (left := deadline - clock.uptime()) > 0 and not self._notice.reason and not self._is_to_end():
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
        """When ``limits.run`` is over, as `Clock.uptime` counts.

        In pods only the API server's clock, against this node's, tells how much of a run is over; if this one is late,
        at least the time for which its attempts ran is.
        """
        clock, limit = self._context.clock, self._context.plan["limits"]["run"]
        if limit is None:
            return None
        submitted = self._context.plan.get("submitted")
        if submitted is None:
            return self._started + limit
        return clock.uptime() + limit - max(clock() - submitted, history.elapsed)

    def _end_without_record(self, error: OSError, run_record: record.Record | None = None) -> int:
        """The exit code of an agent that cannot record the run; only JobSet's restarts count its attempts then."""
        outcome = outcome_of_error(error, self._context.folder)
        if not self._context.is_supervised:
            outcome = Outcome(NOT_RETRYABLE, outcome.reason)  # it has been tried for minutes
        elif outcome.cause != NOT_RETRYABLE:
            outcome = restart_limit(self._context.plan, self._context.restart_count) or outcome
        remedy = "; make the volume writable for user or group 1000" if error.errno == errno.EACCES else ""
        sys.stderr.write("the run cannot be recorded: %s%s\n" % (error, remedy))
        if outcome.cause == NOT_RETRYABLE:
            return self._end(str(outcome.reason), run_record)
        self._errors = self._context.restart_count
        self._pause(lambda: None)
        return outcome.exit_code

    def _end(self, reason: str, run_record: record.Record | None) -> int:
        """Record that the run has failed, if that is possible; the exit code. One event may fit on a full disk."""
        values = {"reason": reason, **end_of(self._context.plan)}
        with contextlib.suppress(OSError):
            if run_record is not None:
                run_record.event(record.FAILED, **values)
            else:
                with open(os.path.join(self._context.folder, record.EVENTS), "a", encoding="utf-8") as events:
                    events.write(json.dumps({"t": self._context.clock(), "event": record.FAILED, **values}) + "\n")
        return protocol.NOT_RETRYABLE
