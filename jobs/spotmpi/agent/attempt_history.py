"""The attempts of a run: how each ended, which limits they count against, and the summary at the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from . import files, hardware, outcomes, protocol, record
from .clock import CLOCK, Clock
from .launch import World, world_of
from .outcomes import FAILURE, INTERRUPTION, NOT_RETRYABLE, STOPPED, SUCCEEDED, Deadlines, Outcome, run_outcome
from .plan import Member, RunPlan, read_member
from .progress import Progress
from .schema import (
    ATTEMPT_VERSION,
    SUMMARY_VERSION,
    AttemptRecord,
    Summary,
    read_attempt,
    read_object,
    read_world,
)

_WORLD = "world.json"  # in the folder of an attempt
_CAUSES = {record.SUCCEEDED: SUCCEEDED, record.STOPPED: STOPPED, record.FAILED: NOT_RETRYABLE}  # of a run's end


class AttemptHistory:
    """Reads and writes the attempts of one run folder.

    *since* is when the run was last submitted, and names that submission: several agents share it, and no clock is
    compared with it. *first* is its first attempt, by default the one that its first agent noted in the folder: earlier
    ones stay in the summary, and count against no limit. *image_record* is the file of the image's versions.
    """

    def __init__(
        self,
        run_record: record.Record,
        plan: RunPlan,
        since: float,
        clock: Clock = CLOCK,
        first: int | None = None,
        image_record: str = hardware.IMAGE_RECORD,
    ) -> None:
        self.record = run_record
        self.plan = plan
        self.since = since
        self.clock = clock
        self._image_record = image_record
        self.first = record.first_attempt(run_record.folder, repr(since)) if first is None else first
        self._begin_allocation()
        self._has_ended_one = False
        self.attempts = read_attempts(run_record.folder)
        self.run_deadline: float | None = None  # when ``limits.run`` is over, as `Clock.uptime` counts
        self.world: World | None = None  # of the newest attempt
        self.hardware: dict[int, hardware.Facts] = {}  # of the attempt's nodes, as far as agents reported it

    @property
    def failures(self) -> int:
        """Failed attempts since the submission."""
        return self._count(FAILURE)

    @property
    def interruptions(self) -> int:
        """Interrupted attempts since the submission."""
        return self._count(INTERRUPTION)

    def begin(self) -> int:
        """The number of a new attempt, from which on this machine works for it, and its world, if a price is known."""
        if not self._has_ended_one:  # the pause after an attempt belongs to the next one, which needs no Unix time
            self._begin_allocation()
        number = self.record.claim_attempt()
        self.world = world_of(self.plan, number)
        if self.world.rate is not None:  # it is paid for also where no record of its end is written
            self._write_world(self.world)
        return number

    def record_start(self, number: int, machines: Sequence[dict[str, Any]]) -> None:
        """Record that the launchers of attempt *number* are about to start, and on which *machines* where known."""
        # A digest names one image only; what a tag stood for when pods pulled it, no agent can see.
        image = self.plan["work"].get("container") or ""
        container = image if "@" in image else None
        market = self.plan.get("machine", {}).get("market")
        if market:
            machines = [{**each, "market": market} for each in machines]
        nodes = len(self.world.members) if self.world and "elastic" in self.plan else None
        self.record.event(
            record.STARTED,
            attempt=number,
            **self._counts(),
            nodes=nodes,
            machines=list(machines) or None,
            container=container,
        )

    def set_pods(self, plan: RunPlan, pods: list[Member], others: int) -> None:
        """Record that the nodes of the newest attempt are those of *plan*, and which of all pods do their work.

        Of a run that may have fewer nodes, *others* are there besides, and are paid for too, where no controller gives
        them back: what they cost until then is in its decision.
        """
        assert self.world is not None, "it has begun"
        own = world_of(plan, self.world.attempt)
        self.world = self.world._replace(members=own.members, pods=pods)
        if "elastic" in plan:
            standby = 0 if "capacity" in plan else others
            rate = None if own.rate is None else own.rate * (len(pods) + standby) / len(pods)
            self.world = self.world._replace(size=own.size, rate=rate, standby=standby)
        self._write_world(self.world)

    def record_decisions(self, decisions: Sequence[Mapping[str, Any]]) -> None:
        """Record where the gang was placed, as far as no earlier agent has: decisions are made while none may run.

        Besides *decisions*, with which this agent's pod was created, these are the newer ones in the run folder.
        """
        if self.plan.get("capacity") is None:
            return
        from . import placement  # delays no start of a local run

        state = placement.parse(files.read_text(os.path.join(self.record.folder, record.PLACEMENT)))
        decisions = [*decisions, *(state["decisions"] if state else ())]
        recorded = {each.get("t") for each in _events(self.record.folder, record.PLACED)}
        for decision in decisions:
            values = placement.event_values(decision, self.since)
            if values["t"] not in recorded:
                recorded.add(values["t"])
                self.record.event(record.PLACED, **values)

    @property
    def elapsed(self) -> float:
        """Seconds for which attempts since the submission had their nodes, as far as agents recorded that."""
        return sum(attempt.get("elapsed", 0.0) for attempt in self._counted())

    def deadlines(self) -> Deadlines:
        """When the current attempt, or the one that would follow now, has to start to end."""
        ending = self.plan.get("ending")
        return Deadlines(self.run_deadline, self._cost_deadline(), ending and ending["at"], self._rate or 0.0)

    def avoided(self) -> dict[str, str]:
        """The machines on which this run is not to go on, and why, since its first submission."""
        return avoided_machines(self.record.folder)

    def avoid(self, machine: str, reason: str, checked: bool) -> bool:
        """Record that *machine* is avoided from now on, by its check or for failures; whether it was not yet.

        One that is at fault again, by its check or by failures, has the time of the submission in ``again``.
        """
        is_new = machine not in self.avoided()
        again = {} if is_new and checked else {"again": self.since}
        if is_new or machine not in failed_again(self.record.folder, self.since):
            self.record.event(record.AVOIDED, machine=machine, reason=reason, checked=checked, **again)
        return is_new

    def avoided_machine(self, machines: Mapping[int, Mapping[str, Any]]) -> str | None:
        """The name of one of *machines* that is avoided for failures, or None: of a check, the next one tells."""
        events = _events(self.record.folder, record.AVOIDED) if machines else []
        avoided = {each.get("machine") for each in events if not each.get("checked")}
        return next((each["name"] for each in machines.values() if each.get("name") in avoided), None)

    def failure_of_machine(self, machine: str) -> str | None:
        """Why *machine* is at fault for the failures of this run, or None.

        It was that of the rank that failed first, twice, after different iterations: a fault of the program comes at
        the same one each time, and on each machine.
        """
        failed = [each for each in self.attempts if each["cause"] == FAILURE and each.get("failed_machine")]
        iterations = {each["last_iteration"] for each in failed} - {None}
        if len(iterations) < 2 or any(each["failed_machine"] != machine for each in failed):
            return None
        numbers = " and ".join(str(each["attempt"]) for each in failed)
        return "attempts %s failed there, after different iterations" % numbers

    def end(
        self, number: int, progress: Progress, outcome: Outcome, started: float, machine: str | None = None
    ) -> None:
        """Write the record of attempt *number*, whose launcher started at *started* (Unix seconds).

        *machine* is that on which it failed, where known.
        """
        assert self.world is not None, "it has begun"
        values: AttemptRecord = {
            "version": ATTEMPT_VERSION,
            "attempt": number,
            "node": 0,
            "allocated": self.allocated_since,
            "started": started,
            "ended": self.clock(),
            "elapsed": self.clock.elapsed() - self._elapsed_from,
            "cause": outcome.cause,
            "reason": outcome.reason,
            "exit_code": outcome.exit_code,
            "lost_nodes": list(outcome.lost_nodes),
            "failed_machine": machine,
            "world": self.world.record(),
            "resumed_iteration": progress.resumed,
            "first_iteration": progress.first_iteration,
            "first_iteration_time": progress.first_iteration_time,
            "start": None
            if progress.first_iteration_elapsed is None
            else max(progress.first_iteration_elapsed - self._elapsed_from, 0.0),  # as its program times iterations
            "last_iteration": progress.iteration,
            "checkpoint_iteration": progress.checkpoint,
            "lost_iterations": self._lost_iterations(progress),
            "hardware": hardware.group_nodes(self.hardware),
            "context": progress.context,
            "result": progress.result,
        }
        self.record.attempt(number, 0, values)
        self.attempts.append(values)
        self._has_ended_one = True
        self._begin_allocation()

    def final_outcome(self, outcome: Outcome) -> Outcome | None:
        """Record an attempt that did not succeed; the run's final `Outcome` where a limit permits no other attempt."""
        if outcome.cause == INTERRUPTION:
            self.record.event(record.INTERRUPTED, reason=outcome.reason, interruptions=self.interruptions)
        limit: Literal["failures", "interruptions"] = "failures" if outcome.cause == FAILURE else "interruptions"
        futile = outcomes.same_again(outcome, self.attempts) or self._count_limit(limit, outcome.reason)
        return futile or self._repeated_loss(outcome) or self._deadline()

    def reconcile_lost_attempt(self) -> Outcome | None:
        """`final_outcome` of the last attempt if its agent was lost before it could record one; otherwise None."""
        last = self._counted()[-1:]
        if not last or "ended" in last[0]:
            return None
        return self.final_outcome(Outcome(last[0]["cause"], last[0].get("reason")))

    def recorded_end(self) -> str | None:
        """The cause with which this submission has ended, where an earlier agent recorded that; otherwise None.

        JobSet starts all agents anew for a pod that was disrupted, also where node 0 has just recorded the end.
        """
        summary = _read_summary(self.record.folder)
        if summary.get("started") != self.since or summary.get("state") not in _CAUSES:
            return None
        last = next((each["event"] for each in reversed(list(_events(self.record.folder))) if "event" in each), None)
        if last not in record.TERMINAL:  # its agent was cut off in between
            self._record_end(summary["state"], summary.get("reason"))
        return _CAUSES[summary["state"]]

    def record_restart(self, outcome: Outcome) -> None:
        """Record that another attempt follows."""
        self.record.event(record.RESTARTED, reason=outcome.reason, **self._counts())

    def finish(self, outcome: Outcome) -> None:
        """Write the summary and the run's last event."""
        self.record_decisions(())
        state = run_outcome(cause=outcome.cause) or record.FAILED
        self.record.summary(self._summary(state, outcome))
        self._record_end(state, outcome.reason)

    def _record_end(self, state: str, reason: str | None) -> None:
        self.record.event(state, reason=reason, **self._counts(), **end_of(self.plan))

    def _write_world(self, world: World) -> None:
        self.record.write_json(os.path.join("attempts", str(world.attempt), _WORLD), world.record())

    def _begin_allocation(self) -> None:
        """From here on this machine works for the run."""
        self.allocated_since, self._elapsed_from = self.clock(), self.clock.elapsed()

    def _counted(self) -> list[AttemptRecord]:
        """The attempts of this submission. Their numbers say so; the clocks of two machines, or of one, may not."""
        return [attempt for attempt in self.attempts if attempt["attempt"] >= self.first]

    def _counts(self) -> dict[str, int]:
        return {"failures": self.failures, "interruptions": self.interruptions}

    def _count(self, cause: str) -> int:
        return sum(attempt["cause"] == cause for attempt in self._counted())

    def _count_limit(self, limit: Literal["failures", "interruptions"], reason: str | None) -> Outcome | None:
        allowed = self.plan["limits"][limit]
        if getattr(self, limit) <= allowed:
            return None
        return Outcome(NOT_RETRYABLE, "%s; no retries left (limits.%s = %d)" % (reason, limit, allowed))

    def _repeated_loss(self, outcome: Outcome) -> Outcome | None:
        """The end of a run that loses the same node again and again, and makes no progress in between."""
        node = outcomes.repeatedly_lost_node(self._counted())
        if outcome.cause != INTERRUPTION or node is None:
            return None
        return Outcome(NOT_RETRYABLE, "%s; %s" % (outcome.reason, outcomes.loss_reason(node)))

    def _deadline(self) -> Outcome | None:
        """The end of a run whose limits leave nothing for another attempt, whose nodes would be paid for in vain."""
        exceeded = self.deadlines().exceeded(self.plan, self.clock)
        return exceeded and exceeded.outcome

    def _cost_deadline(self) -> float | None:
        """When the current attempt has to start to end so that ``limits.cost`` holds, by `Clock.elapsed`; or None."""
        left = outcomes.seconds_left(self.plan, self._rate, self._counted(), self.allocated_since)
        return None if left is None else self._elapsed_from + left

    @property
    def _rate(self) -> float | None:
        """US dollars per hour of the newest attempt, or of the first."""
        return self.plan["rate"] if self.world is None else self.world.rate

    def _summary(self, state: str, outcome: Outcome) -> Summary:
        """How the run ended, with all its attempts."""
        last = self.attempts[-1] if self.attempts else None
        contexts = [attempt["context"] for attempt in self.attempts if attempt.get("context")]
        return {
            "version": SUMMARY_VERSION,
            "id": self.plan["run"],
            "name": self.plan["name"],
            "state": state,
            "reason": outcome.reason,
            "started": self.since,
            "ended": self.clock(),
            "failures": self.failures,
            "interruptions": self.interruptions,
            "iteration": last["last_iteration"] if last else None,
            "oversubscribed": self.plan["oversubscribed"],
            "work": self._work(),
            "hardware": last.get("hardware", []) if last else [],
            "image": hardware.image_summary(hardware.image_record(self._image_record)),
            "context": contexts[-1] if contexts else {},
            "result": last.get("result", {}) if last else {},
            "attempts": self.attempts,
        }

    def _work(self) -> dict[str, Any]:
        """What identifies the work; on a cluster only the agents know the machine."""
        machine = hardware.work_machine(self.hardware)
        work = self.plan["work"]
        return {**work, "machine": machine} if machine else work

    def _lost_iterations(self, progress: Progress) -> int | None:
        """Iterations of earlier attempts that this one has repeated; None where it or they have none."""
        known = [each.get("last_iteration") for each in self.attempts]
        before = next((each for each in reversed(known) if each is not None), None)
        if before is None or progress.first_iteration is None:
            return None
        start = progress.resumed
        if start is None:  # a program need not report where it resumes
            start = progress.first_iteration - 1
        return max(before - start, 0)


def read_attempts(folder: str, iterations: bool = True) -> list[AttemptRecord]:
    """The records of all attempts so far; one without a record ended with its agent, which is an interruption.

    Its last iteration is found among all metrics of the run, and is None where *iterations* are not needed.
    """
    attempts = os.path.join(folder, "attempts")
    return [
        _read_file(os.path.join(attempts, str(number), "node-0.json"), number) or _lost(folder, number, iterations)
        for number in record.numbers(attempts)
    ]


def has_record(folder: str, number: int) -> bool:
    """Whether node 0's agent has recorded how attempt *number* ended."""
    return files.exists(os.path.join(folder, "attempts", str(number), "node-0.json"))


def avoided_machines(folder: str) -> dict[str, str]:
    """The machines on which the run of *folder* is not to go on, and why."""
    return {str(each.get("machine")): str(each.get("reason")) for each in _events(folder, record.AVOIDED)}


def failed_again(folder: str, since: float) -> list[str]:
    """The machines that were at fault again in the submission that began at *since*, so the run gets no pod there."""
    again = (each for each in _events(folder, record.AVOIDED) if each.get("again") == since)
    return sorted({str(each.get("machine")) for each in again})


def pods_at_work(folder: str, first: int = 0) -> list[Member] | None:
    """The pods that did the work of the nodes when ranks were last started, where pods stand by; None before.

    Attempts before the *first* do not count.
    """
    attempts = os.path.join(folder, "attempts")
    for number in reversed([number for number in record.numbers(attempts) if number >= first]):
        pods = read_object(files.read_text(os.path.join(attempts, str(number), _WORLD))).get("pods")
        if isinstance(pods, list):
            with contextlib.suppress(ValueError):
                return [read_member(str(pod)) for pod in pods]
    return None


def was_moved(folder: str) -> bool:
    """Whether the gang was placed on another node group since ranks were last started."""
    group, moved = None, False
    for event in _events(folder):
        if event.get("event") == record.PLACED:
            moved = moved or group not in (None, event.get("group"))
            group = event.get("group")
        elif event.get("event") == record.STARTED:
            moved = False
    return moved


def _read_file(path: str, number: int) -> AttemptRecord | None:
    """The record of attempt *number*; None where there is none, or its writer was cut off."""
    values = read_attempt(files.read_text(path))
    return {**values, "attempt": number} if values else None


def _lost(folder: str, number: int, iterations: bool) -> AttemptRecord:
    """The record of an attempt whose agent could not write one; *iterations* tells whether to look for the last one."""
    lost: AttemptRecord = {
        "version": ATTEMPT_VERSION,
        "attempt": number,
        "node": 0,
        "started": _begun(os.path.join(folder, "attempts", str(number))),
        "cause": INTERRUPTION,
        "reason": "the agent of node 0 was lost before it could record the attempt",
        "lost_nodes": [0],
        "last_iteration": _last_iteration(folder, number) if iterations else None,
    }
    world = read_world(read_object(files.read_text(os.path.join(folder, "attempts", str(number), _WORLD))))
    if world is not None:
        lost["world"] = world
    return lost


def _begun(attempt: str) -> float:
    """When the folder *attempt* was written; in a copy of it the files alone have their times."""
    times = [os.path.getmtime(attempt)]
    with contextlib.suppress(FileNotFoundError):
        times.append(os.path.getmtime(os.path.join(attempt, _WORLD)))
    return min(times)


def _last_iteration(folder: str, number: int) -> int | None:
    last = None
    for values in _objects(folder, record.METRICS):
        if values.get("attempt") == number and values.get("kind") == protocol.METRIC:
            last = values.get("iteration", last)
    return last


def end_of(plan: RunPlan) -> dict[str, float]:
    """What tells the end of this submission of a run from that of another: no clock does, as any may be set."""
    return {record.SUBMISSION: plan["submitted"]} if "submitted" in plan else {}


def _read_summary(folder: str) -> dict[str, Any]:
    """How a submission ended; empty where none has."""
    try:
        values = protocol.read_json(files.read_text(os.path.join(folder, record.SUMMARY)))
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def _events(folder: str, kind: str | None = None) -> Iterator[dict[str, Any]]:
    """The events recorded so far, by default those of every *kind*."""
    return (each for each in _objects(folder, record.EVENTS) if kind in (None, each.get("event")))


def _objects(folder: str, name: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a file of the run folder, one a line; none without the file."""
    with contextlib.suppress(FileNotFoundError):
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as lines:
            yield from map(read_object, lines)
