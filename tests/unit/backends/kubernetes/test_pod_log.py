"""Reading a pod's output over broken ways: nothing lost, nothing twice, and a gap is never hidden."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from spotmpi.agent import record
from spotmpi.backends.kubernetes.follow import pod_log
from spotmpi.backends.kubernetes.follow.pod_log import PodLog, Source
from spotmpi.core.errors import NotPermitted, SpotmpiError
from spotmpi.runs.pod_output import Entry, parse
from tests.unit.backends.kubernetes.watched_cluster import api_error

CUT = httpx2.ReadError("cut")
# A kubelet reads its current file only; where that was rotated just after the last line, the log says nothing.
SILENT = httpx2.ReadError("silent")


def line(number: int, text: str | None = None) -> str:
    values = [1, 0, number, 1000.0 + number, None, "o", text or f"line {number}"]
    return json.dumps({"n": number, "l": values}, separators=(",", ":"))


class FakePod:
    """A pod whose log answers as scripted: each answer is a list of lines, the last perhaps an error."""

    def __init__(self, *answers: list[Any]) -> None:
        self.answers = list(answers)
        self.requests: list[int | None] = []  # the `since` of each request
        self.folder_reads: list[tuple[float, float]] = []
        self.folder: list[Entry] | None = None
        self.has_predecessors = False
        self.image: str | None = None
        self.at_once = 1  # lines that arrive together

    def now(self) -> float:
        return time.time()

    async def log(self, pod: str, since: int | None, follow: bool) -> AsyncIterator[str]:
        self.requests.append(since)
        answer = self.answers.pop(0)
        if answer[:1] == [SILENT]:
            answer = answer[1:]
            await asyncio.sleep(pod_log.HEARTBEAT_TIMEOUT * 5)
        lines = [item for item in answer if not isinstance(item, Exception)]
        for start in range(0, len(lines), self.at_once):
            yield "\n".join(lines[start : start + self.at_once])
        for error in answer[len(lines) :]:
            raise error

    async def replay(self, pod: str, node: int, since: float, until: float) -> list[Entry]:
        self.folder_reads.append((since, until))
        if self.folder is None:
            raise SpotmpiError("no folder")
        return [entry for entry in self.folder if since <= (entry.time or 0) <= until]

    def read(self, follow: bool = True) -> tuple[list[Entry], list[str]]:
        """Give every entry and every stray line."""
        strays: deque[str] = deque()
        source = Source("pod", 0, 999.0, self.has_predecessors, lambda: not self.answers[1:], self.image, self.replay)

        async def collect() -> list[Entry]:
            read = PodLog(self, source, strays).entries(follow)  # type: ignore[arg-type]
            return [each async for entries in read for entry in entries for each in entry.split()]

        return asyncio.run(collect()), list(strays)


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_log, "RETRY_DELAY", 0)
    monkeypatch.setattr(pod_log, "HEARTBEAT_TIMEOUT", 0.02)


def numbers(entries: list[Entry]) -> list[int]:
    return [entry.event.number for entry in entries if entry.event and entry.event.kind == record.LINE]


def missing_lines(entries: list[Entry]) -> list[int]:
    return [entry.event.values["size"] for entry in entries if entry.event and entry.event.kind == record.GAP]


def lines(first: int, last: int) -> list[str]:
    return [line(number) for number in range(first, last + 1)]


@pytest.mark.parametrize("at_once", [1, 3, 9])
@pytest.mark.parametrize("cut_at", range(1, 8))
def test_a_stream_that_breaks_anywhere_is_resumed_without_loss_or_repeat(cut_at: int, at_once: int) -> None:
    pod = FakePod([*lines(1, cut_at), CUT], lines(max(cut_at - 2, 1), 9))
    pod.at_once = at_once
    entries, _ = pod.read()
    assert numbers(entries) == list(range(1, 10))
    assert pod.requests[0] is None and pod.requests[1] is not None
    assert missing_lines(entries) == []


def test_a_stream_that_resumes_too_late_is_read_from_its_beginning() -> None:
    pod = FakePod([*lines(1, 3), CUT], lines(7, 9), lines(1, 9))
    entries, _ = pod.read()
    assert numbers(entries) == list(range(1, 10))
    assert pod.requests[2] is None
    assert not pod.folder_reads


def test_entries_lost_to_rotation_come_from_the_run_folder() -> None:
    pod = FakePod([*lines(1, 3), CUT], lines(7, 9), lines(7, 9))
    pod.folder = [entry for text in lines(1, 9) if (entry := parse(text))]
    entries, _ = pod.read()
    assert numbers(entries) == list(range(1, 10))
    assert pod.folder_reads == [(1003.0, 1007.0)]
    assert missing_lines(entries) == []


def test_a_follower_that_starts_after_rotation_reads_the_beginning_from_the_run_folder() -> None:
    pod = FakePod(lines(5, 6))
    pod.folder = [entry for text in lines(1, 6) if (entry := parse(text))]
    entries, _ = pod.read(follow=False)
    assert numbers(entries) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("more", [[], lines(7, 8)], ids=["nothing more", "more"])
@pytest.mark.parametrize("has_predecessors", [False, True], ids=["first attempt", "later attempt"])
def test_a_silent_pods_rotated_log_is_read_from_the_run_folder_at_once(more: list[str], has_predecessors: bool) -> None:
    """All lines are read once, without a wait for the next line."""
    pod = FakePod([SILENT, *more])
    pod.has_predecessors, pod.folder = has_predecessors, [entry for text in lines(1, 6) if (entry := parse(text))]
    entries, _ = pod.read()
    assert numbers(entries) == list(range(1, 7 + len(more)))
    assert missing_lines(entries) == []


@pytest.mark.parametrize("more", [[], lines(7, 8)], ids=["nothing more", "more"])
def test_entries_rotated_while_the_connection_was_broken_are_read_at_once(more: list[str]) -> None:
    """Lines of the run folder are read at once, not with the pod's next line."""
    pod = FakePod([*lines(1, 3), CUT], [SILENT, *more])
    pod.folder = [entry for text in lines(1, 6) if (entry := parse(text))]
    entries, _ = pod.read()
    assert numbers(entries) == list(range(1, 7 + len(more)))
    assert missing_lines(entries) == []


@pytest.mark.parametrize("before", [[], [[*lines(1, 3), CUT]]], ids=["at first", "after a break"])
def test_a_gap_is_reported_where_the_run_folder_had_nothing_new_after_a_silence(before: list[list[Any]]) -> None:
    """3 missing entries are reported, although the log was read again during the silence."""
    first = 3 * len(before) + 4
    pod = FakePod(*before, [SILENT, *lines(first, first + 1)], lines(first, first + 1))
    pod.folder = [entry for text in lines(1, 3 * len(before)) if (entry := parse(text))]
    entries, _ = pod.read()
    assert numbers(entries)[-2:] == [first, first + 1]
    assert missing_lines(entries) == [3]


def test_lines_that_the_run_folder_repeats_at_both_ends_of_a_gap_do_not_hide_it() -> None:
    """Line 4 is reported as missing; the repeated lines 3 and 5 do not count in its place."""
    pod = FakePod([*lines(1, 3), CUT], [line(5)], [line(5)])
    pod.folder = [entry for text in (line(3), line(5)) if (entry := parse(text))]
    entries, _ = pod.read()
    assert numbers(entries) == [1, 2, 3, 5]
    assert missing_lines(entries) == [1]


def test_a_silent_pod_whose_run_folder_cannot_be_read_is_waited_for() -> None:
    pod = FakePod([SILENT, *lines(1, 2)])
    entries, _ = pod.read()
    assert numbers(entries) == [1, 2]
    assert missing_lines(entries) == []


def test_output_of_earlier_attempts_comes_from_the_run_folder_once() -> None:
    pod = FakePod([*lines(1, 2), CUT], lines(1, 3))
    before = '{"n":9,"l":[1,0,1,999.5,null,"o","of attempt 1"]}'
    pod.has_predecessors, pod.folder = True, [entry for text in (before, line(1)) if (entry := parse(text))]
    entries, _ = pod.read()
    assert next(entry.event.values["text"] for entry in entries if entry.event) == "of attempt 1"
    assert len(pod.folder_reads) == 1 and missing_lines(entries) == []


def test_missing_output_of_earlier_attempts_is_reported() -> None:
    pod = FakePod(lines(1, 2))
    pod.has_predecessors = True
    entries, _ = pod.read()
    assert numbers(entries) == [1, 2]
    gap = entries[0].event
    assert gap and gap.kind == record.GAP
    assert gap.reason == "the output of earlier attempts on node 0 is no longer available: no folder"


@pytest.mark.parametrize("at_once", [2, 3, 9])
def test_entries_before_a_break_are_not_read_again(at_once: int) -> None:
    pod = FakePod([*lines(1, 3), CUT], [*lines(2, 4), line(7)], lines(1, 9))
    pod.at_once = at_once
    entries, _ = pod.read()
    assert numbers(entries) == list(range(1, 10)) and not pod.folder_reads


@pytest.mark.parametrize(("folder_lines", "size"), [(None, 3), ([5], 2), ([], 3)])
def test_a_gap_is_reported_with_its_size(folder_lines: list[int] | None, size: int) -> None:
    pod = FakePod([*lines(1, 3), CUT], lines(7, 8), lines(7, 8))
    pod.folder = None if folder_lines is None else [entry for number in folder_lines if (entry := parse(line(number)))]
    entries, _ = pod.read()
    assert missing_lines(entries) == [size]
    assert numbers(entries) == [1, 2, 3, *(folder_lines or []), 7, 8]
    index = next(i for i, entry in enumerate(entries) if entry.event and entry.event.kind == record.GAP)
    assert numbers(entries[index:]) == [7, 8]


def test_the_start_of_an_attempt_has_the_digest_of_its_image() -> None:
    pod = FakePod(['{"n":1,"e":{"t":1001.0,"event":"started","attempt":1}}', line(2)])
    pod.image = "registry/image@sha256:0"
    entries, _ = pod.read()
    images = [entry.event.values.get("container") for entry in entries if entry.event]
    assert images == ["registry/image@sha256:0", None]


def test_lines_that_are_no_entries_are_collected_as_strays() -> None:
    entries, strays = FakePod(["Traceback", line(1), '{"n":', '{"n":2}', '{"n":2,"l":[]}']).read()
    assert numbers(entries) == [1]
    assert strays == ["Traceback", '{"n":', '{"n":2}', '{"n":2,"l":[]}']


def test_memory_stays_flat_over_a_hundred_thousand_lines() -> None:
    class Long(FakePod):
        async def log(self, pod: str, since: int | None, follow: bool) -> AsyncIterator[str]:
            for start in range(1, 100_001, 500):
                yield "\n".join(lines(start, start + 499))

    pod = Long()
    source = Source("pod", 0, 999.0, False, lambda: True, None, pod.replay)

    async def growth() -> int:
        count = before = 0
        async for entries in PodLog(pod, source, deque(maxlen=20)).entries(True):  # type: ignore[arg-type]
            count += sum(len(list(entry.split())) for entry in entries)
            if count == 10_000:
                before = resident_pages()
        assert count == 100_000
        return resident_pages() - before

    assert asyncio.run(growth()) * resource.getpagesize() < 4 << 20


def resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


FORBIDDEN = api_error(403)


def test_a_forbidden_log_raises_at_once() -> None:
    """An error with its reason ends the reading, instead of a request every second."""
    pod = FakePod([FORBIDDEN], [])
    with pytest.raises(NotPermitted, match="could not read the log of pod pod: not permitted"):
        pod.read()
    assert len(pod.requests) == 1


def test_a_refusal_by_a_server_that_has_just_started_is_retried() -> None:
    pod = FakePod([*lines(1, 3), CUT], *[[FORBIDDEN]] * 10, lines(1, 5))
    assert numbers(pod.read()[0]) == [1, 2, 3, 4, 5]
    with pytest.raises(NotPermitted):
        FakePod([*lines(1, 3), CUT], *[[FORBIDDEN]] * 11, []).read()
