"""Reading a run folder while it is written, and long after."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spotmpi.agent import protocol, record
from spotmpi.agent.launcher_output import Line
from spotmpi.agent.plan import COORDINATOR, NODE, Member
from spotmpi.agent.record import Record
from spotmpi.api.view import Throughput, event_text
from spotmpi.cli import tables
from spotmpi.core import names
from spotmpi.core.events import Event, Lines
from spotmpi.runs import reader
from spotmpi.runs.folder import folder_events

Identity = tuple[str, int, int, int]  # kind, attempt, node and number of an event


def new_record(folder: Path) -> Record:
    """The record of a submitted run, by a clock that goes on by a microsecond at each look."""
    micros = itertools.count(1_700_000_000_000_000)
    run_record = Record(str(folder), lambda: next(micros) / 1e6)
    run_record.event(record.SUBMITTED, name="x")
    return run_record


def write_run(folder: Path, attempts: int, lines: int, nodes: int = 2) -> list[Identity]:
    """Write a run of several attempts, each with so many lines of every node and a metric every tenth line."""
    run_record = new_record(folder)
    written: list[Identity] = [(record.SUBMITTED, 0, 0, 0)]
    for attempt in range(1, attempts + 1):
        run_record.event(record.STARTED, attempt=attempt)
        written.append((record.STARTED, attempt, 0, 0))
        for number in range(1, lines + 1):
            for node in range(nodes):
                run_record.line(
                    attempt, Member(NODE, node), Line(None, "o", f"attempt {attempt} line {number} " + "." * 50)
                )
                written.append((record.LINE, attempt, node, number))
            if number % 10 == 0:
                run_record.metric(attempt, COORDINATOR, "metric", {"iteration": number, "loss": 1.0})
                written.append((record.METRIC, attempt, 0, 0))
        if attempt < attempts:
            run_record.event(record.RESTARTED, failures=attempt, interruptions=0)
            written.append((record.RESTARTED, 0, 0, 0))
    run_record.event(record.SUCCEEDED)
    run_record.close()
    return [*written, (record.SUCCEEDED, 0, 0, 0)]


def identity(event: Event) -> Identity:
    return event.kind, event.attempt, event.member.number if event.member else 0, event.number


@pytest.mark.parametrize("follow", [False, True])
def test_a_long_record_is_read_in_order_of_time(tmp_path: Path, follow: bool) -> None:
    written = write_run(tmp_path, attempts=3, lines=4000)
    assert (tmp_path / "logs" / "1" / "node-0.log").stat().st_size > 2 * (1 << 17), "longer than what is read at once"
    events_read = [identity(event) for event in folder_events(names.RunPaths(tmp_path), follow, alive=lambda: False)]
    assert events_read == written


def test_a_concurrent_follower_sees_the_same_order_and_misses_nothing(tmp_path: Path) -> None:
    names.RunPaths(tmp_path).events.touch()
    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write_run, tmp_path, 3, 1500)
        events = folder_events(names.RunPaths(tmp_path), True, alive=lambda: not writer.done(), sleep=lambda _: None)
        assert [identity(event) for event in events] == writer.result()


def test_lines_that_follow_each_other_are_one_piece_of_the_stream(tmp_path: Path) -> None:
    run_record = new_record(tmp_path)
    node_1 = Member(NODE, 1)
    for member, text in [(COORDINATOR, "a"), (COORDINATOR, "b"), (node_1, "c"), (COORDINATOR, "d"), (COORDINATOR, "e")]:
        run_record.line(1, member, Line(2, "e", text))
    run_record.event(record.SUCCEEDED)
    run_record.close()
    with (tmp_path / "logs" / "1" / "node-0.log").open("a") as log:  # as a copy has it that lacks lines
        log.write(f"2100-01-01T00:00:00Z - {record.MISSING} 3\n2100-01-01T00:00:01Z 2 e h\n")
    pieces = folder_events(names.RunPaths(tmp_path), False, alive=lambda: True).pieces
    lines = [(each.member, each.number, *each.texts) for each in pieces if isinstance(each, Lines)]
    assert lines == [
        (COORDINATOR, 1, "a", "b"),
        (node_1, 1, "c"),
        (COORDINATOR, 3, "d", "e"),
        (COORDINATOR, 7, "(3 lines are no longer available)", "h"),
    ]


def test_entries_written_after_reading_began_are_left_out_without_follow(tmp_path: Path) -> None:
    run_record = new_record(tmp_path)
    run_record.event(record.STARTED, attempt=1)
    events = folder_events(names.RunPaths(tmp_path), False, alive=lambda: True)
    first = next(events)
    run_record.event(record.SUCCEEDED)
    run_record.close()

    assert [first.kind, *(event.kind for event in events)] == ["submitted", "started"]


def kinds_and_pauses(folder: Path, output_after: int | None, end_after: int) -> tuple[list[str], list[float]]:
    """What a follower reads of a run that writes a line and its end after so many pauses, and these pauses."""
    run_record = new_record(folder)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == output_after:
            run_record.line(1, COORDINATOR, Line(None, "o", "the first line"))
        elif len(pauses) == end_after:
            run_record.event(record.STOPPED)
            run_record.close()

    events = folder_events(names.RunPaths(folder), True, alive=lambda: True, sleep=sleep)
    return [event.kind for event in events], pauses


def test_a_follower_polls_slowly_while_nothing_happens(tmp_path: Path) -> None:
    kinds, pauses = kinds_and_pauses(tmp_path, None, 200)
    assert kinds == ["submitted", "stopped"]
    assert max(pauses[:20]) <= 0.005 and max(pauses[:60]) <= 0.02 and min(pauses[100:190]) >= 0.2


def test_a_follower_polls_fastest_until_there_is_output(tmp_path: Path) -> None:
    kinds, pauses = kinds_and_pauses(tmp_path, 5, 10)
    assert kinds == ["submitted", "line", "stopped"]
    assert max(pauses[:5]) < min(pauses[5:])


@pytest.mark.extensive("a large log")
def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    write_run(tmp_path, attempts=1, lines=40_000, nodes=1)
    tracemalloc.start()
    count = sum(1 for _ in folder_events(names.RunPaths(tmp_path), True, alive=lambda: False))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 44_003 and peak < 8e6


def test_a_state_needs_only_the_ends_of_long_metrics(tmp_path: Path) -> None:
    paths = names.RunPaths(tmp_path)
    run_record = new_record(tmp_path)
    run_record.metric(1, COORDINATOR, "context", {"total_iterations": 30_000})
    for iteration in range(1, 30_001):
        loss = 1 / iteration if iteration < 30_000 else None
        run_record.metric(1, COORDINATOR, "metric", {"iteration": iteration, "loss": loss})
    run_record.event(record.FAILED, reason="the end")
    run_record.close()

    state = reader.state(paths)

    assert "loss" not in state.scalars, "the last one is not a number"
    assert (state.iteration, state.total_iterations, state.reason) == (30_000, 30_000, "the end")
    assert sum(1 for _ in reader.lines(paths.metrics)) == 30_001


@pytest.mark.parametrize("ranks", [10, 400, 3000])
def test_a_state_has_the_last_iteration_however_many_ranks_report_in_a_line(tmp_path: Path, ranks: int) -> None:
    packed = protocol.pack([[0.25] * 100 for _ in range(ranks)])
    run_record = new_record(tmp_path)
    for iteration in (100, 200, 300):
        run_record.metric(
            1, COORDINATOR, protocol.METRIC, {"iteration": iteration, "ranks": packed, "loss": 1 / iteration}
        )
    for _ in range(300 * (ranks == 400)):
        run_record.metric(1, COORDINATOR, protocol.CHECKPOINT, {"path": "x" * 1000})
    run_record.close()
    state = reader.state(names.RunPaths(tmp_path))
    assert (state.iteration, state.scalars["loss"]) == (300, 1 / 300)


@pytest.mark.parametrize(("after", "accuracy"), [(2_000, {"accuracy": 0.9}), (30_000, {})], ids=["last", "unknown"])
def test_a_state_has_no_scalar_of_an_evaluation_that_others_followed(
    tmp_path: Path, after: int, accuracy: dict[str, float]
) -> None:
    """A model that was kept after a long run had the accuracy of its first evaluation in the catalogue."""
    run_record = new_record(tmp_path)
    run_record.metric(1, COORDINATOR, protocol.EVALUATION, {"iteration": 0, "accuracy": 0.1})
    for iteration in range(1, 40_000):
        run_record.metric(1, COORDINATOR, protocol.METRIC, {"iteration": iteration, "loss": 0.5})
        if iteration == 40_000 - after:
            run_record.metric(1, COORDINATOR, protocol.EVALUATION, {"iteration": iteration, "accuracy": 0.9})
    run_record.close()
    assert reader.state(names.RunPaths(tmp_path)).scalars == {"iteration": 39_999, "loss": 0.5, **accuracy}


def test_where_a_checkpoint_lies_is_no_scalar_of_the_model(tmp_path: Path) -> None:
    run_record = new_record(tmp_path)
    run_record.metric(1, COORDINATOR, protocol.METRIC, {"iteration": 2, "loss": 0.5})
    for kind in (protocol.RESUMED, protocol.CHECKPOINT):
        run_record.metric(1, COORDINATOR, kind, {"iteration": 2, "path": "/runs/x/checkpoints/2", "seconds": 1.0})
    run_record.close()
    assert reader.state(names.RunPaths(tmp_path)).scalars == {"iteration": 2, "loss": 0.5}


def test_the_state_says_when_an_iteration_was_reported_and_nothing_of_the_line_is_a_scalar(tmp_path: Path) -> None:
    times = iter([1.0, 2.0, 3.0])
    run_record = record.Record(str(tmp_path), lambda: next(times))
    run_record.metric(2, COORDINATOR, protocol.METRIC, {"iteration": 2, "loss": 0.5, "epoch": 1, "waited": 0.1})
    state = reader.state(names.RunPaths(tmp_path))
    assert (state.reported, state.scalars) == (1.0, {"iteration": 2, "loss": 0.5, "epoch": 1})
    run_record.metric(2, COORDINATOR, protocol.CHECKPOINT, {"iteration": 3, "path": "3", "seconds": 1.0})
    state = reader.state(names.RunPaths(tmp_path))
    assert (state.reported, state.scalars) == (2.0, {"iteration": 2, "loss": 0.5, "epoch": 1})
    run_record.close()


def test_a_torn_record_of_an_attempt_hides_no_other(tmp_path: Path) -> None:
    whole = '{"started": 1.0, "cause": "failed", "last_iteration": null}'
    for number, text in (1, whole), (2, whole[:30]), (3, "[]"), (10, whole):
        (tmp_path / "attempts" / str(number)).mkdir(parents=True)
        (tmp_path / "attempts" / str(number) / "node-0.json").write_text(text)
    assert [each["attempt"] for each in reader.attempts(names.RunPaths(tmp_path))] == [1, 10]


def test_a_run_without_agent_is_lost_unless_its_end_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(json.dumps({"t": 1.0, "event": "submitted", "name": "x"}) + "\n")
    assert reader.state(names.RunPaths(tmp_path)).state == "lost"
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(json.dumps({"t": 2.0, "event": "failed", "reason": "why"}) + "\n")
    assert reader.state(names.RunPaths(tmp_path)).state == "failed"


def test_a_pool_that_its_driver_has_closed_is_not_one_to_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for reason, count in (("stopped by root", 1), (reader.CLOSED, 0)):
        lines = [
            {"t": 1.0, "event": record.SUBMITTED, "name": "x"},
            {"t": 2.0, "event": record.STOPPED, "reason": reason},
        ]
        (tmp_path / record.EVENTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
        tables.show_status(reader.state(names.RunPaths(tmp_path)), as_json=False)
        assert capsys.readouterr().out.count("\ncontinue   spotmpi run --resume") == count


def test_machines_that_are_avoided_are_in_status_and_logs_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    avoided = {"t": 2.0, "event": record.AVOIDED, "machine": "ip-1", "reason": "1 of 8 GPUs visible"}
    lines = [{"t": 1.0, "event": record.SUBMITTED, "name": "x"}, avoided]
    (tmp_path / record.EVENTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    tables.show_status(reader.state(names.RunPaths(tmp_path)), as_json=False)
    assert "avoided    ip-1: 1 of 8 GPUs visible\n" in capsys.readouterr().out
    event = Event(2.0, record.AVOIDED, values={"machine": "ip-1", "reason": "1 of 8 GPUs visible"})
    assert event_text(event, Throughput()) == "machine ip-1 is at fault: 1 of 8 GPUs visible"
    again = Event(2.0, record.AVOIDED, values={**event.values, "again": 1.0, "checked": True})
    assert event_text(again, Throughput()) == "", "the reason of the interruption says it"
    failures = Event(2.0, record.AVOIDED, values={**again.values, "checked": False})
    assert event_text(failures, Throughput()) == event_text(event, Throughput())
