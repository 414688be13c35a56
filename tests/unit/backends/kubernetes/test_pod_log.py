"""Reading a pod's output over broken ways: nothing lost, nothing twice, and a gap is never hidden."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lightkube import ApiError

from spotmpi.agent import record
from spotmpi.agent.plan import COORDINATOR, Member
from spotmpi.backends.kubernetes.client.api import MAX_REFUSALS
from spotmpi.backends.kubernetes.follow import pod_log
from spotmpi.backends.kubernetes.follow.jobset import RUNNING
from spotmpi.backends.kubernetes.follow.pod_log import FolderLog, PodLog, Source
from spotmpi.core.errors import NotPermitted, SpotmpiError
from spotmpi.core.events import Event
from spotmpi.runs.pod_output import PodEntry, parse
from tests.cloud.cluster.answers import status

CUT = httpx2.ReadError("cut")
# A kubelet reads its current file only; where that was rotated just after the last line, the log says nothing.
SILENT = httpx2.ReadError("silent")


def line(number: int, text: str | None = None, time: float | None = None) -> str:
    values = [1, "node/0", number, time or 1000.0 + number, None, "o", text or f"line {number}"]
    return json.dumps({"n": number, "l": values}, separators=(",", ":"))


class FakePod:
    """A pod whose log answers as scripted: each answer is a list of lines, the last perhaps an error."""

    def __init__(self, *answers: list[Any], folder: list[str] | None = None, has_predecessors: bool = False) -> None:
        self.answers = list(answers)
        self.requests: list[int | None] = []  # the `since` of each request
        self.folder_reads: list[tuple[float, float]] = []
        self.folder = folder  # the lines that the run folder has of this node; None if it cannot be read
        self.has_predecessors = has_predecessors
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

    async def replay(self, pod: str, member: Member, since: float, until: float) -> list[PodEntry]:
        self.folder_reads.append((since, until))
        if self.folder is None:
            raise SpotmpiError("no folder")
        entries = [entry for line in self.folder if (entry := parse(line))]
        return [entry for entry in entries if since <= (entry.time or 0) <= until]

    def read(self, follow: bool = True) -> tuple[list[Event], list[str]]:
        """Give every event and every stray line."""
        other_lines: deque[str] = deque()
        source = Source(
            "pod", COORDINATOR, 999.0, self.has_predecessors, lambda: not self.answers[1:], self.image, self.replay
        )

        async def collect() -> list[Event]:
            read = PodLog(self, source, other_lines).entries(follow)  # type: ignore[arg-type]
            return [each.event async for entries in read for entry in entries for each in entry.split() if each.event]

        return asyncio.run(collect()), list(other_lines)

    def numbers(self) -> list[int | str]:
        """The numbers of all lines that are read, and gaps with the number of entries that are missing."""
        events = [event for event in self.read()[0] if event.kind != record.WAITING]
        return [f"{event.values['size']} missing" if event.kind == record.GAP else event.number for event in events]


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_log, "RETRY_DELAY", 0)
    monkeypatch.setattr(pod_log, "HEARTBEAT_TIMEOUT", 0.02)


def lines(first: int, last: int) -> list[str]:
    return [line(number) for number in range(first, last + 1)]


class Connection(NamedTuple):
    """One connection to a pod: what is printed until it breaks, and how far from what it printed before it begins."""

    printed: int
    rotated: int  # of the oldest lines, which its kubelet has put away before
    offset: int


class RotatingPod(FakePod):
    """A pod that prints and whose log is rotated from one connection to the next; the last one does not break."""

    def __init__(self, connections: list[Connection], folder: bool, at_once: int) -> None:
        super().__init__([], [])
        self.connections, self.at_once, self.oldest = connections, at_once, 1
        self.printed = sum(each.printed for each in connections)
        self.folder = lines(1, self.printed) if folder else None

    async def log(self, pod: str, since: int | None, follow: bool) -> AsyncIterator[str]:
        number = len(self.requests)
        self.requests.append(since)
        more = number < len(self.connections) - 1
        self.answers = [[], []] if more else []
        before = sum(each.printed for each in self.connections[:number])
        upto = sum(each.printed for each in self.connections[: number + 1])
        first = 1
        if number < len(self.connections):
            self.oldest += self.connections[number].rotated
            first = 1 if since is None else before + 1 + self.connections[number].offset
        for start in range(max(self.oldest, first), upto + 1, self.at_once):
            yield "\n".join(lines(start, min(start + self.at_once - 1, upto)))
        if more:
            raise CUT


CONNECTIONS = st.builds(Connection, st.integers(1, 4), st.sampled_from((0, 0, 0, 3)), st.integers(-3, 3))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(CONNECTIONS, min_size=1, max_size=5), st.booleans(), st.integers(1, 4))
def test_each_line_is_read_once_in_order_or_reported_missing_however_the_stream_breaks_and_the_log_is_rotated(
    connections: list[Connection], folder: bool, at_once: int
) -> None:
    pod = RotatingPod(connections, folder, at_once)
    found: list[int] = []
    for each in pod.numbers():
        missing = range(len(found) + 1, len(found) + 1 + int(str(each).split()[0])) if isinstance(each, str) else []
        assert not missing or (not folder and missing[-1] < pod.oldest), "it could have been read"
        found += missing or [int(each)]
    assert found == list(range(1, len(found) + 1)) and (len(found) == pod.printed or pod.oldest > pod.printed)


@pytest.mark.parametrize("resumed", [lines(7, 9), [*lines(2, 4), line(7)]], ids=["too late", "with a hole"])
def test_a_stream_that_resumes_with_a_gap_is_read_from_its_beginning(resumed: list[str]) -> None:
    pod = FakePod([*lines(1, 3), CUT], resumed, lines(1, 9))
    assert pod.numbers() == list(range(1, 10))
    assert pod.requests[0] is pod.requests[2] is None and pod.requests[1] is not None and not pod.folder_reads


def test_entries_lost_to_rotation_come_from_the_run_folder() -> None:
    pod = FakePod([*lines(1, 3), CUT], lines(7, 9), lines(7, 9), folder=lines(1, 9))
    assert pod.numbers() == list(range(1, 10))
    assert pod.folder_reads == [(1003.0, 1007.0)]


def test_entries_lost_to_rotation_while_the_clock_of_their_node_was_set_back_come_from_the_run_folder() -> None:
    """No span of the times of two entries has what came between them then."""
    earlier, later = lines(1, 4), [line(number, time=400.0 + number) for number in range(5, 10)]
    pod = FakePod([*earlier[:3], CUT], later[2:], later[2:], folder=[*earlier, *later])
    assert pod.numbers() == list(range(1, 10))
    pod = FakePod([*earlier[:3], CUT], later[2:], later[2:], folder=[*earlier[:3], *later[3:]])
    assert pod.numbers() == [1, 2, 3, "3 missing", 7, 8, 9]


def test_a_reader_that_starts_after_rotation_reads_the_beginning_from_the_run_folder() -> None:
    events, _ = FakePod(lines(5, 6), folder=lines(1, 6)).read(follow=False)
    assert [event.number for event in events] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("more", [[], lines(7, 8)], ids=["nothing more", "more"])
@pytest.mark.parametrize(
    ("before", "has_predecessors"),
    [([], False), ([], True), ([[*lines(1, 3), CUT]], False)],
    ids=["first attempt", "later attempt", "after a break"],
)
def test_a_silent_pods_rotated_log_is_read_from_the_run_folder_at_once(
    before: list[list[Any]], has_predecessors: bool, more: list[str]
) -> None:
    """All lines are read once, without a wait for the next line."""
    pod = FakePod(*before, [SILENT, *more], folder=lines(1, 6), has_predecessors=has_predecessors)
    assert pod.numbers() == list(range(1, 7 + len(more)))


def test_a_silent_pod_whose_run_folder_cannot_be_read_is_waited_for() -> None:
    assert FakePod([SILENT, *lines(1, 2)]).numbers() == [1, 2]


@pytest.mark.parametrize(
    ("answers", "folder", "expected"),
    [
        pytest.param(
            [[*lines(1, 3), CUT], lines(7, 8), lines(7, 8)], [], [1, 2, 3, "3 missing", 7, 8], id="empty folder"
        ),
        pytest.param(
            [[*lines(1, 3), CUT], lines(7, 8), lines(7, 8)], [line(5)], [1, 2, 3, 5, "2 missing", 7, 8], id="in part"
        ),
        pytest.param(
            [[*lines(1, 3), CUT], [line(5)], [line(5)]],
            [line(3), line(5)],
            [1, 2, 3, 5, "1 missing"],
            id="lines that the folder repeats at both ends do not count",
        ),
        pytest.param([[SILENT, *lines(4, 5)], lines(4, 5)], [], ["3 missing", 4, 5], id="silent at first"),
        pytest.param(
            [[*lines(1, 3), CUT], [SILENT, *lines(7, 8)], lines(7, 8)],
            lines(1, 3),
            [1, 2, 3, "3 missing", 7, 8],
            id="silent after a break",
        ),
    ],
)
def test_a_gap_is_reported_in_its_place_with_its_size(
    answers: list[list[Any]], folder: list[str], expected: list[int | str]
) -> None:
    assert FakePod(*answers, folder=folder).numbers() == expected


def test_output_of_earlier_attempts_comes_from_the_run_folder_once() -> None:
    before = '{"n":9,"l":[0,"node/0",1,999.5,null,"o","of attempt 0"]}'
    pod = FakePod([*lines(1, 2), CUT], lines(1, 3), folder=[before, line(1)], has_predecessors=True)
    events, _ = pod.read()
    assert [event.values["text"] for event in events] == ["of attempt 0", "line 1", "line 2", "line 3"]
    assert len(pod.folder_reads) == 1


def test_missing_output_of_earlier_attempts_is_reported() -> None:
    (gap, *events), _ = FakePod(lines(1, 2), has_predecessors=True).read()
    assert gap.kind == record.GAP and [event.number for event in events] == [1, 2]
    assert gap.reason == "the output of earlier attempts of node 0 is no longer available: no folder"


def test_the_start_of_an_attempt_has_the_digest_of_its_image() -> None:
    pod = FakePod(['{"n":1,"e":{"t":1001.0,"event":"started","attempt":1}}', line(2)])
    pod.image = "registry/image@sha256:0"
    images = [event.values.get("container") for event in pod.read()[0]]
    assert images == ["registry/image@sha256:0", None]


def test_lines_that_are_no_entries_are_collected_as_strays() -> None:
    events, other_lines = FakePod(["Traceback", line(1), '{"n":', '{"n":2}', '{"n":2,"l":[]}']).read()
    assert [event.number for event in events] == [1]
    assert other_lines == ["Traceback", '{"n":', '{"n":2}', '{"n":2,"l":[]}']


@pytest.mark.parametrize(
    ("printed", "kept"),
    [
        (["free some space, then resume", "waiting for node 0: timed out"], ["free some space, then resume"]),
        (["waiting for node 0: no address", "Traceback"], ["waiting for node 0: no address", "Traceback"]),
    ],
)
def test_that_a_pod_waits_for_node_0_does_not_come_after_what_says_why_the_run_ended(
    printed: list[str], kept: list[str]
) -> None:
    """Agents of other nodes print it once that of node 0 has ended, with the reason as its last line."""
    assert FakePod([*printed, line(1)]).read()[1] == kept


@pytest.mark.extensive("a large log")
def test_memory_stays_flat_over_a_hundred_thousand_lines() -> None:
    class Long(FakePod):
        async def log(self, pod: str, since: int | None, follow: bool) -> AsyncIterator[str]:
            for start in range(1, 100_001, 500):
                yield "\n".join(lines(start, start + 499))

    pod = Long()
    source = Source("pod", COORDINATOR, 999.0, False, lambda: True, None, pod.replay)

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


_REQUEST = httpx2.Request("GET", "https://cluster/log")


def refusal(code: int, text: str) -> ApiError:
    return ApiError(request=_REQUEST, response=httpx2.Response(code, json=status(code, text), request=_REQUEST))


FORBIDDEN = refusal(403, "no")


def test_a_log_that_cannot_be_read_says_so_once_while_it_is_followed() -> None:
    """As where the API server does not reach the kubelets: the run would go on without a word."""
    pod = FakePod(*[[CUT]] * 9, lines(1, 2))
    waiting, *read = pod.read()[0]
    assert waiting.kind == record.WAITING and waiting.values[RUNNING]
    words = (
        "could not read the output of node 0: cannot reach the cluster (cut); try `kubectl version`; it is tried again"
    )
    assert str(waiting.reason).startswith(words)
    assert [event.number for event in read] == [1, 2]
    assert [event.kind for event in FakePod(*[[CUT]] * 3, lines(1, 1)).read()[0]] == [record.LINE]


def test_a_snapshot_of_a_log_that_cannot_be_read_has_a_gap_unless_the_container_is_about_to_start() -> None:
    unreachable = refusal(500, "Get https://10.0.0.9:10250/containerLogs: i/o timeout")
    (gap,) = FakePod([unreachable]).read(follow=False)[0]
    assert gap.kind == record.GAP and "could not read the output of node 0: Get https://10.0.0.9" in str(gap.reason)
    assert FakePod([refusal(400, "is waiting to start")]).read(follow=False)[0] == []


def test_a_forbidden_log_raises_at_once() -> None:
    """An error with its reason ends the reading, instead of a request every second."""
    pod = FakePod([FORBIDDEN], [])
    with pytest.raises(NotPermitted, match="could not read the log of pod pod: not permitted"):
        pod.read()
    assert len(pod.requests) == 1


def test_a_folder_in_place_of_a_forbidden_log_gives_lines_of_any_time_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's clock may be ahead of the API server's, or be set back while its pod runs."""
    monkeypatch.setattr(pod_log, "POLL_INTERVAL", 0)
    ahead = time.time() + 600
    texts = [line(1), line(2), line(3, time=ahead), line(4, time=500.0), line(5, time=501.0)]
    pod = FakePod(folder=[])
    readings = iter([texts[:2], texts[:3], texts[:4], texts])

    async def replay(name: str, member: Member, since: float, until: float) -> list[PodEntry]:
        pod.folder = next(readings)
        return await pod.replay(name, member, since, until)

    source = Source("pod", COORDINATOR, 999.0, False, lambda: pod.folder == texts[:4], None, replay)

    async def collect() -> list[PodEntry]:
        client: Any = SimpleNamespace(namespace="ours", now=time.time)
        return [entry async for entries in FolderLog(client).entries(source, True) for entry in entries]

    _, *entries = asyncio.run(collect())  # the first says which right is missing
    assert [entry.event.number for entry in entries if entry.event] == [1, 2, 3, 4, 5]


def test_a_refusal_by_a_server_that_has_just_started_is_retried() -> None:
    pod = FakePod([*lines(1, 3), CUT], *[[FORBIDDEN]] * MAX_REFUSALS, lines(1, 5))
    assert pod.numbers() == [1, 2, 3, 4, 5]
    with pytest.raises(NotPermitted):
        FakePod([*lines(1, 3), CUT], *[[FORBIDDEN]] * (MAX_REFUSALS + 1), []).read()
