"""The part of every node but 0: be reachable, run what this node has to run, and end when told."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable

from . import hardware, machine, memory, processes, protocol, record, ssh, system_errors
from .attempt import Attempt
from .connection import Connection
from .coordinator import RENDEZVOUS_PORT
from .node import Daemon, Notice, attempt_plan, own_hardware, unpack_code, write_environment
from .outcomes import STOPPED, SUCCEEDED, Outcome, StopRequest
from .peers import join
from .pod_context import PodContext
from .pod_record import PodRecord
from .staging import Staging

LOOK = 0.05  # seconds between looks
_OVER = StopRequest(Outcome(STOPPED, "node 0 has ended the attempt", 0), False)


class Link:
    """The connection to node 0, and what came over it."""

    def __init__(self, connection: Connection, notice: Notice, trouble: Callable[[], str | None]) -> None:
        self.connection = connection
        self.go = False
        self.over = False
        self._notice = notice
        self._trouble = trouble
        self._told = self._starved = False

    def look(self) -> None:
        """Take messages, and tell node 0 when this node is about to go."""
        for message in self.connection.receive():
            self.go = self.go or "go" in message
            self.over = self.over or "over" in message
        reason = self._notice.reason or self._trouble()
        if reason and not self._told:
            self._told = True
            self.connection.send(notice=reason)
        if not self._starved and memory.ran_out():
            self._starved = True
            self.connection.send(oom_killed=1)

    def ended(self, code: int, reason: str | None) -> None:
        """Tell node 0 that this node's part has ended with *code*, and why."""
        self.connection.send(ended=code, reason=reason and protocol.bounded(reason))

    def wanted(self) -> StopRequest | None:
        """That this node's own launcher shall end, or None (see `Attempt`)."""
        self.look()
        return _OVER if self.over or self.connection.lost else None

    def urgent(self) -> bool:
        """Never: node 0 decides. It hears of us also while we end."""
        self.look()
        return False


def run(here: PodContext, notice: Notice, began: float) -> int:
    """This node's part of one attempt; the pod's exit code."""
    joined = _join(here, notice, began)
    if joined is None:
        return protocol.INTERRUPTED
    connection, attempt = joined
    try:
        facts = own_hardware(here)
        unpack_code(here)
        daemon = Daemon(here)
        environment = write_environment(here, attempt)
    except (ssh.KeysWrong, hardware.Unfit, OSError) as error:
        code = system_errors.outcome(error).exit_code if isinstance(error, OSError) else protocol.NOT_RETRYABLE
        link = Link(connection, notice, lambda: None)
        link.ended(code, str(error))
    else:
        link = Link(connection, notice, daemon.trouble)
        if _staged(here, link):
            connection.send(ready=1, hardware=facts)
            if here.launches:
                _launch_told(here, link, environment, attempt)
    while not (link.over or connection.lost):
        link.look()
        time.sleep(LOOK)
    processes.kill_descendants()
    return 0 if link.over and not notice.reason else protocol.INTERRUPTED


def _join(here: PodContext, notice: Notice, began: float) -> tuple[Connection, int] | None:
    """The connection to node 0 and the attempt's number; None when there is none within ``limits.start``, or no time.

    Waiting for node 0 costs nothing but time: it may be scheduled later, and its name may not resolve yet.
    """
    hello = {"node": here.node, "generation": here.generation, "machine": machine.describe(here.node, began)}
    said = ""
    while time.time() < began + here.plan["limits"]["start"] and not notice.reason:
        answer = join(here.hosts[0], here.token, hello)
        if not isinstance(answer, str):
            return answer[0], int(answer[1]["welcome"])
        if answer != said:
            said = answer
            sys.stderr.write("waiting for node 0: %s\n" % answer)
        time.sleep(LOOK)
    return None


def _staged(here: PodContext, link: Link) -> bool:
    """Whether the data is on this node; why it cannot be is told to node 0."""
    staging = Staging(here.plan["staging"])
    while staging.busy and not (link.over or link.connection.lost):
        link.look()
        time.sleep(LOOK)
    if staging.failure:
        link.ended(staging.failure.exit_code, staging.failure.reason)
    return not staging.busy and not staging.failure


def _launch_told(here: PodContext, link: Link, environment: dict[str, str], attempt: int) -> None:
    """`_launch`; what it cannot cope with is told to node 0, which would else count a lost host."""
    try:
        _launch(here, link, environment, attempt)
    except OSError as error:
        reason = record.full(error, here.folder) if error.errno in record.FULL else str(error)
        link.ended(system_errors.outcome(error).exit_code, reason)
    except Exception as error:
        traceback.print_exc()
        link.ended(protocol.FAILED, "a fault of spotmpi's own: %r" % error)


def _launch(here: PodContext, link: Link, environment: dict[str, str], attempt: int) -> None:
    """Run this node's own launcher when told to go, and tell node 0 how it ended."""
    while not (link.go or link.over or link.connection.lost):
        link.look()
        time.sleep(LOOK)
    if not link.go:
        return
    os.makedirs(here.folder, exist_ok=True)
    written = PodRecord(here.folder)
    plan = attempt_plan(here, environment, RENDEZVOUS_PORT)
    # Only rank 0 reports; a quiet worker is no sign of anything.
    plan["limits"] = {**plan["limits"], "no_progress": None}
    outcome = Attempt(attempt, plan, written, link, {"start": None, "run": None}).run()
    written.close()
    code = 0 if outcome.cause == SUCCEEDED else outcome.exit_code or protocol.FAILED
    link.ended(code, outcome.reason)
