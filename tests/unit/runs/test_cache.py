"""A terminal's copy of a run equals the run folder, after any number of followers."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotmpi.agent import record
from spotmpi.agent.plan import COORDINATOR, NODE, Member
from spotmpi.core.events import Event, Lines
from spotmpi.core.names import KUBERNETES, RunPaths
from spotmpi.runs import folder as run_folder
from spotmpi.runs import reader
from spotmpi.runs.folder import folder_events
from spotmpi.runs.pod_output import PodEntry, RunCache, SeenEvents


def line(number: int, node: int = 0, attempt: int = 1) -> PodEntry:
    values = {"rank": None, "stream": "o", "text": f"line {number} of node {node}"}
    return PodEntry(number, event=Event(1000.0 + number, record.LINE, attempt, Member(NODE, node), number, values))


def metric(time: float, iteration: int, **further: float) -> PodEntry:
    values = {"kind": "metric", "iteration": iteration, "loss": 0.5, **further}
    return PodEntry(1, event=Event(time, record.METRIC, 1, COORDINATOR, values=values))


def event(time: float, kind: str, **values: object) -> PodEntry:
    return PodEntry(1, event=Event(time, kind, 1 if kind == record.STARTED else 0, values=dict(values)))


STORY = [
    event(1001, record.STARTED, failures=0, interruptions=0),
    *(line(number) for number in range(1, 6)),
    *(line(number, node=1) for number in range(1, 4)),
    metric(1006.5, 10),
    metric(1007.5, 20),
    PodEntry(1, attempt=(1, 0, {"attempt": 1, "cause": "succeeded", "started": 1001.0, "last_iteration": 20})),
    PodEntry(1, summary={"state": "succeeded"}),
    event(1010, record.SUCCEEDED),
]


def created(runs_folder: Path) -> RunPaths:
    """The copy of a run that was just submitted."""
    paths = RunPaths(runs_folder / "digits-1")
    plan = {"run": paths.id, "name": "digits", "backend": KUBERNETES, "context": None, "namespace": "here"}
    run_folder.create(paths, 'name = "digits"\n', plan, 1000.0)
    return paths


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return created(tmp_path / "runs")


def take(paths: RunPaths, entries: list[PodEntry]) -> None:
    with RunCache(paths) as cache:
        cache.write(entries)


def recorded_events(paths: RunPaths) -> list[Event]:
    return list(folder_events(paths, follow=False, alive=lambda: False))


def recorded(paths: RunPaths) -> dict[str, str]:
    """The files of a copy."""
    files = [path for path in paths.folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(paths.folder)): path.read_text() for path in files}


def test_the_copy_reads_as_the_run_itself(paths: RunPaths) -> None:
    take(paths, STORY)
    state = reader.state(paths)
    assert (state.state, state.attempt, state.iteration, state.ended) == ("succeeded", 1, 20, 1010)
    recorded = recorded_events(paths)
    assert [event.kind for event in recorded if event.kind not in (record.LINE, record.METRIC)] == [
        "submitted",
        "started",
        "succeeded",
    ]
    lines = [(event.member, event.number, event.values["text"]) for event in recorded if event.kind == record.LINE]
    numbers = [*((0, number) for number in range(1, 6)), *((1, number) for number in range(1, 4))]
    assert sorted(lines) == [(Member(NODE, node), number, f"line {number} of node {node}") for node, number in numbers]
    assert json.loads((paths.attempts / "1" / "node-0.json").read_text())["cause"] == "succeeded"


KINDS = st.sampled_from(["line 0", "line 1", "metric", record.RESTARTED, "batch"])


def story(kinds: list[str]) -> list[PodEntry]:
    """What agents print: lines of two nodes, by themselves or several as one entry, metrics and events."""
    entries = [event(1001, record.STARTED, failures=0, interruptions=0)]
    lines = {0: 0, 1: 0}
    for time, kind in enumerate(kinds, 1002):
        if kind == "batch":
            first = lines[0] + 1
            lines[0] += 3
            texts = [f"line {number} of node 0" for number in range(first, first + 3)]
            batch = Lines(1, COORDINATOR, first, [float(time)] * 3, [None] * 3, ["o"] * 3, texts)
            entries.append(PodEntry(1, lines=batch))
        elif kind.startswith("line"):
            node = int(kind[-1])
            lines[node] += 1
            entries.append(line(lines[node], node))
        else:
            entries.append(metric(time, 10 * time) if kind == "metric" else event(time, kind))
    return [*entries, PodEntry(1, summary={"state": "succeeded"}), event(2000, record.SUCCEEDED)]


@settings(max_examples=30)
@given(st.lists(KINDS, max_size=12), st.lists(st.tuples(st.integers(0, 14), st.booleans()), max_size=4))
def test_any_followers_that_began_at_the_start_leave_the_copy_that_one_leaves(
    kinds: list[str], followers: list[tuple[int, bool]]
) -> None:
    entries = story(kinds)
    with TemporaryDirectory() as folder:
        once, often = created(Path(folder, "once")), created(Path(folder, "often"))
        take(once, entries)
        for count, by_line in [*followers, (len(entries), False)]:
            seen = [each for entry in entries[:count] for each in (entry.split() if by_line else [entry])]
            take(often, seen)
        assert recorded(often) == recorded(once)
        lines = [each for each in recorded_events(often) if each.kind == record.LINE]
        assert len(lines) == sum({"batch": 3, "line 0": 1, "line 1": 1}.get(kind, 0) for kind in kinds)


def test_entries_repeated_after_a_restart_are_written_once(paths: RunPaths) -> None:
    repeated = [*STORY[:-3], event(1008, record.RESTARTED), *STORY]
    take(paths, repeated)
    metrics = [values["iteration"] for values in reader.lines(paths.metrics)]
    kinds = [values["event"] for values in reader.lines(paths.events)]
    assert metrics == [10, 20]
    assert kinds == ["submitted", "started", "restarted", "succeeded"]


def test_metrics_of_an_attempt_whose_clock_is_behind_are_kept(paths: RunPaths) -> None:
    behind = event(900, record.STARTED), metric(901, 30), metric(902, 40)
    later = [PodEntry(1, event=replace(each.event, attempt=2)) for each in behind if each.event]
    with RunCache(paths) as cache:
        for _ in range(2):
            cache.write([*STORY[:-3], *later])
    assert [values["iteration"] for values in reader.lines(paths.metrics)] == [10, 20, 30, 40]


def test_metrics_after_the_clock_of_their_node_was_set_back_are_kept_once(paths: RunPaths) -> None:
    """As agents print them: with the seconds of a clock that nobody sets."""
    entries = [metric(time, number, uptime=50.0 + number) for number, time in enumerate((1000, 1001, 400, 401), 1)]
    take(paths, entries)
    take(paths, entries)
    assert [values["iteration"] for values in reader.lines(paths.metrics)] == [1, 2, 3, 4]


def test_memory_does_not_grow_with_the_lines_and_metrics_of_a_long_run(paths: RunPaths) -> None:
    with RunCache(paths) as cache:
        cache.write([metric(1000.0, 0), line(1)])
        tracemalloc.start()
        for first in range(1, 5000, 1000):
            cache.write(metric(1000.0 + number, number) for number in range(first, first + 1000))
            cache.write(line(number + 1) for number in range(first, first + 1000))
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert len(list(reader.lines(paths.metrics))) == 5001
    assert grown < 200_000, "bytes"


def test_a_gap_counts_so_that_later_numbers_stay_right(paths: RunPaths) -> None:
    gap = event(1004, record.GAP, size=2, reason="2 entries can no longer be had")
    take(paths, [line(1), gap, line(4)])
    take(paths, [line(1), gap, line(4), line(5)])
    recorded = [each for each in recorded_events(paths) if each.kind == record.LINE]
    assert [(each.number, each.values["text"]) for each in recorded] == [
        (1, "line 1 of node 0"),
        (3, "(2 lines are no longer available)"),
        (4, "line 4 of node 0"),
        (5, "line 5 of node 0"),
    ]
    assert "gap" not in paths.events.read_text()


def test_a_gap_of_any_size_takes_one_line(paths: RunPaths) -> None:
    huge = 10**9
    take(paths, [line(1), line(3), line(huge)])
    take(paths, [line(huge), line(huge + 1)])
    log = paths.logs / "1" / "node-0.log"
    assert log.stat().st_size < 400
    recorded = [each for each in recorded_events(paths) if each.kind == record.LINE]
    assert [(each.number, each.values["text"]) for each in recorded] == [
        (1, "line 1 of node 0"),
        (2, "(this line is no longer available)"),
        (3, "line 3 of node 0"),
        (huge - 1, f"({huge - 4} lines are no longer available)"),
        (huge, f"line {huge} of node 0"),
        (huge + 1, f"line {huge + 1} of node 0"),
    ]


@pytest.mark.parametrize("text", ["- m 5", "2026-11-21T07:52:01.123456Z - m 5", " - m 7", "x - m 9"])
def test_output_that_reads_as_a_gap_is_output(paths: RunPaths, text: str) -> None:
    first = line(1)
    assert first.event
    values = {"rank": None, "stream": "o", "text": text}
    take(paths, [first._replace(event=replace(first.event, values=values)), line(2)])
    recorded = [each for each in recorded_events(paths) if each.kind == record.LINE]
    assert [(each.number, each.values["text"]) for each in recorded] == [(1, text), (2, "line 2 of node 0")]


def test_a_past_wait_of_an_agent_is_not_reported_after_the_next_attempt() -> None:
    """The event has its place in time; at the end it would look as if the run still waited."""
    waited, started = event(1.0, record.WAITING, reason="hosts")._replace(number=1), event(2.0, record.STARTED)
    of_follower = event(1.5, record.WAITING, reason="pods")._replace(number=0)
    seen_events = SeenEvents()
    assert [each for entry in (waited, started) for each in seen_events.new_in(entry)] == [waited.event, started.event]
    repeated = SeenEvents()
    assert started.event and repeated.is_new(started.event)  # from the copy
    assert [each for entry in (waited, started, of_follower) for each in repeated.new_in(entry)] == [of_follower.event]


def test_only_one_follower_writes_at_a_time(paths: RunPaths) -> None:
    with RunCache(paths) as first, RunCache(paths) as second:
        for entry in STORY:
            first.write([entry])
            second.write([entry])
    assert len((paths.logs / "1" / "node-0.log").read_text().splitlines()) == 5


def test_a_deleted_copy_is_not_made_again_by_following(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "digits-1")
    take(paths, STORY)
    assert not paths.folder.exists()
