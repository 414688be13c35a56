"""Lines that arrive together stay one piece on their way to the terminal, and mean what they mean one by one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi.agent import record
from spotmpi.agent.plan import COORDINATOR, NODE, Member, read_member
from spotmpi.cli.logs import Filter, print_events
from spotmpi.core.events import Event, Lines, Stream
from spotmpi.core.names import KUBERNETES, RunPaths
from spotmpi.runs import folder as run_folder
from spotmpi.runs.pod_output import PodEntry, RunCache, SeenEvents, parse_all

START = 1000.0
METRIC = {"t": 1003.5, "attempt": 1, "member": "node/0", "kind": "metric", "iteration": 20}


def line_entry(number: int, line: int, node: int = 0, attempt: int = 1) -> str:
    values = [attempt, f"node/{node}", line, START + line, line % 2 or None, "o", f"line {line} of node {node}"]
    return json.dumps({"n": number, "l": values}, separators=(",", ":"))


def batch(first: int, last: int, node: int = 0) -> PodEntry:
    """Lines from *first* to *last* as one entry."""
    (entry,) = parse_all("\n".join(line_entry(number, number, node) for number in range(first, last + 1)))
    assert isinstance(entry, PodEntry) and entry.lines and (entry.number, entry.last) == (first, last)
    return entry


def numbers(entries: list[PodEntry | str]) -> list[list[int]]:
    """The numbers of the lines in each entry."""
    return [[each.number for each in entry.split()] for entry in entries if isinstance(entry, PodEntry)]


FIRST = [line_entry(1, 1), line_entry(2, 2)]


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ([line_entry(3, 3)], [[1, 2, 3]]),
        ([json.dumps({"n": 3, "m": METRIC}, separators=(",", ":")), line_entry(4, 3)], [[1, 2], [3], [4]]),
        ([line_entry(3, 1, node=1)], [[1], [2], [3]]),
        ([line_entry(3, 1, attempt=2)], [[1], [2], [3]]),
        ([line_entry(2, 2)], [[1], [2], [2]]),
        ([line_entry(9, 9)], [[1], [2], [9]]),
        (["Traceback", '{"n":3}', '{"n":3,"l":[1]}'], [[1], [2]]),
    ],
    ids=["next line", "metric", "node", "attempt", "again", "gap", "other_lines"],
)
def test_only_lines_of_one_node_that_follow_each_other_are_one_batch(
    last: list[str], expected: list[list[int]]
) -> None:
    entries = parse_all("\n".join([*FIRST, *last]))
    assert numbers(entries) == expected
    assert [entry for entry in entries if isinstance(entry, str)] == last * ("Traceback" in last)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "runs" / "digits-1")
    plan = {"run": paths.id, "name": "digits", "backend": KUBERNETES, "context": None, "namespace": "here"}
    run_folder.create(paths, 'name = "digits"\n', plan, START)
    return paths


@pytest.mark.parametrize(
    "batches",
    [
        [batch(1, 9)],
        [batch(1, 4), batch(3, 9)],
        [*batch(1, 4).split(), batch(5, 9)],
        [batch(1, 9), batch(1, 9)],
        [batch(1, 4), *batch(1, 9).split()],
    ],
    ids=["whole", "overlapping", "apart first", "again", "again apart"],
)
def test_a_copy_of_batches_is_that_of_single_lines(paths: RunPaths, batches: list[PodEntry]) -> None:
    with RunCache(paths) as cache:
        cache.write(batches)
    expected = [f"1970-01-01T00:16:4{n}.000000Z {n % 2 or '-'} o line {n} of node 0\n" for n in range(1, 10)]
    assert (paths.logs / "1" / "node-0.log").read_text() == "".join(expected)
    seen_events = SeenEvents()
    fresh = [each for entry in batches for each in seen_events.new_in(entry)]
    assert [event.number for event in Stream(iter(fresh))] == list(range(1, 10))


def test_a_gap_before_a_batch_keeps_its_place(paths: RunPaths) -> None:
    with RunCache(paths) as cache:
        cache.write([batch(1, 2), batch(5, 6)])
    texts = [line.split(" ", 3)[3] for line in (paths.logs / "1" / "node-0.log").read_text().splitlines()]
    lines = [f"line {number} of node 0" for number in (1, 2, 5, 6)]
    assert texts == [*lines[:2], "2", *lines[2:]]


def run_events() -> Iterator[Event | Lines]:
    yield Event(START, record.STARTED, 1)
    for node in (0, 1):
        lines = batch(1, 12, node).lines
        assert lines
        yield lines
    yield Event(START + 50, record.SUCCEEDED)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Filter(None, re.compile(""), 0.0), [(node, number) for node in (0, 1) for number in range(1, 13)]),
        (Filter(Member(NODE, 1), re.compile(""), 0.0), [(1, number) for number in range(1, 13)]),
        (Filter(None, re.compile("line .[12]"), 0.0), [(0, 11), (0, 12), (1, 11), (1, 12)]),
        (Filter(COORDINATOR, re.compile("2 "), START + 5), [(0, 12)]),
    ],
    ids=["all", "node", "grep", "since"],
)
def test_batches_are_printed_as_the_same_lines_one_by_one(
    selection: Filter, expected: list[tuple[int, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    print_events(Stream(run_events()), selection, as_json=False, live=True)
    together = capsys.readouterr()
    assert together.out.splitlines() == [f"line {number} of node {node}" for node, number in expected]
    print_events([*Stream(run_events())], selection, as_json=False, live=True)
    assert capsys.readouterr() == together

    print_events(Stream(run_events()), selection, as_json=True, live=True)
    events = map(json.loads, capsys.readouterr().out.splitlines())
    assert [
        (read_member(each["member"]).number, each["number"]) for each in events if each["event"] == "line"
    ] == expected


def test_a_node_without_output_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    for node, message in ((7, "no output of node 7, only of node 0, node 1"), (1, "")):
        selection = Filter(Member(NODE, node), re.compile("nothing"), 0.0)
        print_events(Stream(run_events()), selection, as_json=False, live=False)
        output = capsys.readouterr()
        assert output.out == "" and ("no output" in output.err) == bool(message) and message in output.err
    nothing = Stream(iter([Event(START, record.STARTED, 1)]))
    print_events(nothing, Filter(COORDINATOR, re.compile(""), 0.0), as_json=False, live=False)
    assert capsys.readouterr().err.endswith("no output of node 0, nor of any other node\n"), "it printed nothing"
