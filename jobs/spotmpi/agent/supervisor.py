"""Supervises a run on this machine: starts attempts until one succeeds or a limit is reached.

    python -m spotmpi.agent.supervisor RUN_FOLDER

It reads the plan from the folder, is the only writer of its record, and needs no terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from . import launchers, processes, protocol, record
from .attempt import Attempt
from .attempt_history import AttemptHistory
from .clock import CLOCK, Clock
from .outcomes import FAILURE, INTERRUPTION, NOT_RETRYABLE, STOPPED, Outcome, is_permanent, outcome_of_error
from .plan import LocalPlan, read_local_plan
from .stop_requests import FolderStopSource

PLAN = "plan.yaml"
PAUSES = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60)  # seconds between repetitions of a step of the record
MAX_PAUSE = 60.0  # seconds between two attempts
T = TypeVar("T")


class Supervisor:
    """Runs *plan* in *folder* and records it; mpirun makes *scratch* for what its processes share."""

    def __init__(
        self,
        folder: str,
        plan: LocalPlan,
        scratch: str,
        clock: Clock = CLOCK,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.plan = plan
        self.scratch = scratch
        self.clock = clock
        self.sleep = sleep
        self._errors = 0  # of this machine, which ended the last attempts
        self.started = clock.awake()
        self.record = record.Record(folder, clock)
        self.stop_source = FolderStopSource(folder)
        first = self.record.next_attempt()
        self.history = AttemptHistory(self.record, plan, clock(), clock, first)

    def run(self) -> int:
        """Run attempts until the end; the exit code of the last attempt's outcome, 0 when it was stopped on request."""
        processes.adopt_orphans()
        self.stop_source.install_handlers()
        while True:
            outcome = self._attempt()
            if outcome.cause not in (FAILURE, INTERRUPTION):
                break
            final = self._repeat(partial(self.history.final_outcome, outcome))
            if self.stop_source.pending():
                final = Outcome(STOPPED, outcome.reason, outcome.exit_code)
            if final:
                outcome = final
                break
            self._repeat(partial(self.history.record_restart, outcome))
            self._pause()
        self._repeat(partial(self.history.finish, outcome))
        self.record.close()
        return outcome.exit_code

    def _attempt(self) -> Outcome:
        number, started = self._repeat(self.history.begin), self.clock()
        attempt = Attempt(number, self._plan_of(number), self.record, self.stop_source, self._deadlines(), self.clock)
        errors, self._errors = self._errors, 0
        try:
            outcome = attempt.run()
            self._repeat(lambda: self.history.end(number, attempt.progress, outcome, started))
        except OSError as error:
            outcome = Outcome(NOT_RETRYABLE, self.error_reason(error), protocol.FAILED)
            if not is_permanent(error):  # as in pods, another attempt follows
                outcome, self._errors = outcome_of_error(error), errors + 1
            self._repeat(lambda: self.history.end(number, attempt.progress, outcome, started))
        return outcome

    def _pause(self) -> None:
        """Wait before another attempt if errors of this machine ended the last ones, unless the run shall end."""
        seconds = min(2.0 ** (self._errors - 1), MAX_PAUSE) if self._errors else 0.0
        while seconds > 0 and not self.stop_source.pending():
            self.sleep(min(seconds, 1.0))
            seconds -= 1.0

    def _repeat(self, step: Callable[[], T]) -> T:
        return repeat(step, self.sleep)

    def _plan_of(self, number: int) -> LocalPlan:
        """The plan with mpirun's variables for an attempt; where the user or the spec sets any such, as it is.

        Open MPI 5 refuses a folder for all nodes together with one for this node or the others.
        """
        if any(name.endswith("tmpdir_base") for name in (*os.environ, *self.plan["environment"])):
            return self.plan
        session = launchers.session_environment(os.path.join(self.scratch, str(number)))
        return {**self.plan, "environment": {**session, **self.plan["environment"]}}

    def error_reason(self, error: OSError) -> str:
        """The reason of a run that ends by *error*; on a full disk this releases the reserve, to record that end."""
        if error.errno in record.DISK_FULL:
            self.record.release_reserve()
            return record.disk_full_reason(error, self.record.folder)
        return "%s: %s" % (error.filename or self.record.folder, error.strerror)

    def _deadlines(self) -> dict[str, float | None]:
        """As `Attempt` takes them: ``limits.run`` counts from the submission, ``limits.start`` from this attempt."""
        limits = self.plan["limits"]
        run = limits["run"]
        return {
            "start": self.clock.awake() + limits["start"],
            "run": run and self.started + run,
            "cost": self.history.cost_deadline(),
        }


def repeat(step: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """What *step* gives, which is repeated for about two minutes while it raises an error that may pass."""
    for seconds in PAUSES:
        try:
            return step()
        except OSError as error:
            if is_permanent(error):
                raise
        sleep(seconds)
    return step()


def main(arguments: list[str]) -> int:
    """Run the supervisor for a folder; its parent holds the lock of the folder and passes it on."""
    folder = os.path.abspath(arguments[0])
    plan = repeat(lambda: read_local_plan(os.path.join(folder, PLAN)))
    os.chdir("/")
    scratch = os.path.join(os.environ.get("TMPDIR") or "/tmp", "spotmpi-" + os.urandom(8).hex())
    try:
        return processes.run_guarded(lambda: _supervise(folder, plan, scratch))
    finally:
        import shutil  # delays no start

        shutil.rmtree(scratch, ignore_errors=True)


def _supervise(folder: str, plan: LocalPlan, scratch: str) -> int:
    try:
        supervisor = repeat(lambda: Supervisor(folder, plan, scratch))
    except OSError as error:
        return _record_unavailable(folder, error)
    try:
        return supervisor.run()
    except OSError as error:
        if error.errno not in record.DISK_FULL and os.path.isdir(folder):
            _print_traceback()
        return _end_early(supervisor, supervisor.error_reason(error))
    except Exception as error:
        _print_traceback()
        return _end_early(supervisor, "internal error of spotmpi, see supervisor.log: %r" % error)


def _print_traceback() -> None:
    import traceback  # delays no start

    traceback.print_exc()


def _end_early(supervisor: Supervisor, reason: str) -> int:
    """End a run that cannot continue; if its folder is gone, nothing is recorded."""
    with contextlib.suppress(OSError):
        supervisor.record.event(record.FAILED, reason=reason)
    supervisor.record.close()
    return 1


def _record_unavailable(folder: str, error: OSError) -> int:
    """End a run whose record cannot be opened; one event may still fit on the disk."""
    line = json.dumps({"t": CLOCK(), "event": record.FAILED, "reason": record.disk_full_reason(error, folder)}) + "\n"
    with contextlib.suppress(OSError), open(os.path.join(folder, "events.jsonl"), "a") as events:
        events.write(line)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
