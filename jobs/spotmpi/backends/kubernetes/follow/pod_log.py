"""The output of pods: each entry of a pod's log once and in order, however often the connection breaks.

What logs have lost, or all of it where they are forbidden, comes from the run folder.
"""

from __future__ import annotations

import asyncio
import io
import math
import shlex
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TypeVar

import httpx2
from lightkube import ApiError

from spotmpi.agent import boot, pod_context, record
from spotmpi.agent.plan import Member
from spotmpi.backends.kubernetes.client import api
from spotmpi.backends.kubernetes.client.answers import OversizedAnswer
from spotmpi.backends.kubernetes.client.api import RETRY_DELAY, ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import is_missing, status_code, translate_errors
from spotmpi.backends.kubernetes.client.portal import read_into
from spotmpi.backends.kubernetes.follow.jobset import RUNNING, submission_time
from spotmpi.backends.kubernetes.volume_access import VolumeAccess, volume_access
from spotmpi.core import archives
from spotmpi.core.errors import NotPermitted, SpotmpiError
from spotmpi.core.events import Event, Lines
from spotmpi.core.wording import Echo, counted
from spotmpi.plan import cluster_plan
from spotmpi.plan.pods import module
from spotmpi.plan.volume_pod import Volume, store_command
from spotmpi.runs import pod_output
from spotmpi.runs.pod_output import PodEntry, SeenEvents

T = TypeVar("T")

HEARTBEAT_TIMEOUT = 3.0  # seconds of silence after which a pod's log may have been rotated below all that it printed
_SILENT_FAILURES = 4  # to read a log, in a row: six seconds, and more where connecting takes its time
_LONGEST_DELAYS = 10  # of RETRY_DELAY, where a log cannot be read again and again
OVERLAP = 5  # seconds by which a resumed stream begins before the last entry; clocks may differ by as much
CONCURRENT_LOGS = 4  # logs that are read at the same time, where they are not followed
_READ_AHEAD = 4  # pieces of each that may wait for their turn
RETRY_DELAYS = (0.5, 1.0, 2.0)  # seconds until another pod may run, where one could not be read
POLL_INTERVAL = 10.0  # seconds between two readings of the folder in place of a log
_END_MARK = "that is all"
_CODE = "/tmp/spotmpi"  # in a pod that is not of the run

ReadFolder = Callable[[str, Member, float, float], Awaitable[list[PodEntry]]]  # pod, member, since, until -> entries


class _BeganTooLate(Exception):
    """A resumed stream began too late."""


@dataclass(frozen=True)
class Source:
    """The pod that is read, and what else is known of its output."""

    pod: str
    member: Member
    since: float  # no entry is older, Unix seconds
    has_predecessors: bool  # whether there were pods before it, whose logs went with them
    is_finished: Callable[[], bool]  # whether nothing more will be printed
    image: str | None  # that it runs, as its kubelet names it
    read_folder: ReadFolder  # what the run folder holds of a span of time; SpotmpiError where it cannot be read


class PodLog:
    """Reads one pod's log; *other_lines* gets the lines that are not entries, such as a traceback of the agent."""

    def __init__(self, client: ClusterApi, source: Source, other_lines: deque[str]) -> None:
        self._client = client
        self._source = source
        self._other_lines = other_lines
        self._last = 0  # the number of the newest entry
        self._unnumbered = False  # whether the newest entries came from the run folder, which has no numbers
        self._time = source.since  # of the newest entry
        self._lines: dict[tuple[int, Member | None], int] = {}  # the newest line of each attempt and member

    async def entries(self, follow: bool) -> AsyncIterator[list[PodEntry]]:
        """Every entry once, as many at a time as have arrived.

        With *follow* until the pod has ended, over any number of broken connections.

        Raises:
            NotPermitted: the user may not read logs.
        """
        complete, refusals, failures = True, 0, 0
        problem: Exception | None = None
        while True:
            over = not follow or self._source.is_finished()
            since = None if complete else max(int(self._client.now() - self._time), 0) + OVERLAP
            complete = False
            try:
                async for text in self._chunks(self._client.log(self._source.pod, since, follow), follow):
                    if text is None:
                        entries, incomplete = await self._read_rotated(), False
                    else:
                        entries, incomplete = await self._parse(text, resumed=since is not None)
                    refusals = failures = 0
                    if entries:
                        yield entries
                    if incomplete:
                        raise _BeganTooLate
                failures, problem = 0, None
            except _BeganTooLate:
                complete, over, failures = True, False, failures + 1
            except ApiError as error:
                failures += 1
                if error.status.code == 403:
                    refusals += 1
                    self._refuse(error, refusals if follow and self._last else api.MAX_REFUSALS + 1)
                if is_missing(error):
                    return
                over, problem = not follow, error
            except httpx2.HTTPError as error:
                over, failures, problem = not follow, failures + 1, error  # A snapshot does not wait for a dead node.
            if problem and (failures == _SILENT_FAILURES if follow else not _is_starting(problem)):
                yield [PodEntry(0, event=self._unreadable(problem, follow))]
            if over:
                return
            await asyncio.sleep(RETRY_DELAY * min(failures or not self._source.is_finished(), _LONGEST_DELAYS))

    def _unreadable(self, error: Exception, follow: bool) -> Event:
        """That the log cannot be read, by a follower until it can be; the run goes on meanwhile."""
        try:
            with translate_errors(f"read the output of {self._source.member}"):
                raise error
        except SpotmpiError as problem:
            reason = str(problem)
        if not follow:
            return Event(self._client.now(), record.GAP, values={"reason": reason})
        values = {"reason": f"{reason}; it is tried again, and the run goes on", RUNNING: True}
        return Event(self._client.now(), record.WAITING, values=values)

    def _refuse(self, error: ApiError, refusals: int) -> None:
        """Raise NotPermitted after too many refusals; a server that has just started may refuse a user it knows."""
        if refusals > api.MAX_REFUSALS:
            with translate_errors(f"read the log of pod {self._source.pod}"):
                raise error

    async def _chunks(self, log: AsyncIterator[str], follow: bool) -> AsyncIterator[str | None]:
        """The chunks of *log*; None, once, where a new connection stays silent."""
        first = asyncio.ensure_future(anext(log, None))
        try:
            if follow:
                await asyncio.wait({first}, timeout=HEARTBEAT_TIMEOUT)
                if not first.done():
                    yield None
            text = await first
        finally:
            first.cancel()
        while text is not None:
            yield text
            text = await anext(log, None)

    async def _read_rotated(self) -> list[PodEntry]:
        """What the run folder holds of a silent pod: a kubelet reads its newest file only, even if that is empty."""
        now = self._client.now()
        if now - self._source.since < OVERLAP:
            return []
        try:
            entries = await self._source.read_folder(self._source.pod, self._source.member, self._time, now)
        except SpotmpiError:
            return []  # The next entry shows by its number what is missing, and that is read then.
        new = [each for entry in entries for each in entry.split() if self._is_new(each)]
        self._unnumbered = self._unnumbered or bool(new)
        return new

    async def _parse(self, text: str, resumed: bool) -> tuple[list[PodEntry], bool]:
        """What is new in *text*, and whether something is missing that an earlier start of the stream would give."""
        new: list[PodEntry] = []
        for entry in self._only_entries(pod_output.parse_all(text)):
            if entry.number <= self._last:
                continue
            missing = 0 if self._unnumbered else entry.number - self._last - 1
            if missing and resumed:
                return new, True
            if missing or self._unnumbered or (self._source.has_predecessors and not self._last):
                self._unnumbered = False
                new += await self._recover(missing, entry)
            self._last = entry.last
            if self._is_new(entry):
                new.append(self._with_image(entry))
        return new, False

    def _only_entries(self, entries: Iterable[PodEntry | str]) -> Iterator[PodEntry]:
        """The entries, with other lines taken out; a batch of lines stays one where it continues the known ones."""
        for entry in entries:
            if isinstance(entry, str):
                # That a pod waits for node 0 does not come after what says why: others print it once that has ended.
                if not (self._other_lines and entry.startswith(pod_context.WAITS_FOR_NODE_0)):
                    self._other_lines.append(entry)
            elif entry.lines and not self._continues(entry.number, entry.lines):
                yield from entry.split()
            else:
                yield entry

    def _continues(self, number: int, lines: Lines) -> bool:
        known = self._lines.get((lines.attempt, lines.member), 0)
        is_next = number == self._last + 1 and lines.number > known
        return is_next and (bool(self._last) or not self._source.has_predecessors)

    def _with_image(self, entry: PodEntry) -> PodEntry:
        """*entry* with what no agent can know: the digest of its image."""
        event = entry.event
        if event is None or event.kind != record.STARTED or not self._source.image:
            return entry
        return entry._replace(event=replace(event, values={**event.values, "container": self._source.image}))

    async def _recover(self, missing: int, entry: PodEntry) -> list[PodEntry]:
        """What the run folder holds of *missing* entries before *entry*, and an event for what it lacks."""
        member, until = self._source.member, entry.time or self._client.now()
        # Where the node's clock was set back meanwhile, no span of its times has what is missing.
        span = (0.0, math.inf) if until < self._time else (self._time, until)
        try:
            entries = await self._source.read_folder(self._source.pod, member, *span)
        except SpotmpiError as error:
            if not missing:
                reason = f"the output of earlier attempts of {member} is no longer available: {error}"
                return [PodEntry(0, event=Event(until, record.GAP, values={"reason": reason}))]
            entries = []
        earlier = [each for some in entries for each in some.split() if not _is_line_after(each, entry)]
        new = [each for each in earlier if self._is_new(each)]
        # The folder may repeat lines at both ends of the span, of which one is *entry* itself.
        lost = missing - sum(not _is_same_line(each, entry) for each in new)
        if lost <= 0:
            return new
        reason = f"{counted(lost, 'entry', 'entries')} of {member} {'is' if lost == 1 else 'are'} no longer available"
        return [*new, PodEntry(0, event=Event(until, record.GAP, values={"size": lost, "reason": reason}))]

    def _is_new(self, entry: PodEntry) -> bool:
        self._time = max(self._time, entry.time or 0)
        event, lines = entry.event, entry.lines
        if lines is not None:
            self._lines[lines.attempt, lines.member] = lines.last
            return True  # or they would have been taken apart
        if event is None or event.kind != record.LINE:
            return True
        key = (event.attempt, event.member)
        if event.number <= self._lines.get(key, 0):
            return False
        self._lines[key] = event.number
        return True


def _is_starting(error: Exception) -> bool:
    """Whether the kubelet says that the container has not started, and so has no log yet."""
    return status_code(error) == HTTPStatus.BAD_REQUEST


def _is_same_line(one: PodEntry, other: PodEntry) -> bool:
    """Whether both are the same line of output."""
    first, second = one.event, other.event
    if first is None or second is None or first.kind != record.LINE or second.kind != record.LINE:
        return False
    return (first.attempt, first.member, first.number) == (second.attempt, second.member, second.number)


def _is_line_after(one: PodEntry, other: PodEntry) -> bool:
    """Whether both are lines of one attempt and member, and *other* came first."""
    first, second = one.event, other.event or (next(other.lines.events()) if other.lines else None)
    if first is None or second is None or first.kind != record.LINE or second.kind != record.LINE:
        return False
    return (first.attempt, first.member) == (second.attempt, second.member) and first.number > second.number


async def concatenate(streams: Iterable[AsyncIterator[T]]) -> AsyncIterator[T]:
    """All of the first stream, then all of the second, and so on, while the next ones are read already."""
    rest = iter(streams)
    reading: deque[tuple[asyncio.Queue[T | None], asyncio.Task[None]]] = deque()
    try:
        while True:
            while len(reading) < CONCURRENT_LOGS and (stream := next(rest, None)) is not None:
                queue: asyncio.Queue[T | None] = asyncio.Queue(_READ_AHEAD)
                reading.append((queue, asyncio.create_task(read_into(queue, stream))))
            if not reading:
                return
            while (item := await reading[0][0].get()) is not None:
                yield item
            await reading.popleft()[1]  # which raises what the stream raised
    finally:
        for _, task in reading:
            task.cancel()


class RunFolder:
    """Reads the folder of one run in a running pod or, where none runs, in one created for that."""

    def __init__(self, client: ClusterApi, jobset: Object, echo: Echo) -> None:
        self._client = client
        self._echo = echo
        self._run = jobset["metadata"]["name"]
        self._submitted = submission_time(jobset)
        self._volume = cluster_plan.run_volume(jobset)
        self._access: VolumeAccess | None = None
        self._stack = AsyncExitStack()

    async def entries(
        self, pods: Callable[[], Sequence[str]], member: Member, since: float, until: float
    ) -> list[PodEntry]:
        """What the folder holds of *member* since the submission, between two Unix times of the member's machine.

        *pods* names those that run and see the folder now.

        Raises:
            SpotmpiError: no pod can read it.
        """
        times = map(repr, (since, until, self._submitted))
        arguments = (f"{pod_context.RUNS}/{self._run}", member.text, *times)
        why = ""
        for delay in RETRY_DELAYS:
            running = pods()
            if not running:
                why = "no pod that holds its output is running"
                break
            try:
                return await self._read(running[0], boot.CODE, arguments)
            except (NotPermitted, OversizedAnswer):
                raise
            except SpotmpiError as error:
                why = f"its pod {running[0]} failed: {error}"
                await asyncio.sleep(delay)  # a pod may end while it reads
        if self._volume is None:
            raise SpotmpiError(f"the run has no run volume, and {why}")
        return await self._read((await self._open(self._volume)).pod, _CODE, arguments)

    async def _read(self, pod: str, code: str, arguments: Sequence[str]) -> list[PodEntry]:
        command = f"{shlex.join(module(code, 'spotmpi.agent.replay', *arguments))} && echo {_END_MARK}"
        with translate_errors("read the run folder"):
            *lines, last = (await self._client.execute(pod, ["sh", "-c", command])).splitlines() or [""]
        if last != _END_MARK:
            raise SpotmpiError(f"could not read the run folder: the output of {pod} is incomplete")
        return [entry for line in lines if (entry := pod_output.parse(line))]

    async def close(self) -> None:
        """Delete the pod that was created, if any."""
        await self._stack.aclose()

    async def _open(self, volume: Volume) -> VolumeAccess:
        if self._access is None:
            access = await self._stack.enter_async_context(volume_access(self._client, volume, self._echo))
            await access.run(store_command("take", _CODE), io.BytesIO(archives.agent_archive()))
            self._access = access
        return self._access


class FolderLog:
    """Reads the run folder in place of logs that are forbidden; reports the missing right once for all pods."""

    def __init__(self, client: ClusterApi) -> None:
        self._client = client
        self._reported: set[str] = set()
        self.failure: str | None = None  # why no output can be read at all

    async def entries(self, source: Source, follow: bool) -> AsyncIterator[list[PodEntry]]:
        """What the run folder holds of a pod's node, once, with *follow* until the pod has ended.

        Its last reading is of all times: the node's clock may have been set back, or not be the API server's.
        """
        right = f"you may not read logs of pods in namespace {self._client.namespace}: ask for `get` on `pods/log`"
        for entries in self._report(f"{right}; until then output comes from the run folder alone"):
            yield entries
        since, over, known = source.since, False, _Known()
        while not over:
            over = not follow or source.is_finished()
            try:
                found = await source.read_folder(source.pod, source.member, 0.0 if over else since, math.inf)
            except SpotmpiError as error:
                self.failure = f"{right} ({error})"
                for entries in self._report(f"the run folder cannot be read either: {error}"):
                    yield entries
                return
            new = [each for entry in found for each in entry.split() if known.is_new(each)]
            if new:
                since = max(since, *(entry.time or 0.0 for entry in new))
                yield new
            if not over:
                await asyncio.sleep(POLL_INTERVAL)

    def _report(self, reason: str) -> list[list[PodEntry]]:
        """The entries for *reason*, unless it was reported for another pod."""
        gist = reason.partition(":")[0]
        if gist in self._reported:
            return []
        self._reported.add(gist)
        return [[PodEntry(0, event=Event(self._client.now(), record.GAP, values={"reason": reason}))]]


class _Known:
    """Entries of a run folder that have been read; `SeenEvents` takes waits for new each time."""

    def __init__(self) -> None:
        self._events = SeenEvents()
        self._others: set[tuple[str, float | None]] = set()

    def is_new(self, entry: PodEntry) -> bool:
        """Whether *entry*, one line at most, has not been asked about before."""
        event = entry.event
        if event is not None and event.kind != record.WAITING:
            return self._events.is_new(event)
        key = (event.kind if event is not None else "summary" if entry.attempt is None else "attempt", entry.time)
        new = key not in self._others
        self._others.add(key)
        return new
