"""Supervises a run on this machine: attempts until one succeeds or the limits are reached.

    python -m spotmpi.agent.supervisor RUN_FOLDER

It reads the plan from the folder, is the only writer of its record, and needs no terminal.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import time
import traceback
from typing import Any

from . import processes, protocol, record
from .attempt import Attempt
from .attempt_history import AttemptHistory
from .clock import Clock
from .outcomes import FAILURE, INTERRUPTION, NOT_RETRYABLE, STOPPED, Outcome
from .stop_requests import Requests

_CLOCK = Clock()
LOCK = ".lock"  # held by the supervisor as long as it lives
PLAN = "plan.yaml"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Supervisor:
    """Carries out *plan* in *folder* and records it."""

    def __init__(self, folder: str, plan: dict[str, Any], clock: Clock = _CLOCK) -> None:
        self.plan = plan
        self.clock = clock
        self.began = clock.awake()
        self.record = record.Record(folder, clock)
        self.requests = Requests(folder)
        self.accounts = AttemptHistory(self.record, plan, clock(), clock)

    def run(self) -> int:
        """Attempt until the end; the exit code of the last attempt's outcome, 0 when it was stopped as asked."""
        processes.adopt_orphans()
        self.requests.listen()
        while True:
            outcome = self._attempt()
            if outcome.cause not in (FAILURE, INTERRUPTION):
                break
            last = self.accounts.verdict(outcome)
            if self.requests.told_to_end():
                last = Outcome(STOPPED, outcome.reason, outcome.exit_code)
            if last:
                outcome = last
                break
            self.accounts.again(outcome)
        self.accounts.finish(outcome)
        self.record.close()
        return outcome.exit_code

    def _attempt(self) -> Outcome:
        number, began = self.accounts.begin(), self.clock()
        attempt = Attempt(number, self.plan, self.record, self.requests, self._deadlines(), self.clock)
        try:
            outcome = attempt.run()
            self.accounts.end(number, attempt.progress, outcome, began)
        except OSError as error:
            outcome = Outcome(NOT_RETRYABLE, self.refused(error), protocol.FAILED)
            self.accounts.end(number, attempt.progress, outcome, began)
        return outcome

    def refused(self, error: OSError) -> str:
        """Why something could not be started or recorded; on a full disk there is room for last words from now on."""
        if error.errno in _FULL:
            self.record.give_up_reserve()
            return record.full(error, self.record.folder)
        return "%s: %s" % (error.filename or self.record.folder, error.strerror)

    def _deadlines(self) -> dict[str, float | None]:
        """Unix seconds: the run's counts from its submission, a start's from the attempt that it is asked of.

        Of the time since the submission only that counts in which this machine was awake.
        """
        limits = self.plan["limits"]
        run = limits["run"]
        return {
            "start": self.clock() + limits["start"],
            "run": run and self.clock() + run - (self.clock.awake() - self.began),
            "cost": self.accounts.paid_until(),
        }


def main(arguments: list[str]) -> int:
    """Run the supervisor for a folder; whoever starts it holds the folder's lock and hands it down."""
    folder = os.path.abspath(arguments[0])
    with open(os.path.join(folder, PLAN)) as file:
        plan = json.load(file)
    os.chdir("/")
    return processes.guarded(lambda: _supervise(folder, plan))


def _supervise(folder: str, plan: dict[str, Any]) -> int:
    try:
        supervisor = Supervisor(folder, plan)
    except OSError as error:
        return _no_record(folder, error)
    try:
        return supervisor.run()
    except OSError as error:
        if error.errno not in _FULL and os.path.isdir(folder):
            traceback.print_exc()
        return _last_words(supervisor, supervisor.refused(error))
    except Exception as error:
        traceback.print_exc()
        return _last_words(supervisor, "a fault of spotmpi's own, see supervisor.log: %r" % error)


def _last_words(supervisor: Supervisor, reason: str) -> int:
    """End a run that cannot be carried on; nobody is left to hear when its folder is gone."""
    with contextlib.suppress(OSError):
        supervisor.record.event(record.FAILED, reason=reason)
    supervisor.record.close()
    return 1


def _no_record(folder: str, error: OSError) -> int:
    """End a run whose record cannot be opened; the little that says so may still fit."""
    line = json.dumps({"t": time.time(), "event": record.FAILED, "reason": record.full(error, folder)}) + "\n"
    with contextlib.suppress(OSError), open(os.path.join(folder, "events.jsonl"), "a") as events:
        events.write(line)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
