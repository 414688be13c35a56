"""What holds for every run in pods, whatever happens to its machines, its volume and its clocks, in whichever order."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from spotmpi.agent import pod_record
from spotmpi.agent.attempt import TERM_GRACE, Attempt
from spotmpi.agent.attempt_history import AttemptHistory
from spotmpi.agent.context import AgentContext
from spotmpi.agent.outcomes import FAILURE, INTERRUPTION, Deadlines, Outcome
from spotmpi.agent.readiness import Readiness
from spotmpi.agent.record import TERMINAL
from spotmpi.agent.stop_requests import CoordinatorStopSignal, NoticedNodes
from tests.unit.agent.simulator import (
    END_TIME,
    EPOCH,
    HORIZON,
    RESTART_DELAY,
    TICK,
    Event,
    Fact,
    Schedule,
    Volume,
    World,
    host,
    simulated,
)

pytestmark = pytest.mark.in_memory

EXAMPLES = 300
BY_ITSELF = ("program ended", "program hangs")
OF_THE_MACHINE = ("notice", "lost", "disk error", "agent killed", "replaced")
EVENTS = {
    "kill": st.integers(0, 9),
    "crash": st.just(0),
    "reclaim": st.integers(0, 4),
    "delete": st.just(0),
    "partition": st.integers(0, 3),
    "stall": st.integers(0, 20),
    "replace": st.integers(0, 60),
    "freeze": st.integers(1, 40),
    "fill": st.integers(1, 60),
    "stumble": st.integers(0, 11),
    "clock": st.sampled_from((-600, -60, -1, 1, 60, 600)),
    "stop": st.just(0),
    "price": st.integers(0, 2),
}


def schedules_of(
    *kinds: str, until: int, run: tuple[float | None, ...], cost: tuple[float | None, ...]
) -> st.SearchStrategy[Schedule]:
    """Runs to which events of these kinds happen, with one of those limits each."""
    events = st.one_of(*(st.builds(Event, st.integers(0, until), st.just(kind), EVENTS[kind]) for kind in kinds))
    ends = st.sampled_from(("1@2", "1@5", "137@4", "-9@4", "75@3", "78@4", "hang@2", "0@10"))
    return st.builds(
        Schedule,
        events=st.lists(events, max_size=7).map(tuple),
        nodes=st.integers(1, 3),
        ends=st.lists(ends, max_size=4).map(tuple),
        checkpoint=st.sampled_from((0.5, 1.0, 3.0, 9.0)),
        grace=st.sampled_from((6.0, 12.0)),
        failures=st.integers(0, 2),
        interruptions=st.integers(0, 4),
        run=st.sampled_from(run),
        cost=st.sampled_from(cost),
        replaces=st.booleans(),
        standby=st.integers(0, 2),
        margin=st.sampled_from((None, 1.0, 4.0)),
    )


anything = schedules_of(*EVENTS, until=90, run=(None, None, 40.0, 90.0), cost=(None, None, 30.0, 80.0))
set_clocks = schedules_of("clock", "reclaim", "price", until=30, run=(None, 30.0, 40.0), cost=(None, 30.0, 40.0))
schedules = st.one_of(anything, anything, set_clocks)


class Run:
    """What a simulated run has left behind, and what really happened."""

    def __init__(self, world: World) -> None:
        self.world, self.schedule, self.facts = world, world.schedule, world.facts
        folder = world.run_folder
        events = folder / "events.jsonl"
        self.events = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
        taken = sorted(int(path.name) for path in (folder / "attempts").glob("*"))
        records = {number: self._read(f"attempts/{number}/node-0.json") for number in taken}
        # An agent that finds the run at a limit takes a number and begins nothing.
        exits = {fact.attempt: fact.value for fact in self.facts if fact.kind == "exit"}
        self.numbers = [number for number in taken if records[number] or exits.get(number) != 78]
        self.records = {number: records[number] for number in self.numbers}
        self.causes = [(self.records[number] or {"cause": INTERRUPTION})["cause"] for number in self.numbers]
        self.summary = self._read("summary.json")
        self.ends = [event for event in self.events if event["event"] in TERMINAL]

    def _read(self, name: str) -> Any:
        path = self.world.run_folder / name
        return json.loads(path.read_text()) if path.exists() else None

    def of(self, number: int, *kinds: str) -> list[Fact]:
        """What happened to an attempt, or to its agent before it took one."""
        return [fact for fact in self.facts if fact.kind in kinds and fact.attempt in (0, number)]

    def happened(self, *kinds: str, before: float = HORIZON) -> bool:
        """Whether anything of these kinds did."""
        return any(fact.kind in kinds and fact.at <= before for fact in self.facts)

    def begun(self, number: int) -> float:
        """From when an agent worked for an attempt: after the one before, if the same agent had begun that."""
        agents = {fact.attempt: (fact.value, fact.at) for fact in self.facts if fact.kind == "attempt"}
        agent, at = agents[number]
        return self.over(number - 1) if agents.get(number - 1, (None,))[0] == agent else at

    def over(self, number: int) -> float:
        """When its end was recorded, if its agent began another one; else when its agent has exited or was killed."""
        agents = [fact.value for fact in self.facts if fact.kind == "attempt" and fact.attempt in (number, number + 1)]
        record = f"attempts/{number}/node-0.json"
        if len(agents) == 2 and len(set(agents)) == 1:
            return next(fact.at for fact in self.of(number, "write") if fact.value == record)
        return next((fact.at for fact in self.of(number, "exit", "agent killed") if fact.attempt), self.world.now)


def check_numbers(run: Run) -> None:
    taken = [fact.attempt for fact in run.facts if fact.kind == "attempt"]
    assert taken == sorted(set(taken)) and set(run.numbers) <= set(taken), "attempt numbers grow"


def check_writers(run: Run) -> None:
    """Lines of output are the exception: a fence that was checked a moment ago lets them pass."""
    newest, since = 0, 0.0
    for fact in run.facts:
        if fact.kind == "attempt":
            newest, since = fact.attempt, fact.at
        elif fact.kind == "write" and 0 < fact.attempt < newest:
            is_output = fact.value.startswith(("logs/", "metrics"))
            assert is_output and fact.at <= since + pod_record.MAX_AGE, (
                f"attempt {fact.attempt} wrote {fact.value} after attempt {newest} had begun"
            )


def lost_before(run: Run, number: int) -> list[Fact]:
    """The losses in the attempt before that it did not end by, so that this one does: of a run, each node counts."""
    before, after = ((run.records.get(each) or {}).get("lost_nodes") or [] for each in (number - 1, number))
    return run.of(number - 1, "lost") if set(after) - set(before) else []


def check_causes(run: Run) -> None:
    for number, cause in zip(run.numbers, run.causes, strict=True):
        by_itself = [fact for fact in run.of(number, *BY_ITSELF) if fact.value not in (0, 75)]
        by_machine = run.of(number, *OF_THE_MACHINE)
        if cause == FAILURE:
            assert by_itself, f"attempt {number}: an interruption counts as a failure"
        if cause == INTERRUPTION:
            asked = [fact for fact in run.of(number, "program ended") if fact.value == 75]
            late = lost_before(run, number)
            assert by_machine or asked or late, f"attempt {number}: a failure counts as an interruption"
        if run.records[number] is None:
            kinds = {fact.kind for fact in by_machine}
            assert kinds & {"agent killed", "replaced", "disk error"}, f"attempt {number} has no record"


def check_counts(run: Run) -> None:
    for cause, allowed in ((FAILURE, run.schedule.failures), (INTERRUPTION, run.schedule.interruptions)):
        count = run.causes.count(cause)
        assert count <= allowed + 1, f"{count} times {cause}, of which {allowed} are allowed"
        if count > allowed:
            assert run.causes[-1] == cause, "the one too many is the last"


def check_run_limit(run: Run) -> None:
    limit, slack = run.schedule.run, run.schedule.grace + TERM_GRACE + 4 * TICK
    if limit is None:
        return
    held = 0.0
    for number in run.numbers:
        if run.records[number]:  # how long another one lasted, only Unix time tells
            held += run.over(number) - run.begun(number)
        end = max((fact.at for fact in run.of(number, "launcher ended")), default=0.0)
        waited = held if run.happened("clock", before=run.begun(number)) else end
        frozen = run.happened("frozen", "replaced")
        assert frozen or not run.records[number] or waited <= limit + slack, "limits.run does not hold"
        reason = (run.records[number] or {}).get("reason") or ""
        if "limits.run" in reason and not run.happened("clock", before=run.begun(number)):
            assert run.over(number) >= limit, "limits.run ended the run early"


def check_cost_limit(run: Run) -> None:
    """Of an attempt that was lost, and of the pauses, only Unix times tell how long they were."""
    limit, spent = run.schedule.cost, 0.0
    if limit is None:
        return
    for number in run.numbers:
        values = run.records[number]
        if values is None:
            continue
        rate = values["world"]["rate"] / 3600.0
        spent += rate * (run.over(number) - run.begun(number))
        slack = rate * (run.schedule.grace + TERM_GRACE + 4 * TICK + 3.0)
        if not run.happened("frozen", "replaced"):
            assert spent <= limit + slack, "limits.cost does not hold"
        sets = [fact.at for fact in run.facts if fact.kind == "clock" and fact.at <= run.over(number)]
        in_attempts = [any(run.begun(each) < at < run.over(each) for each in run.numbers) for at in sets]
        is_known = None not in run.records.values() and all(in_attempts)
        if "limits.cost" in (values["reason"] or "") and is_known:
            assert spent >= limit - slack - 10.0 * (number - 1), "limits.cost ended the run early"


def check_checkpoints(run: Run) -> None:
    """Rank 0 is asked for a checkpoint when a notice is due, not before, and has the time for it that there is.

    That of node 0, and a stop, are due at once; others once a pod stands by for each, or only the margin is left.
    """
    for number in run.numbers:
        ready = [fact.at for fact in run.of(number, "can take SIGUSR1")]
        wishes = [fact for fact in run.of(number, "notice", "stop") if fact.attempt]
        if not ready or not wishes or wishes[0].at < ready[0] or run.happened("frozen"):
            continue
        wish = wishes[0].at
        times = [each.at + (run.schedule.going_on if each.kind == "notice" and each.value else 0.0) for each in wishes]
        due = min([*times, *(fact.at for fact in run.of(number, "all can be replaced") if fact.at >= wish)])
        ends = run.of(number, "program ended", "program hangs", "lost", "disk error", "agent killed", "replaced")
        if any(fact.at <= due + 3 * TICK for fact in ends if fact.attempt):
            continue
        if any(fact.at < wish for fact in run.of(number, "launcher ended", "signal")):
            continue
        signals = [fact for fact in run.of(number, "signal") if fact.at >= wish]
        names = [fact.value for fact in signals]
        assert names[:1] == ["SIGUSR1"], f"attempt {number}: no checkpoint was asked for before {names}"
        assert signals[0].at <= due + 3 * TICK, "the checkpoint was asked for late"
        if "limits." not in ((run.records[number] or {}).get("reason") or ""):
            assert signals[0].at >= due, "the checkpoint was asked for early"
        stored = [fact.at for fact in run.of(number, "checkpoint") if fact.value == "notice"]
        killed = [fact.at for fact in signals if fact.value in ("SIGTERM", "SIGKILL")]
        if killed:
            # The pod of the first notice is gone after its grace, however long ranks went on.
            grace = run.schedule.grace - END_TIME
            fenced = any(fact.at <= killed[0] for fact in run.of(number, "replaced"))  # by its successor, at once
            errors = [fact.at for fact in run.of(number, "disk error")]  # at once, too, where nothing can be recorded
            fenced = fenced or any(killed[0] - 3 * TICK <= at <= killed[0] for at in errors)
            assert fenced or (stored and stored[0] <= killed[0]) or killed[0] >= wish + grace, "no time for it"
            assert killed[0] <= wish + run.schedule.grace, "programs end too late"


def check_record(run: Run) -> None:
    """The history, the events and the summary tell the same."""
    started = [event["attempt"] for event in run.events if event["event"] == "started"]
    assert started == sorted(set(started)) and set(started) <= set(run.numbers), "each attempt starts once"
    counts = {"failures": run.causes.count(FAILURE), "interruptions": run.causes.count(INTERRUPTION)}
    if run.happened("disk error"):
        # An agent that cannot even open the record has no number by which its successor could fence it off.
        assert len([end for end in run.ends if "failures" in end]) <= 1, "a run ends once"
    elif run.world.jobset.end != "ReachedMaxRestarts":
        assert len(run.ends) == 1 and run.events[-1] == run.ends[0], "a run ends once"
    if not run.ends:
        return
    end = run.ends[-1]
    if "failures" in end:
        assert {key: end[key] for key in counts} == counts, "events count what records do"
        assert run.summary["state"] == end["event"] and run.summary.get("reason") == end.get("reason")
        assert {key: run.summary[key] for key in counts} == counts, "the summary counts what records do"
        told = {each["attempt"]: each for each in run.summary["attempts"]}
        assert {number: told[number] for number, each in run.records.items() if each} == {
            number: each for number, each in run.records.items() if each
        }
    if not run.happened("disk error"):
        interrupted = [event["interruptions"] for event in run.events if event["event"] == "interrupted"]
        assert interrupted == list(range(1, counts["interruptions"] + 1))
        expected = "failed" if end["event"] == "failed" else "completed"
        assert run.world.jobset.end == expected, "JobSet ends as the run does"


def check_pods(run: Run) -> None:
    """Where single nodes are replaced, node 0's pod ends for its own sake alone."""
    for fact in run.facts if run.schedule.replaces else ():
        if fact.kind == "exit" and fact.value not in (0, 78):
            own = [each for each in run.of(fact.attempt, "notice") if each.value == 0]
            own += run.of(fact.attempt, "disk error", "replaced")
            assert own, f"attempt {fact.attempt}: node 0's pod ended with another one's"


def check_deletions(run: Run) -> None:
    """A pod with notice ends by itself in time, whatever its ranks do: killed, it would count as failed for JobSet."""
    if not run.happened("frozen", "disk error", "replaced"):
        assert not run.happened("killed late"), "a pod was killed after its notice, which counts as a failure"


def check_promotions(run: Run) -> None:
    """A pod that stands by takes the place of a lost one alone, and the record says which pods were the nodes."""
    for fact in run.facts:
        if fact.kind == "promoted":
            assert run.happened("gone", "lost", "notice", before=fact.at), "no node was lost"
    for number, values in run.records.items():
        assert "not in DNS" not in ((values or {}).get("reason") or ""), "a node has the name of another pod"
        launched = [fact for fact in run.of(number, "launched") if fact.attempt == number]
        if values and launched and len(run.schedule.pods) > run.schedule.nodes:
            assert values["world"]["pods"] == [pod.text for pod in launched[0].value.pods], "the record has other pods"
            assert values["world"]["members"] == [host(pod) for pod in launched[0].value.pods]


def check_launches(run: Run) -> None:
    """Nothing is launched while a node has no agent, unless it was lost a moment ago."""
    for launched in (fact for fact in run.facts if fact.kind == "launched"):
        lost = {fact.value for fact in run.facts if fact.kind == "lost" and fact.at > launched.at - 4 * TICK}
        absent = launched.value.absent
        assert not set(absent) - lost, f"attempt {launched.attempt} was launched without {absent}"
        limit, is_exact = run.schedule.run, not run.happened("clock", "frozen", before=launched.at)
        if limit is not None and is_exact:
            assert launched.at <= limit + TICK, f"attempt {launched.attempt} was launched after limits.run"


CHECKS: tuple[Callable[[Run], None], ...] = (
    check_numbers,
    check_writers,
    check_causes,
    check_counts,
    check_run_limit,
    check_cost_limit,
    check_checkpoints,
    check_record,
    check_pods,
    check_launches,
    check_deletions,
    check_promotions,
)


def simulate(volume: Volume, schedule: Schedule, folder: Path) -> None:
    """Run a schedule, and check everything that has to hold."""
    world = World(schedule, folder, volume).run()
    assert not world.crashes, world.crashes[0]
    assert world.jobset.end is not None, "a run that does not end"
    run = Run(world)
    for check in CHECKS:
        check(run)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Schedule], None]]:
    """Simulates schedules, each in a folder of its own."""
    folder = tmp_path_factory.mktemp("simulator") / "machine"
    with simulated() as volume:

        def run(schedule: Schedule) -> None:
            folder.mkdir()
            try:
                simulate(volume, schedule, folder)
            finally:
                volume.world = None
                shutil.rmtree(folder)

        yield run


DISRUPTED_AT_ITS_END = Schedule(events=(Event(0, "kill", 4),), nodes=3, interruptions=0)
LATE_CLOCK = Schedule(events=(Event(11, "clock", -600),), nodes=3, ends=("hang@2",), run=40.0)
COSTLY = Schedule(ends=("hang@5",), cost=20.0)
STALLED_AGENT = Schedule(events=(Event(9, "stall", 15),), nodes=3, ends=("137@2",))
KILLED_RANKS = Schedule(nodes=3, ends=("-9@4", "137@2", "75@5"))
KILLED_RANK_AND_LOST_NODE = Schedule(events=(Event(11, "kill", 1),), nodes=3, ends=("-9@2",), replaces=True)
LOST_IN_RECOVERY = Schedule(events=(Event(14, "kill", 1),), nodes=3, ends=("137@2",))
REPLACED_NODE = Schedule(events=(Event(7, "replace", 40),))
TWO_LOST_ONE_AFTER_THE_OTHER = Schedule(
    events=(Event(1, "partition", 0), Event(2, "partition", 1)), nodes=3, replaces=True, interruptions=1
)
REPLACED_AFTER_A_NOTICE = Schedule(
    events=(Event(2, "delete", 0), Event(4, "replace", 0)), nodes=1, checkpoint=9.0, grace=12.0
)
REPLACED_AT_A_FAILURE = Schedule(events=(Event(9, "replace", 0),), nodes=1, ends=("1@2",))
SILENT_NODE = Schedule(events=(Event(7, "partition", 1),), nodes=2)
LOST_ALONE = Schedule(events=(Event(20, "kill", 1),), nodes=3, replaces=True)
NODE_0_LOST = Schedule(events=(Event(20, "kill", 0),), nodes=3, replaces=True)
TWO_LOST = Schedule(events=(Event(20, "kill", 1), Event(20, "kill", 2)), nodes=3, replaces=True)
LOST_TWICE = Schedule(events=(Event(20, "kill", 1), Event(22, "kill", 2)), nodes=3, replaces=True)
NODE_0_LOST_IN_RECOVERY = Schedule(events=(Event(20, "kill", 4), Event(22, "kill", 0)), nodes=3, replaces=True)
LOST_WHILE_STALLED = Schedule(events=(Event(1, "stall", 0), Event(2, "partition", 0)))
BLIND_SURVIVOR = Schedule(
    events=(Event(67, "freeze", 30), Event(70, "replace", 26), Event(79, "stumble", 10)), nodes=1, ends=("hang@2",)
)
STANDBY = Schedule(events=(Event(20, "kill", 1),), nodes=3, replaces=True, standby=1)
STANDBY_AND_NOTICE = STANDBY._replace(events=(Event(20, "reclaim", 2),), grace=12.0)
STANDBY_LOST = STANDBY._replace(events=(Event(20, "kill", 3),))
STANDBY_LOST_BEFORE = STANDBY._replace(events=(Event(20, "kill", 3), Event(21, "kill", 1)))
PROMOTED_LOST = STANDBY._replace(events=(Event(20, "kill", 1), Event(20, "kill", 3)))
LOST_IN_PROMOTION = STANDBY._replace(events=(Event(20, "kill", 1), Event(21.2, "kill", 7)))
TWO_LOST_ONE_STANDS_BY = STANDBY._replace(events=(Event(20, "kill", 1), Event(20, "kill", 2)))
REPLACED_STANDS_BY = STANDBY._replace(events=(Event(20, "kill", 1), Event(30, "kill", 3)))
# The pod that stands by is replaced within 8 s from second 19 on.
NOTICE_WITHOUT_STANDBY = STANDBY._replace(events=(Event(19, "kill", 3), Event(20.5, "reclaim", 1)), grace=15.0)
GOES_ON_TO_THE_STANDBY = NOTICE_WITHOUT_STANDBY._replace(margin=2.0)
IGNORES_THE_NOTICE = NOTICE_WITHOUT_STANDBY._replace(margin=8.0, checkpoint=99.0)
GOES_ON_TO_THE_MARGIN = NOTICE_WITHOUT_STANDBY._replace(margin=10.0)
LOST_BEFORE_THE_SWITCH = GOES_ON_TO_THE_STANDBY._replace(events=(*GOES_ON_TO_THE_STANDBY.events, Event(22, "kill", 5)))
TWO_NOTICES = STANDBY._replace(events=(Event(20, "reclaim", 1), Event(20, "reclaim", 2)), grace=15.0, margin=8.0)
TWO_NOTICES_TWO_STAND_BY = TWO_NOTICES._replace(standby=2)
NOTICE_IN_PROMOTION = STANDBY._replace(
    events=(Event(20, "reclaim", 1), Event(22.2, "reclaim", 2)), grace=15.0, margin=2.0
)
NOTICE_AND_NODE_0 = GOES_ON_TO_THE_STANDBY._replace(events=(*GOES_ON_TO_THE_STANDBY.events, Event(22, "reclaim", 0)))
NODE_0_LOST_AFTER_PROMOTION = STANDBY._replace(events=(Event(20, "kill", 1), Event(30, "kill", 0)))
NODE_0_AND_STANDBY_LOST = STANDBY._replace(events=(Event(20, "kill", 0), Event(21, "kill", 3)))
NODE_0_AND_NODE_LOST = STANDBY._replace(events=(Event(20, "kill", 0), Event(20, "kill", 1)))
NODE_0_LOST_IN_PROMOTION = STANDBY._replace(events=(Event(20, "kill", 1), Event(21.2, "kill", 0)))
TWO_LOST_TWO_STAND_BY = STANDBY._replace(standby=2, events=(Event(20, "kill", 1), Event(20, "kill", 2)))
LOST_IN_THE_PROMOTION_OF_ANOTHER = TWO_LOST_TWO_STAND_BY._replace(events=(Event(20, "kill", 1), Event(21.2, "kill", 2)))
SILENT_AND_STANDBY = STANDBY._replace(events=(Event(20, "partition", 0),))
LOST_AT_AN_INTERRUPTION = Schedule(events=(Event(14, "partition", 0),), nodes=2, ends=("75@3",), interruptions=1)
REPLACED_IN_RECOVERY = Schedule(
    events=(Event(33, "stumble", 5), Event(46, "stumble", 6), Event(47, "replace", 0)), nodes=1, interruptions=3
)
ENDED_AND_REPLACED = Schedule(
    events=(Event(0, "reclaim", 0), Event(0, "replace", 6), Event(3, "replace", 0)),
    nodes=1,
    failures=0,
    interruptions=0,
)
NOTICE_ON_A_SILENT_VOLUME = Schedule(
    events=(Event(1, "replace", 20), Event(32, "reclaim", 1), Event(40, "stumble", 11)),
    nodes=1,
    checkpoint=9.0,
    grace=12.0,
)
LOST_AT_THE_LIMIT = Schedule(events=(Event(38, "reclaim", 3), Event(48, "crash")), nodes=3, checkpoint=3.0, run=40.0)
DELETED = Schedule(events=(Event(20, "delete"),), nodes=2, checkpoint=9.0, failures=0, replaces=True)
RECLAIMED_ALONE = Schedule(events=(Event(20, "reclaim", 2),), nodes=3, grace=12.0, replaces=True)


@example(DISRUPTED_AT_ITS_END)
@example(LATE_CLOCK)
@example(SILENT_NODE)
@example(REPLACED_NODE)
@example(TWO_LOST_ONE_AFTER_THE_OTHER)
@example(REPLACED_AFTER_A_NOTICE)
@example(REPLACED_AT_A_FAILURE)
@example(COSTLY)
@example(STALLED_AGENT)
@example(KILLED_RANKS)
@example(KILLED_RANK_AND_LOST_NODE)
@example(LOST_IN_RECOVERY)
@example(LOST_ALONE)
@example(NODE_0_LOST)
@example(TWO_LOST)
@example(LOST_TWICE)
@example(NODE_0_LOST_IN_RECOVERY)
@example(LOST_WHILE_STALLED)
@example(BLIND_SURVIVOR)
@example(LOST_AT_AN_INTERRUPTION)
@example(REPLACED_IN_RECOVERY)
@example(RECLAIMED_ALONE)
@example(LOST_AT_THE_LIMIT)
@example(DELETED)
@example(NOTICE_ON_A_SILENT_VOLUME)
@example(ENDED_AND_REPLACED)
@example(IGNORES_THE_NOTICE)
@example(LOST_IN_PROMOTION)
@example(GOES_ON_TO_THE_STANDBY)
@example(LOST_BEFORE_THE_SWITCH)
@example(TWO_NOTICES)
@example(NOTICE_IN_PROMOTION)
@example(NOTICE_AND_NODE_0)
@example(TWO_LOST_ONE_STANDS_BY)
@example(NODE_0_LOST_AFTER_PROMOTION)
@example(NODE_0_LOST_IN_PROMOTION)
@example(NODE_0_AND_STANDBY_LOST)
@example(LOST_IN_THE_PROMOTION_OF_ANOTHER)
@given(schedules)
@settings(max_examples=EXAMPLES)
def test_whatever_happens_to_a_run_it_ends_once_and_its_record_is_true(
    machine: Callable[[Schedule], None], schedule: Schedule
) -> None:
    machine(schedule)


def test_ranks_that_are_killed_cost_no_pod_and_count_as_failures(tmp_path: Path) -> None:
    with simulated() as volume:
        world = World(KILLED_RANKS, tmp_path, volume).run()
    run = Run(world)
    assert len(world.agents) == 1 and world.jobset.end == "completed"
    assert run.causes == ["failure", "failure", "interruption", "succeeded"]
    between = [run.begun(number + 1) - run.over(number) for number in (1, 2, 3)]
    assert max(between) <= 4 * TICK, "nothing is waited for"
    assert [run.records[number]["resumed_iteration"] for number in (2, 3)] == [3, 3]


def test_a_killed_rank_ends_the_attempt_before_mpirun_does(tmp_path: Path) -> None:
    with simulated() as volume:
        world = World(Schedule(ends=("-9@4",)), tmp_path, volume).run()
    run = Run(world)
    assert run.records[1]["reason"] == "rank 0 was killed by SIGKILL"
    (killed,), (ended,) = run.of(1, "program ended"), run.of(1, "launcher ended")
    assert ended.value == -9 and ended.at <= killed.at + TICK, "it was not waited for"


def test_a_node_that_is_lost_with_a_killed_rank_is_an_interruption(tmp_path: Path) -> None:
    with simulated() as volume:
        world = World(KILLED_RANK_AND_LOST_NODE, tmp_path, volume).run()
    assert Run(world).causes == ["interruption", "succeeded"]


def test_an_agent_that_stalls_while_ranks_die_is_waited_for_and_is_no_lost_node(tmp_path: Path) -> None:
    with simulated() as volume:
        world = World(STALLED_AGENT, tmp_path, volume).run()
    run = Run(world)
    assert run.causes == ["failure", "succeeded"] and len(world.agents) == 1
    started = [event for event in run.events if event["event"] == "started"]
    assert started[1]["t"] - EPOCH >= 9 + 2 + 15, "not before it answers again"


def test_a_node_that_is_lost_during_the_recovery_from_another_fault_is_an_interruption(tmp_path: Path) -> None:
    with simulated() as volume:
        world = World(LOST_IN_RECOVERY, tmp_path, volume).run()
    run = Run(world)
    assert run.causes[:2] == ["failure", "interruption"] and run.causes[-1] == "succeeded"
    assert run.summary["failures"] == 1


@pytest.mark.parametrize(
    ("schedule", "interruptions", "pods_of_node_0"),
    [
        pytest.param(LOST_ALONE, 1, 1, id="a node"),
        pytest.param(RECLAIMED_ALONE, 1, 1, id="a node with notice"),
        pytest.param(TWO_LOST, 1, 1, id="two at once"),
        pytest.param(LOST_TWICE, 2, 1, id="one during the recovery of another"),
        pytest.param(NODE_0_LOST, 1, 2, id="node 0"),
        pytest.param(NODE_0_LOST_IN_RECOVERY, 2, 2, id="node 0 during the recovery of another"),
    ],
)
def test_a_lost_node_alone_is_replaced_and_training_goes_on_from_the_checkpoint(
    tmp_path: Path, schedule: Schedule, interruptions: int, pods_of_node_0: int
) -> None:
    with simulated() as volume:
        world = World(schedule, tmp_path, volume).run()
    run = Run(world)
    assert world.jobset.end == "completed" and len(world.agents) == pods_of_node_0
    assert run.causes == ["interruption"] * interruptions + ["succeeded"]
    assert run.records[run.numbers[-1]]["resumed_iteration"] > 0


SIMULATED = ("node/0", "node/1", "node/2", "standby/0", "standby/1")  # the pods of `STANDBY`, or of two


@pytest.mark.parametrize(
    ("schedule", "pods"),
    [
        pytest.param(STANDBY, [[0, 1, 2], [0, 3, 2]], id="a node"),
        pytest.param(STANDBY_AND_NOTICE, [[0, 1, 2], [0, 1, 3]], id="a node with notice"),
        pytest.param(STANDBY_LOST, [[0, 1, 2]], id="the pod that stands by"),
        pytest.param(STANDBY_LOST_BEFORE, [[0, 1, 2], [0, 1, 2]], id="the pod that stands by, then a node"),
        pytest.param(PROMOTED_LOST, [[0, 1, 2], [0, 1, 2]], id="both at once"),
        pytest.param(LOST_IN_PROMOTION, [[0, 1, 2], None, [0, 1, 2]], id="the promoted pod before the ranks start"),
        pytest.param(TWO_LOST_ONE_STANDS_BY, [[0, 1, 2], [0, 3, 2]], id="two nodes"),
        pytest.param(REPLACED_STANDS_BY, [[0, 1, 2], [0, 3, 2], [0, 1, 2]], id="one after the other"),
        pytest.param(NODE_0_LOST_AFTER_PROMOTION, [[0, 1, 2], None, [0, 3, 2]], id="node 0 after a promotion"),
        pytest.param(NODE_0_LOST_IN_PROMOTION, [[0, 1, 2], None, [0, 1, 2]], id="node 0 during a promotion"),
        pytest.param(NODE_0_AND_STANDBY_LOST, [None, [0, 1, 2]], id="node 0, and the pod that stands by"),
        pytest.param(NODE_0_AND_NODE_LOST, [None, [0, 1, 2]], id="node 0 and a node at once"),
        pytest.param(SILENT_AND_STANDBY, [[0, 1, 2], [0, 3, 2]], id="a silent node"),
        pytest.param(TWO_LOST_TWO_STAND_BY, [[0, 1, 2], [0, 3, 4]], id="two nodes, for which two stand by"),
        pytest.param(
            LOST_IN_THE_PROMOTION_OF_ANOTHER, [[0, 1, 2], None, [0, 3, 4]], id="one during the promotion of another"
        ),
    ],
)
def test_a_pod_that_stands_by_takes_the_place_of_a_lost_one(
    tmp_path: Path, schedule: Schedule, pods: list[list[int] | None]
) -> None:
    with simulated() as volume:
        world = World(schedule, tmp_path, volume).run()
    run = Run(world)
    assert world.jobset.end == "completed" and run.causes == ["interruption"] * (len(pods) - 1) + ["succeeded"]
    found = [(run.records[number] or {}).get("world", {}).get("pods") for number in run.numbers]
    assert found == [None if numbers is None else [SIMULATED[number] for number in numbers] for numbers in pods]
    for check in CHECKS:
        check(run)


@pytest.mark.parametrize(
    ("schedule", "seconds", "pods"),
    [
        pytest.param(STANDBY_AND_NOTICE, 0, [0, 1, 3], id="a pod stands by"),
        pytest.param(NOTICE_WITHOUT_STANDBY, 0, [0, 1, 2], id="no margin, and none stands by"),
        pytest.param(GOES_ON_TO_THE_STANDBY, 4.5, [0, 3, 2], id="one stands by soon"),
        pytest.param(GOES_ON_TO_THE_MARGIN, 3, [0, 3, 2], id="one stands by after the margin"),
        pytest.param(LOST_BEFORE_THE_SWITCH, 2, [0, 3, 2], id="lost before one stands by"),
        pytest.param(TWO_NOTICES, 5, [0, 3, 2], id="two, for which one stands by"),
        pytest.param(TWO_NOTICES_TWO_STAND_BY, 0, [0, 3, 4], id="two, for which two stand by"),
        pytest.param(NOTICE_AND_NODE_0, 1.5, [0, 1, 2], id="of node 0 meanwhile"),
    ],
)
def test_ranks_go_on_after_a_notice_until_a_pod_stands_by_or_the_margin_is_left(
    tmp_path: Path, schedule: Schedule, seconds: float, pods: list[int]
) -> None:
    with simulated() as volume:
        world = World(schedule, tmp_path, volume).run()
    run = Run(world)
    assert world.jobset.end == "completed" and run.causes == ["interruption", "succeeded"]
    notice, end = run.of(1, "notice")[0].at, run.of(1, "signal")[0].at
    assert seconds <= end - notice <= seconds + 2 * TICK
    assert (run.records[2] or {})["world"]["pods"] == [schedule.pods[number].text for number in pods]
    log = tmp_path / "runs" / "run" / "logs" / "1" / "node-0.log"
    others = [fact for fact in run.of(1, "notice") if fact.value]
    assert (log.read_text().count("training goes on") if log.exists() else 0) == (len(others) if seconds else 0)
    for check in CHECKS:
        check(run)


def test_a_notice_while_a_pod_takes_over_does_not_end_the_attempt_that_begins(tmp_path: Path) -> None:
    with simulated() as volume:
        run = Run(World(NOTICE_IN_PROMOTION, tmp_path, volume).run())
    assert run.causes == ["interruption", "interruption", "succeeded"]
    pods = [[SIMULATED[number] for number in numbers] for numbers in ([0, 1, 2], [0, 3, 2], [0, 3, 1])]
    assert [(run.records[number] or {})["world"]["pods"] for number in (1, 2, 3)] == pods
    (asked,) = [fact.at for fact in run.of(2, "signal") if fact.value == "SIGUSR1"]
    assert asked >= 22.2 + RESTART_DELAY, "it trained until the first lost pod's successor stood by"
    for check in CHECKS:
        check(run)


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (Schedule(run=40.0), "limits.run (40s) is over; raise it and resume the run"),
        (Schedule(cost=45.0), "limits.cost ($45) is nearly spent at $3600 an hour; raise it and resume the run"),
    ],
    ids=["run", "cost"],
)
def test_a_wait_for_a_lost_node_ends_with_a_limit_of_the_run(tmp_path: Path, schedule: Schedule, reason: str) -> None:
    """As ranks do, with the same end of the run: the other nodes are paid for meanwhile."""
    schedule = schedule._replace(events=(Event(36, "kill", 4),), nodes=3, replaces=True)
    with simulated() as volume:
        world = World(schedule, tmp_path, volume).run()
    run = Run(world)
    assert run.causes == ["interruption", "not retryable"] and world.jobset.end == "failed"
    assert run.summary["reason"] == run.records[2]["reason"] == reason
    assert [fact.attempt for fact in run.facts if fact.kind == "launched"] == [1]
    assert run.over(2) <= 40 + 4 * TICK, "it would have been there at 42 s"
    for check in CHECKS:
        check(run)


def test_a_promoted_pod_is_not_waited_for(tmp_path: Path) -> None:
    starts = []
    for standby in (0, 1):
        folder = tmp_path / str(standby)
        folder.mkdir()
        with simulated() as volume:
            run = Run(World(STANDBY._replace(standby=standby), folder, volume).run())
        starts.append(
            next(event["t"] for event in run.events if (event["event"], event.get("attempt")) == ("started", 2))
        )
    assert starts[0] - starts[1] >= RESTART_DELAY


@pytest.mark.timeout(3600)  # 95 s on a quiet machine
@pytest.mark.nightly("10,000 schedules; by day the first 300 of them")
@given(schedules)
@settings(max_examples=10_000)
def test_whatever_happens_to_a_run_in_many_more_ways(machine: Callable[[Schedule], None], schedule: Schedule) -> None:
    machine(schedule)


def without_fencing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pod_record.Fence, "check", lambda fence: None)


def blind_to_lost_nodes(patch: pytest.MonkeyPatch) -> None:
    interruption = CoordinatorStopSignal.interruption
    patch.setattr(CoordinatorStopSignal, "interruption", lambda source: interruption(source) and None)


def without_checkpoint(patch: pytest.MonkeyPatch) -> None:
    def begin_stop(attempt: Any, stop_request: Any) -> None:
        attempt._stop_request = stop_request
        attempt._terminate()

    patch.setattr(Attempt, "_begin_stop", begin_stop)


def without_grace(patch: pytest.MonkeyPatch) -> None:
    begin_stop = Attempt._begin_stop

    def begin_stop_at_once(attempt: Any, stop_request: Any) -> None:
        begin_stop(attempt, stop_request)
        attempt._terminate()

    patch.setattr(Attempt, "_begin_stop", begin_stop_at_once)


def by_unix_time(patch: pytest.MonkeyPatch) -> None:
    exceeded = Deadlines.exceeded

    def exceeded_by_unix_time(deadlines: Deadlines, plan: Any, clock: Any) -> Any:
        run = None if deadlines.run is None else deadlines.run - clock() + EPOCH + clock._agent.world.now
        return exceeded(deadlines._replace(run=run), plan, clock)

    patch.setattr(Deadlines, "exceeded", exceeded_by_unix_time)


def unaware_of_its_cost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AttemptHistory, "_cost_deadline", lambda history: None)


def forgetful_of_its_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AttemptHistory, "recorded_end", lambda history: None)


def ends_with_a_lost_node(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AgentContext, "replaces_nodes", False)


def impatient(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Readiness, "missing", lambda readiness: None)


def unaware_of_lost_attempts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AttemptHistory, "reconcile_lost_attempt", lambda history: None)


def forgiving(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AttemptHistory, "_count_limit", lambda history, limit, reason: None)


def silent_about_interruptions(patch: pytest.MonkeyPatch) -> None:
    def final_outcome(history: Any, outcome: Outcome) -> Outcome | None:
        limit: Any = "failures" if outcome.cause == FAILURE else "interruptions"
        return history._count_limit(limit, outcome.reason)  # type: ignore[no-any-return]

    patch.setattr(AttemptHistory, "final_outcome", final_outcome)


def forgetful_of_places(patch: pytest.MonkeyPatch) -> None:
    """As if places were those of the first attempt for whoever launches and records."""
    patch.setattr(AgentContext, "with_pods", lambda context, pods: context)


def hasty_at_a_notice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NoticedNodes, "are_due", lambda nodes, notices, standby_ready: True)


def unaware_of_the_margin(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NoticedNodes, "are_due", lambda nodes, notices, standby_ready: standby_ready >= len(notices))


def unaware_of_pods_that_stand_by(patch: pytest.MonkeyPatch) -> None:
    are_due = NoticedNodes.are_due
    patch.setattr(NoticedNodes, "are_due", lambda nodes, notices, standby_ready: are_due(nodes, notices, 0))


def unaware_of_the_time_since_a_notice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NoticedNodes, "patience", None)


def patient_with_ranks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CoordinatorStopSignal, "patience", lambda self: 60.0)


@pytest.mark.extensive("for those who change the simulator or the agent: 18 times a part of the schedules above")
@pytest.mark.parametrize(
    ("defect", "message"),
    [
        (hasty_at_a_notice, "asked for early"),
        (unaware_of_the_margin, "no checkpoint was asked for|asked for late"),
        (unaware_of_pods_that_stand_by, "asked for late"),
        (unaware_of_the_time_since_a_notice, "killed after its notice|end too late"),
        (patient_with_ranks, "killed after its notice"),
        (forgetful_of_places, "the name of another pod|the record has other pods"),
        (without_fencing, r"attempt \d+ wrote .* after attempt \d+ had begun"),
        (blind_to_lost_nodes, "an interruption counts as a failure"),
        (without_checkpoint, "no checkpoint was asked for"),
        (without_grace, "no time for it"),
        (by_unix_time, "limits.run (does not hold|ended the run early)"),
        (unaware_of_its_cost, "limits.cost does not hold"),
        (forgetful_of_its_end, "a run ends once"),
        (forgiving, "of which . are allowed"),
        (silent_about_interruptions, r"\[1"),
        (ends_with_a_lost_node, "node 0's pod ended with another one's"),
        (impatient, "was launched without"),
        (unaware_of_lost_attempts, r"\[1|a run ends once"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_schedules_of_a_day_find_an_agent_that_is(
    machine: Callable[[Schedule], None],
    monkeypatch: pytest.MonkeyPatch,
    defect: Callable[[pytest.MonkeyPatch], None],
    message: str,
) -> None:
    """Which shows that each check can fail, and that the schedules are of the kind that makes it."""
    defect(monkeypatch)

    @example(DISRUPTED_AT_ITS_END)  # of which, and of those below, there are few
    @example(LOST_ALONE)
    @example(NODE_0_LOST)
    @example(NODE_0_LOST_IN_RECOVERY)
    @example(STANDBY)
    @example(GOES_ON_TO_THE_STANDBY)
    @example(GOES_ON_TO_THE_MARGIN)
    @example(SILENT_NODE)
    @example(REPLACED_NODE)
    @example(ENDED_AND_REPLACED)
    @example(DELETED)
    @example(IGNORES_THE_NOTICE)
    @example(COSTLY)
    @given(schedules)
    @settings(max_examples=EXAMPLES, phases=[Phase.explicit, Phase.generate])
    def find(schedule: Schedule) -> None:
        try:
            machine(schedule)
        except AssertionError as error:
            if re.search(message, str(error)):
                raise

    with pytest.raises(AssertionError, match=message):
        find()
