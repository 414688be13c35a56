"""The accounts of a run: what each attempt came to, what counts against which limit, and the final summary."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from . import cost_limit, hardware, protocol, record, repeated_losses
from .outcomes import FAILURE, INTERRUPTION, NOT_RETRYABLE, Outcome
from .progress import Progress
from .run_outcome import run_outcome


class AttemptHistory:
    """Keeps the attempts of one run folder.

    *since* is when the run was last submitted: earlier attempts stay in the summary, and count against no limit.
    """

    def __init__(
        self,
        written: record.Record,
        plan: dict[str, Any],
        since: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.record = written
        self.plan = plan
        self.since = since
        self.clock = clock
        self.present = clock()  # from here on this machine works for the run
        self.attempts = _earlier(written.folder)
        self.hardware: dict[int, hardware.Facts] = {}  # of the attempt's nodes, where agents have told

    @property
    def failures(self) -> int:
        """Failed attempts since the submission."""
        return self._counted(FAILURE)

    @property
    def interruptions(self) -> int:
        """Interrupted attempts since the submission."""
        return self._counted(INTERRUPTION)

    def _counts(self) -> dict[str, int]:
        return {"failures": self.failures, "interruptions": self.interruptions}

    def begin(self) -> int:
        """Take the next attempt's number and record that it starts."""
        self.present = self.clock()
        number = self.record.take_attempt()
        self.started(number)
        return number

    def started(self, number: int, machines: Sequence[dict[str, Any]] = ()) -> None:
        """Record that the launcher of attempt *number* is about to start, on which machines where they are told."""
        # A digest names one image only; what a tag stood for when pods pulled it, no agent can see.
        image = self.plan["work"].get("container") or ""
        container = image if "@" in image else None
        self.record.event(
            record.STARTED, attempt=number, **self._counts(), machines=list(machines) or None, container=container
        )

    def paid_until(self) -> float | None:
        """When the attempt that begins now has to end so that ``limits.cost`` holds, or None."""
        return cost_limit.paid_until(self.plan, self.attempts, self.since, self.present)

    def end(self, number: int, progress: Progress, outcome: Outcome, began: float) -> None:
        """Write what attempt *number* came to, which began at *began* (Unix seconds)."""
        values = {
            "attempt": number,
            "node": 0,
            "present": self.present,
            "started": began,
            "ended": self.clock(),
            "cause": outcome.cause,
            "reason": outcome.reason,
            "exit_code": outcome.exit_code,
            "lost_nodes": list(outcome.lost_nodes),
            "resumed_iteration": progress.resumed,
            "first_iteration": progress.first_iteration,
            "first_iteration_time": progress.first_iteration_time,
            "last_iteration": progress.iteration,
            "checkpoint_iteration": progress.checkpoint,
            "lost_iterations": self._lost(progress),
            "hardware": hardware.grouped(self.hardware),
            "context": progress.context,
            "result": progress.result,
        }
        self.record.attempt(number, 0, values)
        self.attempts.append(values)

    def verdict(self, outcome: Outcome) -> Outcome | None:
        """Record an attempt that did not succeed; the run's final `Outcome` where a limit lets no other follow."""
        if outcome.cause == INTERRUPTION:
            self.record.event(record.INTERRUPTED, reason=outcome.reason, interruptions=self.interruptions)
        limit = "failures" if outcome.cause == FAILURE else "interruptions"
        return self._used_up(limit, outcome.reason) or self._in_vain(outcome) or self._spent()

    def _in_vain(self, outcome: Outcome) -> Outcome | None:
        """The end of a run that loses the same node again and again, and gets no further in between."""
        own = [attempt for attempt in self.attempts if attempt["started"] >= self.since]
        node = repeated_losses.node(own)
        if outcome.cause != INTERRUPTION or node is None:
            return None
        reason = "%s; %s" % (outcome.reason, repeated_losses.reason(node))
        return Outcome(NOT_RETRYABLE, reason, protocol.FAILED)

    def _spent(self) -> Outcome | None:
        """The end of a run that another attempt would make too dear."""
        now = self.clock()
        paid_until = cost_limit.paid_until(self.plan, self.attempts, self.since, now)
        if paid_until is None or now < paid_until:
            return None
        return Outcome(NOT_RETRYABLE, cost_limit.reason(self.plan), protocol.NOT_RETRYABLE)

    def settle(self) -> Outcome | None:
        """Make up for an attempt whose agent was lost before it could record anything; gives what `verdict` gives."""
        last = self.attempts[-1] if self.attempts else None
        if last is None or "ended" in last or last["started"] < self.since:
            return None
        return self.verdict(Outcome(last["cause"], last["reason"], protocol.INTERRUPTED))

    def _used_up(self, limit: str, reason: str | None) -> Outcome | None:
        allowed = self.plan["limits"][limit]
        if getattr(self, limit) <= allowed:
            return None
        return Outcome(NOT_RETRYABLE, "%s; limits.%s = %d is used up" % (reason, limit, allowed), protocol.FAILED)

    def again(self, outcome: Outcome) -> None:
        """Record that another attempt follows."""
        self.record.event(record.RESTARTED, reason=outcome.reason, **self._counts())

    def finish(self, outcome: Outcome) -> None:
        """Write the summary and the run's last event."""
        state = run_outcome(cause=outcome.cause) or record.FAILED
        self.record.summary(self._summary(state, outcome))
        self.record.event(state, reason=outcome.reason, **self._counts())

    def _summary(self, state: str, outcome: Outcome) -> dict[str, Any]:
        last = self.attempts[-1] if self.attempts else {}
        contexts = [attempt["context"] for attempt in self.attempts if attempt.get("context")]
        return {
            "id": self.plan["run"],
            "name": self.plan["name"],
            "state": state,
            "reason": outcome.reason,
            "started": self.since,
            "ended": self.clock(),
            **self._counts(),
            "iteration": last.get("last_iteration"),
            "oversubscribed": self.plan["oversubscribed"],
            "work": self._work(),
            "hardware": last.get("hardware", []),
            "image": hardware.shown(hardware.image()),
            "context": contexts[-1] if contexts else {},
            "result": last.get("result", {}),
            "attempts": self.attempts,
        }

    def _work(self) -> dict[str, Any]:
        """What identifies the work; on a cluster only the agents know the machine."""
        found = hardware.work_machine(self.hardware)
        return {**self.plan["work"], "machine": found} if found else self.plan["work"]

    def _counted(self, cause: str) -> int:
        return sum(attempt["cause"] == cause and attempt["started"] >= self.since for attempt in self.attempts)

    def _lost(self, progress: Progress) -> int | None:
        """Iterations of the attempt before that this one has to repeat; None for a first attempt."""
        before = self.attempts[-1]["last_iteration"] if self.attempts else None
        return None if before is None else max(before - (progress.resumed or 0), 0)


def _earlier(folder: str) -> list[dict[str, Any]]:
    """The records of all attempts so far; one without a record ended with its agent, which is an interruption."""
    attempts = os.path.join(folder, "attempts")
    numbers = sorted(int(name) for name in os.listdir(attempts) if name.isdecimal()) if os.path.isdir(attempts) else []
    return [
        _read(os.path.join(attempts, str(number), "node-0.json")) or _vanished(folder, number) for number in numbers
    ]


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path, errors="replace") as file:
            values = _values(file.read())
    except OSError:
        return None
    return values if {"cause", "started", "last_iteration"} <= values.keys() else None


def _vanished(folder: str, number: int) -> dict[str, Any]:
    place = os.path.join(folder, "attempts", str(number))
    return {
        "attempt": number,
        "node": 0,
        "started": os.path.getmtime(place),
        "cause": INTERRUPTION,
        "reason": "its agent was lost without a word",
        "lost_nodes": [0],
        "last_iteration": _last_iteration(folder, number),
    }


def _last_iteration(folder: str, number: int) -> int | None:
    path = os.path.join(folder, "metrics.jsonl")
    last = None
    if os.path.exists(path):
        with open(path, errors="replace") as lines:
            for line in lines:
                values = _values(line)
                if values.get("attempt") == number and values.get("kind") == protocol.METRIC:
                    last = values.get("iteration", last)
    return last


def _values(line: str) -> dict[str, Any]:
    """What a line or a file says; nothing where its writer was cut off."""
    try:
        values = protocol.read_json(line)
    except ValueError:
        return {}
    return values if isinstance(values, dict) and protocol.sound(values.get("kind", ""), values) else {}
