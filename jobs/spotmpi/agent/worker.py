"""The part of every member but node 0: be reachable, run what this pod has to run, and exit when node 0 says so.

The agent stays from one attempt to the next, with its connection to node 0, and ends what is left of the last one. That
of a pod that stands by gets as ready as others, and starts nothing until node 0 gives it the place of a lost node. That
of a worker of a pool or stream keeps a worker process running for as long as the run is up, whatever happens to either.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from . import connection, hardware, network, pod_context, processes, protocol, record
from .attempt import Attempt
from .context import AgentContext
from .files import error_text, exists
from .launch import Launch, gang_commands
from .launcher_output import Line
from .node import (
    POLL_INTERVAL,
    Unfit,
    connected,
    location,
    prepare,
    start_sshd,
    wait_for_imports,
    write_environment,
)
from .outcomes import (
    FAILURE,
    INTERRUPTION,
    NOT_RETRYABLE,
    STOPPED,
    SUCCEEDED,
    Outcome,
    StopRequest,
    outcome_of_error,
    restart_pause,
)
from .plan import NODE, STANDBY, Member, RunPlan
from .pod_record import PodRecord
from .readiness import Staging
from .remote_processes import StartedProcesses
from .replicas import Replicas
from .schema import Greeting
from .stop_requests import PreemptionNotice
from .tcp import Admission, Tcp, read_welcome

if TYPE_CHECKING:  # few runs need it
    from .checkpoint_copies import Exchange

# Seconds without an address of node 0 after which a pod that stands by ends, so that node 0's next pod may have its
# machine; and how much longer each further one waits, since the first may be enough.
VACATE_AFTER, VACATE_NEXT_AFTER = 15.0, 10.0
END_GRACE = 60.0  # seconds from the end of a run to the end of its pods
RETURN_LIMIT = 3600.0  # seconds for which a worker waits for node 0 to come back; its node costs money meanwhile
RETRY_PAUSE = 10.0  # seconds before an error of a worker's pod is tried again
_OVER = StopRequest(Outcome(STOPPED, "node 0 has ended the attempt"), False)


def _silence() -> StopRequest:
    """The end for a node that has not heard of node 0, which may live: it was stopped, and reads why then."""
    reason = "node 0 did not answer for %g s" % connection.HEARTBEAT_TIMEOUT
    return StopRequest(Outcome(INTERRUPTION, reason), False)


class CoordinatorClient:
    """The connection by which node 0 was *joined* and what it requested from then on; a `StopSignal`.

    Whatever node 0 does, this node is left some time after a notice: a pod that is killed counts as failed. Nobody
    waits for a worker that has notice: it leaves at once.
    """

    def __init__(self, joined: Admission, notice: PreemptionNotice, context: AgentContext) -> None:
        self.connection, self.welcome = joined  # of the attempt that this pod works for
        self.newest = self.welcome
        self.go = False
        self.over = False
        self.exit_code = 0  # with which the run has ended
        self.notice = notice
        self.started = StartedProcesses(context.mounts.work, self.report)
        self._ranks = processes.RankWatch(context.clock)
        self._sent_states: dict[int, str] = {}  # of ranks of this attempt
        self._cgroup, self._clock = context.mounts.cgroup, context.clock
        # Node 0 has heard of the notice a moment later, and may wait for a checkpoint for all of the grace.
        self._grace = context.plan["grace"] + pod_context.END_TIME / 2
        self._is_worker = context.is_worker
        self._leave_at = float("inf")  # the end of the grace after a notice, as `Clock.uptime` counts
        self._ended = 0  # the newest attempt that has ended
        self._oom_kills = hardware.oom_kills(self._cgroup)  # before this attempt
        self._notice_sent = self._oom_sent = False
        self._is_silent = False  # whether node 0 has answered nothing for long

    @property
    def ends(self) -> bool:
        """Whether what is left of this attempt is to be killed."""
        return self.is_closed or self._ended >= self.welcome.attempt or self.has_next

    @property
    def is_closed(self) -> bool:
        """Whether this node has nothing more to do for this agent of node 0."""
        return self.over or self.connection.lost or self._leaves or self._clock.uptime() > self._leave_at

    @property
    def _leaves(self) -> bool:
        """Whether this is a worker that has notice, and node 0 was told so."""
        return self._is_worker and self._notice_sent

    @property
    def has_next(self) -> bool:
        """Whether there is a newer attempt, or this node is another member in this one, or it has other nodes."""
        return self.newest != self.welcome

    def begin(self) -> None:
        """Work for the newest attempt from now on."""
        self.welcome = self.newest
        self.go = self._oom_sent = False
        self._ranks, self._sent_states = processes.RankWatch(self._clock), {}  # ranks may have other numbers now
        self._oom_kills = hardware.oom_kills(self._cgroup)

    def poll(self) -> None:
        """Receive messages, and tell node 0 when this node is about to go or lacked memory."""
        for message in self.connection.receive():
            self.newest = read_welcome(message) if "welcome" in message else self.newest
            self._ended = int(message.get("end", self._ended))
            self.go = self.go or "go" in message
            self.over = self.over or "over" in message
            self.exit_code = int(message.get("exit_code", self.exit_code))
            if "leave" in message:
                self.leave(str(message["leave"]))
            if "start" in message and message.get("attempt") == self.welcome.attempt and not self.ends:
                self.started.start(int(message["start"]), str(message["command"]))
        # Those who follow the run see that node 0 answers nothing, and that it answers again.
        limit = connection.HEARTBEAT_TIMEOUT
        was_silent, self._is_silent = self._is_silent, self.connection.silence > limit / 3
        if self._is_silent != was_silent:
            reason = pod_context.NODE_0_IS_SILENT % (self.connection.silence, self.welcome.attempt, limit)
            text = reason if self._is_silent else "no longer, it answers again"
            sys.stderr.write("%s%s\n" % (pod_context.WAITS_FOR_NODE_0, text))
        self.started.supervise()
        for name in self._ranks.look(()):
            sys.stderr.write(processes.LEFT_BEHIND % name + "\n")
        if self._sent_states != self._ranks.states and not self.ends:
            self._sent_states = self._ranks.states
            self.report(ranks=self._sent_states)
        if self.notice.reason and not self._notice_sent:
            self._give_notice(self.notice.reason)
        if not self._oom_sent and hardware.oom_kills(self._cgroup) > self._oom_kills:
            self._oom_sent = True
            self.report(oom_killed=1)

    def leave(self, reason: str, **more: int) -> None:
        """Let this node leave the run: its pod ends, and others do not wait for it."""
        self.notice.give(reason)
        self._give_notice(reason, **more)

    def _give_notice(self, reason: str, **more: int) -> None:
        self._notice_sent, self._leave_at = True, self._clock.uptime() + self._grace
        self.connection.send(notice=reason, **more)

    def wait(self) -> None:
        """`poll` once something has arrived, or after `POLL_INTERVAL`."""
        self.connection.wait(POLL_INTERVAL)
        self.poll()

    def report(self, **message: Any) -> None:
        """Tell node 0 something of this attempt."""
        self.connection.send(attempt=self.welcome.attempt, **message)

    def report_end(self, code: int, reason: str | None) -> None:
        """Tell node 0 that this node's part of the attempt has ended with *code*, and why."""
        self.report(ended=code, reason=reason and protocol.truncate(reason))

    def pending(self) -> StopRequest | None:
        """The `StopRequest` for this node's own launcher, or None."""
        self.poll()
        if not self.ends:
            return None
        # Node 0 ends the connection of a worker that leaves, whose process shall end by itself.
        return _silence() if self.connection.lost and not self._leaves else _OVER

    def patience(self) -> float | None:
        """None: node 0 ends the attempt."""
        return None

    def kill_requested(self) -> bool:
        """Whether node 0 has ended the attempt and goes on with another. It is served while the attempt ends, too."""
        self.poll()
        return self.ends and not (self.over or self._leaves)


def run(context: AgentContext, transport: Tcp, notice: PreemptionNotice, started: float) -> int:
    """This member's part of the run, attempt after attempt; the pod's exit code.

    A worker, or a node where these are replaced one by one, joins each agent of node 0 that follows. Such a node
    outlives the last one: the first pod of a run that ends with 0 ends all of them.

    A node 0 that was lost may need long for another node, while nobody follows the run: nothing starts a worker again
    that has ended, so it waits for longer.
    """
    try:
        worker, member = Worker(context, transport.exchange), context.member
    except OSError as error:
        sys.stderr.write("the output of this worker cannot be recorded: %s\n" % error_text(error))
        return protocol.FAILED
    joins_again = context.is_worker or context.replaces_nodes
    limit, later = context.plan["limits"]["start"], RETURN_LIMIT if context.is_worker else 0.0
    if context.restart_count:
        limit = max(limit, later)
    try:
        while True:
            joined = join_coordinator(context, transport, notice, started, limit, member)
            if joined is None:
                if notice.reason or not context.is_worker:
                    return protocol.INTERRUPTED
                worker.report_absence(limit)
                return 0
            coordinator = CoordinatorClient(joined, notice, context)
            worker.run(coordinator)
            coordinator.connection.close()  # which may have fallen silent alone
            started, member, limit = context.clock(), coordinator.welcome.member, max(limit, later)
            if coordinator.over or notice.reason or not joins_again:
                break
    finally:
        worker.close()
    if context.is_worker and coordinator.over:
        return 0
    if notice.reason or not coordinator.over:
        return protocol.INTERRUPTED
    if not context.replaces_nodes:
        return 0
    # JobSet ends this pod once node 0's has ended.
    deadline = context.clock.uptime() + END_GRACE
    while context.clock.uptime() < deadline and not notice.reason:
        context.clock.sleep(POLL_INTERVAL)
    return coordinator.exit_code


class Worker:
    """What the agent of a node does, apart from node 0's, or that of a worker of a pool or stream.

    Raises:
        OSError: the output of such a worker cannot be recorded.
    """

    def __init__(self, context: AgentContext, exchange: Exchange | None = None) -> None:
        self._context = self._whole = context  # of the current attempt, and with all nodes that the run may have
        self._exchange = exchange  # of checkpoints in memory
        self._coordinator: CoordinatorClient  # to the current agent of node 0
        self._facts: hardware.Facts | None = None  # once this node is prepared
        self._is_staged = self._has_sshd = False
        self._record: PodRecord | None = None  # of what this agent starts itself
        self._errors = 0  # of this machine, which ended the last attempts
        self._number = 0  # of a worker, in place of an attempt: under which its output is recorded
        if context.is_worker:
            self._number = 1 + max(context.restart_count, _last_log(context))
            self._open_record()

    def run(self, coordinator: CoordinatorClient) -> None:
        """Take part in attempts until node 0 ends the last one, or is lost; then none of their processes is left."""
        self._coordinator = coordinator
        while True:
            coordinator.begin()
            _, member, nodes = coordinator.welcome
            pods = None if nodes is None else [Member(NODE, number) for number in range(nodes)]
            self._context = self._whole.with_pods(pods)._replace(member=member)
            if self._exchange is not None:
                self._exchange.begin(self._context, coordinator.connection)
            self._take_part()
            while not coordinator.ends:
                coordinator.wait()
            processes.kill_descendants()
            coordinator.started.clear()
            if coordinator.is_closed:
                break
            processes.clear_shared_memory(self._context.mounts.shared_memory)
            coordinator.report(idle=1)
            while not (coordinator.has_next or coordinator.is_closed):
                coordinator.wait()

    def close(self) -> None:
        """Close what this member has recorded."""
        if self._record is not None:
            self._record.close()

    def report_absence(self, limit: float) -> None:
        """Record that a worker ends, since node 0 has not come for *limit* seconds."""
        context, name = self._context, "%g s" % limit
        if limit == context.plan["limits"]["start"]:
            name = "limits.start (%s)" % protocol.duration(limit)
        text = "no connection to node 0 within %s: this worker ends" % name
        self._open_record().line(self._number, context.member, Line(None, "e", text))

    def _take_part(self) -> None:
        """Prepare this node for the attempt, report that it is ready or why it cannot be, and carry out its part."""
        coordinator = self._coordinator
        context = self._context = connected(self._context, coordinator.connection.address)
        try:
            facts = self._facts = prepare(context, self._facts)
            environment = write_environment(context, self._number or coordinator.welcome.attempt)
        except Unfit as error:
            if context.member.role == STANDBY:  # it stands by, and keeps other pods from this machine
                sys.stderr.write("this pod does not get ready: %s\n" % error_text(error))
                return
            coordinator.leave(str(error), unfit=1)
            return
        except (hardware.Incompatible, OSError) as error:
            code = outcome_of_error(error).exit_code if isinstance(error, OSError) else protocol.NOT_RETRYABLE
            if code == protocol.INTERRUPTED and not context.is_worker:  # another attempt follows
                self._wait(restart_pause(self._errors))
                self._errors += 1
            self._end(code, str(error))
            return
        self._errors = 0
        self._is_staged = self._is_staged or self._stage_data()
        if context.stands_by:  # else ranks wait for the imports themselves
            wait_for_imports(context, self._serve)
        if self._exchange is not None:  # else what the first iterations do could be lost with node 0
            self._exchange.wait(context.clock, self._poll)
        if self._is_staged and not coordinator.ends:
            nodes = coordinator.welcome.nodes
            coordinator.report(ready=1, hardware=facts, **({} if nodes is None else {"nodes": nodes}))
            if not self._has_sshd:
                self._has_sshd = True
                start_sshd(context)
            if context.has_launcher or context.is_worker:
                self._launch_and_report(environment)

    def _stage_data(self) -> bool:
        """Whether the data is on this node; a failure is reported to node 0."""
        staging = Staging(self._context.plan.get("staging"), self._context.mounts.cgroup)
        while staging.busy and not self._coordinator.ends:
            self._coordinator.wait()
        if staging.failure:
            self._end(staging.failure.exit_code, staging.failure.reason)
        return not staging.busy and not staging.failure

    def _serve(self) -> bool:
        """Serve node 0 for a moment; whether the attempt goes on."""
        self._coordinator.connection.wait(POLL_INTERVAL)
        return self._poll()

    def _poll(self) -> bool:
        """Serve node 0; whether the attempt goes on."""
        self._coordinator.poll()
        return not self._coordinator.ends

    def _wait(self, seconds: float) -> None:
        """Serve node 0 for so long, or until the attempt is over or this pod has notice."""
        coordinator, clock = self._coordinator, self._context.clock
        deadline = clock.uptime() + seconds
        while not (coordinator.notice.reason or coordinator.ends) and clock.uptime() < deadline:
            coordinator.wait()

    def _end(self, code: int, reason: str | None) -> None:
        """Report that this member's part of the attempt has ended, and why.

        A worker, which the others do not wait for, joins node 0 anew after a while where that can help.
        """
        self._coordinator.report_end(code, reason)
        if self._context.is_worker and code != protocol.NOT_RETRYABLE:
            self._wait(RETRY_PAUSE)
            self._coordinator.connection.close()

    def _launch_and_report(self, environment: dict[str, str]) -> None:
        """`_launch`, with every error reported to node 0, which would otherwise count a lost host."""
        try:
            self._launch(environment)
        except OSError as error:
            outcome = outcome_of_error(error, self._context.folder)
            self._end(outcome.exit_code, outcome.reason)
        except Exception as error:
            traceback.print_exc()
            self._end(protocol.FAILED, "internal error of spotmpi: %r" % error)

    def _launch(self, environment: dict[str, str]) -> None:
        """Run this node's own launcher once node 0 says so, or the worker, and report how it ended."""
        context, coordinator = self._context, self._coordinator
        while not (coordinator.go or coordinator.ends or context.is_worker):
            coordinator.wait()
        if coordinator.ends:
            return
        pod_record, own = self._open_record(), location(context, environment)
        pod_record.close_logs()
        if context.is_worker:
            number, launch = self._number, Launch([], environment, context.pid_file, Replicas(context, own))
        else:
            commands = gang_commands(context.plan, [context.member.number], own)
            number, launch = coordinator.welcome.attempt, Launch(commands, environment, context.pid_file)
        # Only rank 0 reports iterations: that others print none, or that a worker has no calls, means nothing.
        plan: RunPlan = {**context.plan, "limits": {**context.plan["limits"], "no_progress": None}}
        outcome = Attempt(number, plan, launch, pod_record, coordinator, context.clock).run()
        if context.is_worker and outcome.cause != NOT_RETRYABLE:
            if not coordinator.ends:  # node 0 was silent for too long, and answers again
                coordinator.connection.close()
            return
        code = 0 if outcome.cause == SUCCEEDED else outcome.exit_code or protocol.FAILED
        if outcome.cause == FAILURE and outcome.node is None:
            code = protocol.KILLED
        self._end(code, outcome.reason)

    def _open_record(self) -> PodRecord:
        """The record of what this agent starts itself."""
        if self._record is None:
            os.makedirs(self._context.folder, exist_ok=True)
            self._record = PodRecord(self._context.folder, self._context.clock)
        return self._record


def _last_log(context: AgentContext) -> int:
    """The number of the newest output of this worker that the run folder has; 0 where it has none.

    Kubernetes counts failed pods, but forgets them when a pool shrinks; where the run folder lasts, it knows better.
    """
    logs, name = os.path.join(context.folder, "logs"), context.member.file + ".log"
    own = [each for each in record.numbers(logs) if exists(os.path.join(logs, str(each), name))]
    return max(own, default=0)


def join_coordinator(
    context: AgentContext,
    transport: Tcp,
    notice: PreemptionNotice,
    started: float,
    limit: float,
    member: Member,
) -> Admission | None:
    """The connection to node 0; None after *limit* seconds, or on notice.

    *started* is the Unix time from which on this pod works for the run.

    Waiting for node 0 costs nothing but time: it may be scheduled later, and its name may not resolve yet. But a pod
    that stands by, as *member* says, leaves while node 0 has no address: its next pod may have no other machine.
    """
    greeting: Greeting = {
        "member": context.member.text,
        "restart_count": context.restart_count,
        "machine": hardware.identify(context.member, started),
    }
    last_reason, seen = "", context.clock.uptime()
    patience = None
    if context.standby and member.role == STANDBY:
        patience = VACATE_AFTER + VACATE_NEXT_AFTER * member.number
    deadline = context.clock.uptime() + limit
    while context.clock.uptime() < deadline and not notice.reason:
        answer = transport.join(context, greeting)
        if not isinstance(answer, str):
            return answer
        if answer != last_reason:
            last_reason = answer
            sys.stderr.write("%s%s\n" % (pod_context.WAITS_FOR_NODE_0, answer))
        if patience is not None and not network.has_no_address(context.hosts[0]):
            seen = context.clock.uptime()
        elif patience is not None and context.clock.uptime() >= seen + patience:
            notice.give("node 0 has had no address for %g s: its next pod may need this machine" % patience)
            sys.stderr.write("%s\n" % notice.reason)
        context.clock.sleep(POLL_INTERVAL)
    return None
