"""What runs cost: by market and node group, what each interruption cost, and the forecast beside what came."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

from spotmpi.agent import outcomes, record
from spotmpi.agent.attempt_history import read_attempts
from spotmpi.agent.files import is_file
from spotmpi.agent.outcomes import SUCCEEDED
from spotmpi.agent.schema import AttemptRecord
from spotmpi.capacity.job import chance, hours
from spotmpi.core.names import RunPaths
from spotmpi.core.wording import counted, dollars
from spotmpi.report.figures import MISSING, number
from spotmpi.report.report import Section
from spotmpi.runs import reader
from spotmpi.spec.source import load_spec

_HOUR = 3600.0


@dataclass(frozen=True)
class Paid:
    """An attempt with its node group and market, None where unknown, its seconds with nodes and what they cost.

    For ``elapsed`` of these seconds it lasted, up to its last report if it was lost with its agents; None without one.
    """

    run: str
    attempt: AttemptRecord
    group: str | None
    market: str | None
    seconds: float
    elapsed: float | None
    rate: float | None  # US dollars per hour of all nodes and pods that stood by
    submission: int = 0  # of the run, see `_Submissions`

    @property
    def dollars(self) -> float | None:
        """What it cost, with the pause behind it."""
        return None if self.rate is None else self.seconds * self.rate / _HOUR

    @property
    def standby_dollars(self) -> float:
        """What the pods that stood by cost of that."""
        world = self.attempt.get("world")
        if world is None or not (standby := world.get("standby", 0)):
            return 0.0
        return (self.dollars or 0.0) * standby / (len(world.get("pods") or world["members"]) + standby)


def paid(paths: RunPaths) -> list[Paid]:
    """The attempts of a run, each at the rate that its agent recorded for it.

    Between two submissions it had no nodes. One that was lost with its agents had them up to its last report at least.
    """
    attempts = read_attempts(str(paths.folder))
    placements, submissions = _placements(paths)
    seconds: list[float] = []
    for submission, own in groupby(attempts, submissions.number_of):
        group = list(own)
        last = group[-1]
        end = last.get("ended") or submissions.ends.get(submission) or reader.last_report(paths, last["attempt"])
        seconds += outcomes.node_seconds(group, last["started"] if end is None else end)
    return [
        Paid(
            paths.id,
            attempt,
            _machine(attempt, "node_group") or placements.get(attempt["attempt"], {}).get("group"),
            _machine(attempt, "market") or placements.get(attempt["attempt"], {}).get("market"),
            seconds[number],
            _elapsed(paths, attempt),
            attempt["world"]["rate"] if "world" in attempt else None,
            submissions.number_of(attempt),
        )
        for number, attempt in enumerate(attempts)
    ]


def _elapsed(paths: RunPaths, attempt: AttemptRecord) -> float | None:
    if "elapsed" in attempt or "ended" in attempt:
        return attempt.get("elapsed")
    report = reader.last_report(paths, attempt["attempt"])
    return None if report is None else max(report - attempt["started"], 0.0)


def spending_sections(runs: Sequence[RunPaths]) -> Iterator[Section]:
    """What *runs* cost, as far as their attempts have a known price, and what their interruptions cost."""
    attempts = [each for paths in runs for each in paid(paths)]
    if priced := [each for each in attempts if each.rate is not None]:
        yield _spending(runs, priced, len(attempts) - len(priced))
    if interruptions := tuple(_interruptions(attempts)):
        header = ("Run", "Attempt", "Ended by", "Pause s", "Start s", "Repeated iterations", "$")
        note = (
            "A start is the time from the nodes to the first iteration, or to the end of an attempt that reached none; "
            "the cost has pause, start and repetition."
        )
        yield Section("Interruptions", (note,), header, interruptions, 3)


def _spending(runs: Sequence[RunPaths], priced: Sequence[Paid], others: int) -> Section:
    """What attempts with a known price cost, and the sum; *others* have none."""
    places: dict[tuple[str, str], list[Paid]] = {}
    for each in priced:
        places.setdefault((each.group or MISSING, each.market or MISSING), []).append(each)
    cells = tuple(
        (
            group,
            market,
            str(len(own)),
            number(sum(each.seconds for each in own) / _HOUR),
            number(sum(each.dollars or 0.0 for each in own)),
        )
        for (group, market), own in places.items()
    )
    total = dollars(sum(each.dollars or 0.0 for each in priced))
    text = [f"{total} for nodes in {counted(len(priced), 'attempt')}, at the prices when they were submitted."]
    if others:
        text.append(f"{counted(others, 'attempt')} without a known price not included.")
    standby = sum(each.standby_dollars for each in priced)
    if standby > 0 and not any(map(_has_workers, runs)):  # which cost other dollars of the same rate
        text.append(f"{dollars(standby)} of these are for pods that stood by.")
    text += [sentence for paths in runs if (sentence := _released_nodes(paths))]
    text += [sentence for paths in runs if (sentence := forecast(paths))]
    return Section("Spending", tuple(text), ("Node group", "Market", "Attempts", "Hours", "$"), cells, 2)


def _has_workers(paths: RunPaths) -> bool:
    return is_file(paths.spec) and bool(load_spec(paths.spec).workers)


def _released_nodes(paths: RunPaths) -> str | None:
    """What nodes of a run cost that waited for others, and were released."""
    events = [each for each in reader.lines(paths.events) if each.get("event") == record.PLACED and each.get("idle")]
    if not events:
        return None
    node_hours = sum(each["idle"] for each in events) / _HOUR
    spent = [each["idle_dollars"] for each in events if isinstance(each.get("idle_dollars"), int | float)]
    cost = f", which cost {dollars(sum(spent))}" if len(spent) == len(events) else ""
    return f"{paths.id} released nodes that had waited for others, {number(node_hours)} node hours{cost}."


def avoided_section(runs: Sequence[RunPaths]) -> Section | None:
    """The machines that *runs* avoid, and why; None where none does."""
    cells = tuple(
        (paths.id, str(event.get("machine")), str(event.get("reason")))
        for paths in runs
        for event in reader.lines(paths.events)
        if event.get("event") == record.AVOIDED and not (event.get("again") and event.get("checked"))
    )
    note = "Machines that failed their check, or were at fault for failures."
    return Section("Avoided machines", (note,), ("Run", "Machine", "Reason"), cells, 3) if cells else None


def forecast(paths: RunPaths) -> str | None:
    """What a run with a deadline was expected to cost at its newest submission, beside what came; or None."""
    events: list[Mapping[str, Any]] = []  # of the submission
    submission = 0
    for event in reader.lines(paths.events):
        if event.get("event") == record.SUBMITTED:
            events, submission = [], submission + 1
        events.append(event)
    first = next((each for each in events if each.get("forecast")), None)
    if first is None:
        return None
    expected, attempts = first["forecast"], [each for each in paid(paths) if each.submission == submission]
    spent = [each.dollars for each in attempts if each.dollars is not None]
    end = next((each for each in reversed(events) if each.get("event") in record.TERMINAL), None)
    others = len(attempts) - len(spent)
    cost = f"it cost {dollars(sum(spent))}" if spent else "what it cost is not known"
    cost += f" without {counted(others, 'attempt')} of unknown price" if spent and others else ""
    text = (
        f"{paths.id} was expected to cost {dollars(expected['dollars'])} (90 % of cases: {dollars(expected['low'])} to "
        f"{dollars(expected['high'])}), {chance(expected['in_time'])}, and "
        f"{dollars(expected['on_demand'])} on on-demand nodes alone; {cost}"
    )
    if end is None or end["event"] != record.SUCCEEDED:
        return f"{text}, and has not finished its work."
    left = expected["deadline"] - (end["t"] - first["t"])
    return f"{text}, and ended {hours(abs(left))} {'before' if left >= 0 else 'after'} its deadline."


@dataclass(frozen=True)
class _Submissions:
    """The submission, from 1 on, of each attempt that started, and when (Unix seconds) those ended that did."""

    of_attempts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, float] = field(default_factory=dict)

    def number_of(self, attempt: AttemptRecord) -> int:
        """The submission of an attempt; 0 before any that the record tells of.

        One that was lost before its ranks started is of the next submission if the one before had ended.
        """
        before = max((number for number in self.of_attempts if number <= attempt["attempt"]), default=0)
        submission = self.of_attempts.get(before, 0)
        is_later = before != attempt["attempt"] and attempt["started"] >= self.ends.get(submission, math.inf)
        if not is_later:
            return submission
        return min((each for each in self.of_attempts.values() if each > submission), default=submission + 1)


def _placements(paths: RunPaths) -> tuple[dict[int, dict[str, Any]], _Submissions]:
    """Where each attempt was placed, by its number, as far as the record says; and of which submission it is."""
    at: dict[str, Any] = {}
    places: dict[int, dict[str, Any]] = {}
    number, submissions = 0, _Submissions()
    for event in reader.lines(paths.events):
        if event.get("event") == record.SUBMITTED:
            number += 1
        elif event.get("event") == record.PLACED:
            at = event
        elif event.get("event") == record.STARTED:
            submissions.of_attempts[event.get("attempt", 0)] = number
            if at:
                places[event.get("attempt", 0)] = at
        elif event.get("event") in record.TERMINAL:
            submissions.ends[number] = event["t"]
    return places, submissions


def _machine(attempt: AttemptRecord, key: str) -> str | None:
    found = {str(each[key]) for each in attempt.get("hardware") or [] if each.get(key)}
    return " and ".join(sorted(found)) or None


def _interruptions(attempts: Sequence[Paid]) -> Iterator[tuple[str, ...]]:
    """Each attempt of a run that another one followed, and what that cost."""
    iterating = {each.run for each in attempts if each.attempt.get("first_iteration") is not None}
    for before, after in pairwise(attempts):
        if before.run != after.run or before.attempt["cause"] == SUCCEEDED:
            continue
        pause = None if before.elapsed is None else max(before.seconds - before.elapsed, 0.0)
        start, lost = after.attempt.get("start"), after.attempt.get("lost_iterations")
        if start is None and after.run in iterating and after.attempt.get("last_iteration") is None:
            start = after.elapsed
        dollars = None
        if pause is not None and start is not None and before.rate is not None and after.rate is not None:
            each = _iteration_seconds(after.attempt) or _iteration_seconds(before.attempt) or 0.0
            repeated = max((lost or 0) - _iterations_in_start(after.attempt), 0) * each
            dollars = (pause * before.rate + (start + repeated) * after.rate) / _HOUR
        cause = f"{before.attempt['cause']}: {before.attempt.get('reason') or MISSING}"
        yield (
            before.run,
            str(before.attempt["attempt"]),
            cause,
            number(pause, 3),
            number(start, 3),
            MISSING if lost is None else str(lost),
            number(dollars),
        )


def _iterations_in_start(attempt: AttemptRecord) -> int:
    """The iterations up to the first one that an attempt reported: those of a program that prints a few of them."""
    first, resumed = attempt.get("first_iteration"), attempt.get("resumed_iteration")
    return 0 if first is None else first - (first - 1 if resumed is None else resumed)


def _iteration_seconds(attempt: AttemptRecord) -> float | None:
    """Seconds per iteration of an attempt."""
    start, first, last = attempt.get("start"), attempt.get("first_iteration"), attempt.get("last_iteration")
    if start is None or first is None or last is None or last <= first or "elapsed" not in attempt:
        return None
    return (attempt["elapsed"] - start) / (last - first)
