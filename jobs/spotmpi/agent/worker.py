"""The part of every node but 0: be reachable, run what this node has to run, and exit when node 0 says so."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from . import hardware, processes, protocol, ssh
from .attempt import Attempt, Launch
from .connection import Connection
from .context import AgentContext
from .launch import gang_commands
from .node import POLL_INTERVAL, Daemon, check_hardware, place, unpack_code, write_environment
from .notice import Notice
from .outcomes import STOPPED, SUCCEEDED, Outcome, StopRequest, outcome_of_error, restart_pause
from .plan import RunPlan
from .pod_record import PodRecord
from .schema import Greeting
from .staging import Staging
from .tcp import Tcp

_OVER = StopRequest(Outcome(STOPPED, "node 0 has ended the attempt", 0), False)


class CoordinatorLink:
    """The connection to node 0, and what it requested; a `StopSource`."""

    def __init__(
        self, connection: Connection, notice: Notice, daemon_error: Callable[[], str | None], cgroup: str
    ) -> None:
        self.connection = connection
        self.go = False
        self.over = False
        self.notice = notice
        self._daemon_error = daemon_error
        self._cgroup = cgroup
        self._notice_sent = self._oom_sent = False

    def poll(self) -> None:
        """Receive messages, and tell node 0 when this node is about to go or lacked memory."""
        for message in self.connection.receive():
            self.go = self.go or "go" in message
            self.over = self.over or "over" in message
        reason = self.notice.reason or self._daemon_error()
        if reason and not self._notice_sent:
            self._notice_sent = True
            self.connection.send(notice=reason)
        if not self._oom_sent and hardware.oom_kills(self._cgroup):
            self._oom_sent = True
            self.connection.send(oom_killed=1)

    def report_end(self, code: int, reason: str | None) -> None:
        """Tell node 0 that this node's part has ended with *code*, and why."""
        self.connection.send(ended=code, reason=reason and protocol.truncate(reason))

    def pending(self) -> StopRequest | None:
        """The `StopRequest` for this node's own launcher, or None."""
        self.poll()
        return _OVER if self.over or self.connection.lost else None

    def kill_requested(self) -> bool:
        """Never: node 0 decides. It is served while the attempt ends, too."""
        self.poll()
        return False


def run(context: AgentContext, transport: Tcp, notice: Notice, started: float) -> int:
    """This node's part of one attempt; the pod's exit code."""
    joined = join_coordinator(context, transport, notice, started)
    if joined is None:
        return protocol.INTERRUPTED
    connection, attempt = joined
    try:
        facts = check_hardware(context)
        unpack_code(context)
        daemon = Daemon(context)
        environment = write_environment(context, attempt)
    except (ssh.InvalidKeys, hardware.Incompatible, OSError) as error:
        code = outcome_of_error(error).exit_code if isinstance(error, OSError) else protocol.NOT_RETRYABLE
        link = CoordinatorLink(connection, notice, lambda: None, context.mounts.cgroup)
        if code == protocol.INTERRUPTED:
            wait_for_restart(context, notice, link.poll)
        link.report_end(code, str(error))
    else:
        link = CoordinatorLink(connection, notice, daemon.error, context.mounts.cgroup)
        if stage_data(context, link):
            connection.send(ready=1, hardware=facts)
            if context.has_launcher:
                _launch_and_report(context, link, environment, attempt)
    while not (link.over or connection.lost):
        link.poll()
        context.clock.sleep(POLL_INTERVAL)
    processes.kill_descendants()
    return 0 if link.over and not notice.reason else protocol.INTERRUPTED


def join_coordinator(
    context: AgentContext, transport: Tcp, notice: Notice, started: float, limit: float | None = None
) -> tuple[Connection, int] | None:
    """The connection to node 0 and the attempt's number; None after *limit* seconds, or on notice.

    *started* is the Unix time from which on this node works for the run. By default *limit* is ``limits.start``.

    Waiting for node 0 costs nothing but time: it may be scheduled later, and its name may not resolve yet.
    """
    greeting: Greeting = {
        "node": context.node,
        "generation": context.generation,
        "machine": hardware.identify(context.node, started),
    }
    last_reason = ""
    deadline = context.clock.awake() + (context.plan["limits"]["start"] if limit is None else limit)
    while context.clock.awake() < deadline and not notice.reason:
        answer = transport.join(context, greeting)
        if not isinstance(answer, str):
            return answer
        if answer != last_reason:
            last_reason = answer
            sys.stderr.write("waiting for node 0: %s\n" % answer)
        context.clock.sleep(POLL_INTERVAL)
    return None


def wait_for_restart(context: AgentContext, notice: Notice, serve: Callable[[], object]) -> None:
    """Wait before an error of this machine restarts the run once more, which JobSet does at once, however often.

    *serve* is called meanwhile, again and again. A signal to end ends it.
    """
    clock = context.clock
    deadline = clock.awake() + restart_pause(context.generation)
    while not notice.reason and clock.awake() < deadline:
        serve()
        clock.sleep(POLL_INTERVAL)


def without_progress(plan: RunPlan) -> RunPlan:
    """The plan of a node that reports no iterations, as only rank 0 does: that it prints none means nothing."""
    return {**plan, "limits": {**plan["limits"], "no_progress": None}}


def stage_data(context: AgentContext, link: CoordinatorLink) -> bool:
    """Whether the data is on this node; a failure is reported to node 0."""
    staging = Staging(context.plan.get("staging"), context.mounts.cgroup)
    while staging.busy and not (link.over or link.connection.lost):
        link.poll()
        context.clock.sleep(POLL_INTERVAL)
    if staging.failure:
        link.report_end(staging.failure.exit_code, staging.failure.reason)
    return not staging.busy and not staging.failure


def _launch_and_report(context: AgentContext, link: CoordinatorLink, environment: dict[str, str], attempt: int) -> None:
    """`_launch`, with every error reported to node 0, which would otherwise count a lost host."""
    try:
        _launch(context, link, environment, attempt)
    except OSError as error:
        outcome = outcome_of_error(error, context.folder)
        link.report_end(outcome.exit_code, outcome.reason)
    except Exception as error:
        traceback.print_exc()
        link.report_end(protocol.FAILED, "internal error of spotmpi: %r" % error)


def _launch(context: AgentContext, link: CoordinatorLink, environment: dict[str, str], attempt: int) -> None:
    """Run this node's own launcher once node 0 says so, and report how it ended."""
    while not (link.go or link.over or link.connection.lost):
        link.poll()
        context.clock.sleep(POLL_INTERVAL)
    if not link.go:
        return
    os.makedirs(context.folder, exist_ok=True)
    pod_record = PodRecord(context.folder, context.clock)
    commands = gang_commands(context.plan, [context.node], place(context, environment))
    launch = Launch(commands, environment, context.pid_file)
    outcome = Attempt(
        attempt, without_progress(context.plan), launch, pod_record, link, {"start": None, "run": None}, context.clock
    ).run()
    pod_record.close()
    code = 0 if outcome.cause == SUCCEEDED else outcome.exit_code or protocol.FAILED
    link.report_end(code, outcome.reason)
