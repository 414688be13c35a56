"""Node 0's part of an attempt: wait for all hosts, launch, record, and decide how it ended."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable

from . import hardware, machine, memory, protocol, record, ssh, system_errors
from .arrival import Arrival
from .attempt import Attempt
from .attempt_history import AttemptHistory
from .coordinator_requests import LeaderRequests
from .fencing import Fenced
from .node import Daemon, Notice, attempt_plan, own_hardware, unpack_code, write_environment
from .outcomes import FAILURE, INTERRUPTION, NOT_RETRYABLE, STOPPED, SUCCEEDED, Outcome
from .peers import Coordinator
from .pod_context import PodContext
from .pod_record import PodRecord
from .progress import Progress
from .staging import Staging

RENDEZVOUS_PORT = "23456"  # torch's users know it
TALK = 1.0  # seconds between words on who is awaited; hundreds of hosts come within one
ASKING = 5.0  # seconds in which every agent has to show that it lives after a launcher failed
_EXIT = {SUCCEEDED: 0, STOPPED: 0, FAILURE: 1, INTERRUPTION: 75, NOT_RETRYABLE: 78}


def run(here: PodContext, notice: Notice) -> int:
    """One attempt, led from here; the pod's exit code."""
    try:
        return _lead(here, notice)
    except Fenced as fenced:
        sys.stderr.write("%s\n" % fenced)
        return protocol.INTERRUPTED


def _lead(here: PodContext, notice: Notice) -> int:
    try:
        os.makedirs(here.folder, exist_ok=True)
        written = PodRecord(here.folder)
    except OSError as error:
        return _unrecorded(here, error)
    try:
        for name, text in here.plan["files"].items():
            written.text(name, text)
        return _run(here, notice, written)
    except OSError as error:
        written.give_up_reserve()
        return _unrecorded(here, error, written)
    finally:
        written.close()


def _unrecorded(here: PodContext, error: OSError, written: PodRecord | None = None) -> int:
    """The exit code of an attempt that cannot be recorded; only JobSet's restarts count it then."""
    outcome = system_errors.outcome(error)
    outcome = outcome if outcome.cause == NOT_RETRYABLE else _too_often(here) or outcome
    reason = record.full(error, here.folder) if error.errno in record.FULL else outcome.reason
    sys.stderr.write("the run cannot be recorded: %s\n" % error)
    if written and outcome.cause == NOT_RETRYABLE:
        with contextlib.suppress(OSError):
            written.event(record.FAILED, reason=reason)
    return outcome.exit_code


def _run(here: PodContext, notice: Notice, written: PodRecord) -> int:
    accounts = AttemptHistory(written, here.plan, here.plan["submitted"])
    spent = accounts.settle() or _too_often(here)
    number = written.take_attempt()
    hub = Coordinator(here.token, len(here.hosts), here.generation, {"welcome": number})
    try:
        outcome = _recorded(accounts, spent or _attempt(here, notice, accounts, hub, number, written.check_fence))
    finally:
        hub.tell(over=1)
        hub.close()
    return _EXIT[outcome.cause]


def _too_often(here: PodContext) -> Outcome | None:
    """The end of a run that was restarted more often than both limits allow: without a volume, no record counts them.

    JobSet counts failures, not interruptions; a pod that is killed for memory, each time anew, looks like one.
    """
    allowed = here.plan["limits"]["failures"] + here.plan["limits"]["interruptions"]
    if here.generation <= allowed:
        return None
    reason = "restarted %d times: limits.failures + limits.interruptions = %d are used up" % (here.generation, allowed)
    return Outcome(NOT_RETRYABLE, reason, protocol.NOT_RETRYABLE)


def _attempt(
    here: PodContext,
    notice: Notice,
    accounts: AttemptHistory,
    hub: Coordinator,
    number: int,
    check_fence: Callable[[], None],
) -> Outcome:
    """How the attempt ended, which is recorded also where nothing was launched."""
    try:
        daemon = _made_ready(here, accounts)
        requests = LeaderRequests(here, hub, notice, daemon, check_fence)
        arrival = Arrival(here.hosts, hub, Staging(here.plan["staging"]))
        missed = _wait_for_hosts(here.plan["limits"]["start"], accounts.record, hub, requests, arrival)
        accounts.hardware.update(hub.hardware)
        if missed is None:
            daemon.pin(arrival.addresses)
            plan = attempt_plan(here, write_environment(here, number), RENDEZVOUS_PORT)
            attempt = Attempt(number, plan, accounts.record, requests, _deadlines(here, accounts))
    except (ssh.KeysWrong, hardware.Unfit) as error:
        missed = Outcome(NOT_RETRYABLE, str(error), protocol.NOT_RETRYABLE)
    except OSError as error:
        missed = system_errors.outcome(error)
    if missed:
        accounts.end(number, Progress(accounts.present), missed, accounts.present)
        return missed
    return _launch(here, accounts, hub, requests, attempt)


def _made_ready(here: PodContext, accounts: AttemptHistory) -> Daemon:
    """This pod's sshd, once the machine and the code are known to be fit."""
    accounts.hardware[0] = own_hardware(here)
    unpack_code(here)
    return Daemon(here)


def _launch(
    here: PodContext, accounts: AttemptHistory, hub: Coordinator, requests: LeaderRequests, attempt: Attempt
) -> Outcome:
    accounts.started(attempt.number, [machine.describe(0, accounts.present), *hub.machines.values()])
    hub.tell(go=1)
    began = time.time()
    try:
        outcome = _carry_out(here, hub, requests, attempt)
    except OSError as error:
        if error.errno in record.FULL:
            raise
        outcome = system_errors.outcome(error)
    accounts.end(attempt.number, attempt.progress, outcome, began)
    return outcome


def _carry_out(here: PodContext, hub: Coordinator, requests: LeaderRequests, attempt: Attempt) -> Outcome:
    outcome = attempt.run()
    if outcome.cause == SUCCEEDED:
        outcome = _others(hub, requests, here.launching - 1)
    if outcome.cause == FAILURE:
        outcome = _interrupted_after_all(hub, requests) or _of_memory(hub, outcome)
    # mpirun may have noticed first that a host is gone, and it names no node.
    if outcome.cause == INTERRUPTION and not outcome.lost_nodes:
        hub.serve(0.05)
        outcome = outcome._replace(lost_nodes=requests.lost_nodes())
    return outcome


def _deadlines(here: PodContext, accounts: AttemptHistory) -> dict[str, float | None]:
    limits = here.plan["limits"]
    run = limits["run"]
    return {
        "start": time.time() + limits["start"],
        "run": run and here.plan["submitted"] + run,
        "cost": accounts.paid_until(),
    }


def _wait_for_hosts(
    limit: float, written: record.Record, hub: Coordinator, requests: LeaderRequests, arrival: Arrival
) -> Outcome | None:
    """None once nothing is missing, else the outcome of waiting for *limit* seconds; says what it waits for."""
    deadline, said, spoke = time.monotonic() + limit, "", 0.0
    while True:
        hub.serve(0.05)
        text = arrival.awaited()
        if text is None:
            return None
        ending = requests.wanted()
        if ending:
            return ending.outcome
        if arrival.failed:
            return arrival.failed._replace(reason="node 0: %s" % arrival.failed.reason)
        if time.monotonic() > deadline:
            reason = "limits.start (%gs) is over: %s" % (limit, text)
            return Outcome(NOT_RETRYABLE, reason, protocol.NOT_RETRYABLE)
        if text != said and time.monotonic() > spoke + TALK:
            said, spoke = text, time.monotonic()
            written.event(record.WAITING, reason=text)


def _others(hub: Coordinator, requests: LeaderRequests, count: int) -> Outcome:
    """How the launchers of the other nodes ended, once node 0's own has succeeded."""
    while len(hub.ended) < count:
        ending = requests.wanted()
        if ending:
            return ending.outcome
        hub.serve(0.1)
    return requests.failed() or Outcome(SUCCEEDED, None, 0)


def _interrupted_after_all(hub: Coordinator, requests: LeaderRequests) -> Outcome | None:
    """An interruption, when the launcher failed because a host went: asks until every agent has shown that it lives."""
    asked, deadline = time.monotonic(), time.monotonic() + ASKING
    while time.monotonic() < deadline:
        interrupted = requests.interruption()
        if interrupted:
            return interrupted
        if all(worker.heard > asked + 0.5 for worker in hub.workers.values()):
            return None
    return None


def _of_memory(hub: Coordinator, outcome: Outcome) -> Outcome:
    """The failure *outcome*, with the nodes where the kernel has killed for want of memory."""
    oom_killed = [*([0] if memory.ran_out() else []), *sorted(hub.oom_killed)]
    if not oom_killed:
        return outcome
    where = ", ".join("node %d" % node for node in oom_killed)
    return outcome._replace(reason="%s; out of memory on %s: raise resources.memory" % (outcome.reason, where))


def _recorded(accounts: AttemptHistory, outcome: Outcome) -> Outcome:
    """Write what *outcome* means for the run; the final outcome where a limit turned it into one."""
    if outcome.cause in (FAILURE, INTERRUPTION):
        last = accounts.verdict(outcome)
        if last is None:
            accounts.again(outcome)
            return outcome
        outcome = last
    accounts.finish(outcome)
    return outcome
