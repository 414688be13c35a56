"""Lines that arrive together stay one piece on their way to the terminal, and mean what they mean one by one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi.agent import record
from spotmpi.cli.logs import Filter, print_events
from spotmpi.core.events import Event, Lines, Stream
from spotmpi.core.names import RunPaths
from spotmpi.plan.cluster import BACKEND
from spotmpi.runs import cache as run_cache
from spotmpi.runs.cache import RunCache, SeenEvents
from spotmpi.runs.pod_output import Entry, parse_all

BEGAN = 1000.0
METRIC = {"t": 1003.5, "attempt": 1, "node": 0, "kind": "metric", "iteration": 20}


def printed(number: int, line: int, node: int = 0, attempt: int = 1) -> str:
    said = [attempt, node, line, BEGAN + line, line % 2 or None, "o", f"line {line} of node {node}"]
    return json.dumps({"n": number, "l": said}, separators=(",", ":"))


def piece(first: int, last: int, node: int = 0) -> Entry:
    """Lines from *first* to *last* as one entry."""
    (entry,) = parse_all("\n".join(printed(number, number, node) for number in range(first, last + 1)))
    assert isinstance(entry, Entry) and entry.lines and (entry.number, entry.last) == (first, last)
    return entry


def numbers(entries: list[Entry | str]) -> list[list[int]]:
    """Of each entry the numbers of what is in it."""
    return [[each.number for each in entry.split()] for entry in entries if isinstance(entry, Entry)]


def test_a_thousand_lines_that_arrive_together_are_one_piece() -> None:
    assert len(list(piece(1, 1000).split())) == 1000


@pytest.mark.parametrize(
    ("lines", "pieces"),
    [
        ([printed(1, 1), printed(2, 2), json.dumps({"n": 3, "m": METRIC}), printed(4, 3)], [[1, 2], [3], [4]]),
        ([printed(1, 1), printed(2, 2), printed(3, 1, node=1)], [[1], [2], [3]]),
        ([printed(1, 1), printed(2, 2), printed(3, 1, attempt=2)], [[1], [2], [3]]),
        ([printed(1, 1), printed(2, 2), printed(2, 2)], [[1], [2], [2]]),
        ([printed(1, 1), printed(2, 2), printed(9, 9)], [[1], [2], [9]]),
        ([printed(1, 1), printed(2, 2), "Traceback", '{"n":3}', '{"n":3,"l":[1]}'], [[1], [2]]),
    ],
    ids=["metric", "node", "attempt", "again", "gap", "strays"],
)
def test_only_lines_of_one_place_that_follow_each_other_are_one_piece(
    lines: list[str], pieces: list[list[int]]
) -> None:
    found = parse_all("\n".join(line.replace('"n": ', '"n":') for line in lines))
    assert numbers(found) == pieces
    assert [entry for entry in found if isinstance(entry, str)] == lines[2:] * ("Traceback" in lines)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "runs" / "digits-1")
    plan = {"run": paths.id, "name": "digits", "backend": BACKEND, "context": None, "namespace": "here"}
    run_cache.create(paths, 'name = "digits"\n', plan, BEGAN)
    return paths


@pytest.mark.parametrize(
    "taken",
    [
        [piece(1, 9)],
        [piece(1, 4), piece(3, 9)],
        [*piece(1, 4).split(), piece(5, 9)],
        [piece(1, 9), piece(1, 9)],
        [piece(1, 4), *piece(1, 9).split()],
    ],
    ids=["whole", "overlapping", "apart first", "again", "again apart"],
)
def test_a_copy_of_pieces_is_that_of_single_lines(paths: RunPaths, taken: list[Entry]) -> None:
    with RunCache(paths) as cache:
        cache.take(taken)
    shown = [f"1970-01-01T00:16:4{n}.000000Z {n % 2 or '-'} o line {n} of node 0\n" for n in range(1, 10)]
    assert (paths.logs / "1" / "node-0.log").read_text() == "".join(shown)
    given = SeenEvents()
    fresh = [each for entry in taken for each in given.new_in(entry)]
    assert [event.number for event in Stream(iter(fresh))] == list(range(1, 10))


def test_a_gap_before_a_piece_keeps_its_place(paths: RunPaths) -> None:
    with RunCache(paths) as cache:
        cache.take([piece(1, 2), piece(5, 6)])
    texts = [line.split(" ", 3)[3] for line in (paths.logs / "1" / "node-0.log").read_text().splitlines()]
    assert texts == ["line 1 of node 0", "line 2 of node 0", *[run_cache.MISSING] * 2, *texts[4:]]
    assert texts[4:] == ["line 5 of node 0", "line 6 of node 0"]


def story() -> Iterator[Event | Lines]:
    yield Event(BEGAN, record.STARTED, 1)
    for node in (0, 1):
        found = piece(1, 12, node).lines
        assert found
        yield found
    yield Event(BEGAN + 50, record.SUCCEEDED)


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        (Filter(None, re.compile(""), 0.0), [(node, number) for node in (0, 1) for number in range(1, 13)]),
        (Filter(1, re.compile(""), 0.0), [(1, number) for number in range(1, 13)]),
        (Filter(None, re.compile("line .[12]"), 0.0), [(0, 11), (0, 12), (1, 11), (1, 12)]),
        (Filter(0, re.compile("2 "), BEGAN + 5), [(0, 12)]),
    ],
    ids=["all", "node", "grep", "since"],
)
def test_pieces_are_printed_as_the_same_lines_one_by_one(
    wanted: Filter, shown: list[tuple[int, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    print_events(Stream(story()), wanted, as_json=False, live=True)
    together = capsys.readouterr()
    assert together.out.splitlines() == [f"line {number} of node {node}" for node, number in shown]
    print_events([*Stream(story())], wanted, as_json=False, live=True)
    assert capsys.readouterr() == together

    print_events(Stream(story()), wanted, as_json=True, live=True)
    told = map(json.loads, capsys.readouterr().out.splitlines())
    assert [(each.get("node", 0), each["number"]) for each in told if each["event"] == "line"] == shown
