"""One pod's output, in order and each entry once, however often the way to it breaks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import httpx2
from lightkube import ApiError

from spotmpi.agent import record
from spotmpi.backends.kubernetes.client import api
from spotmpi.backends.kubernetes.client.api import RETRY_DELAY, ClusterApi
from spotmpi.backends.kubernetes.client.errors import is_missing, translate_errors
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.events import Event, Lines
from spotmpi.runs import pod_output
from spotmpi.runs.pod_output import Entry

HEARTBEAT_TIMEOUT = 3.0  # seconds without a word after which a pod's log may have been rotated under all that it said
OVERLAP = 5  # seconds by which a resumed stream begins before the last entry; clocks may differ by as much

Replay = Callable[[str, int, float, float], Awaitable[list[Entry]]]  # pod, node, since, until -> entries


class _Torn(Exception):
    """A resumed stream began too late."""


@dataclass(frozen=True)
class Source:
    """The pod that is read, and who knows more of it."""

    pod: str
    node: int
    began: float  # no entry is older, Unix seconds
    earlier: bool  # whether it had forerunners, whose output came with them and went
    finished: Callable[[], bool]  # whether nothing more will be printed
    pulled: str | None  # the image that it runs, as its kubelet names it
    replay: Replay  # what the run folder holds of a span of time; SpotmpiError where it cannot be had


class PodLog:
    """Reads one pod; *strays* gets what is no entry, such as an agent's last words."""

    def __init__(self, client: ClusterApi, source: Source, strays: deque[str]) -> None:
        self._client = client
        self._source = source
        self._strays = strays
        self._last = 0  # the number of the newest entry
        self._unnumbered = False  # whether the newest entries came from the run folder, which has no numbers
        self._time = source.began  # of the newest entry
        self._lines: dict[tuple[int, int], int] = {}  # the newest line of each attempt and node

    async def entries(self, follow: bool) -> AsyncIterator[list[Entry]]:
        """Every entry once, as many at a time as there are.

        With *follow* until the pod has ended, over any number of broken connections.

        Raises:
            NotPermitted: we may not read logs.
        """
        whole, refusals = True, 0
        while True:
            over = not follow or self._source.finished()
            since = None if whole else max(int(self._client.now() - self._time), 0) + OVERLAP
            whole = False
            try:
                async for text in self._pieces(self._client.log(self._source.pod, since, follow), follow):
                    if text is None:
                        found, torn = await self._rotated(), False
                    else:
                        found, torn = await self._take(text, resumed=since is not None)
                    refusals = 0
                    if found:
                        yield found
                    if torn:
                        raise _Torn
            except _Torn:
                whole, over = True, False
                continue
            except ApiError as error:
                if error.status.code == 403:
                    refusals += 1
                    self._believe(error, refusals if follow and self._last else api.MAX_REFUSALS + 1)
                if is_missing(error) or not follow:
                    return
            except httpx2.HTTPError:
                over = not follow  # A dead node's log cannot be had at this moment, and a look does not wait for it.
            if over:
                return
            await asyncio.sleep(0 if self._source.finished() else RETRY_DELAY)

    def _believe(self, error: ApiError, refusals: int) -> None:
        """Raise NotPermitted, unless it is a server that has just started: such a one may refuse whom it knows."""
        if refusals > api.MAX_REFUSALS:
            with translate_errors(f"read the log of pod {self._source.pod}"):
                raise error

    async def _pieces(self, log: AsyncIterator[str], follow: bool) -> AsyncIterator[str | None]:
        """The pieces of *log*; None, once, where nothing comes of a connection that was just made."""
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

    async def _rotated(self) -> list[Entry]:
        """What the run folder holds of a pod that says nothing: a kubelet reads its newest file only, be it empty."""
        now = self._client.now()
        if now - self._source.began < OVERLAP:
            return []
        try:
            found = await self._source.replay(self._source.pod, self._source.node, self._time, now)
        except SpotmpiError:
            return []  # The next entry tells by its number what is missing, and is asked for then.
        new = [each for some in found for each in some.split() if self._is_new(each)]
        self._unnumbered = self._unnumbered or bool(new)
        return new

    async def _take(self, text: str, resumed: bool) -> tuple[list[Entry], bool]:
        """What is new in *text*, and whether something is missing that a longer look back can give."""
        found: list[Entry] = []
        for entry in self._as_far_as_needed(pod_output.parse_all(text)):
            if entry.number <= self._last:
                continue
            missing = 0 if self._unnumbered else entry.number - self._last - 1
            if missing and resumed:
                return found, True
            if missing or self._unnumbered or (self._source.earlier and not self._last):
                self._unnumbered = False
                found += await self._recovered(missing, entry)
            self._last = entry.last
            if self._is_new(entry):
                found.append(self._told(entry))
        return found, False

    def _as_far_as_needed(self, entries: Iterable[Entry | str]) -> Iterator[Entry]:
        """*entries* without strays; lines that came together stay so where they go on from those that are known."""
        for entry in entries:
            if isinstance(entry, str):
                self._strays.append(entry)
            elif entry.lines and not self._goes_on(entry.number, entry.lines):
                yield from entry.split()
            else:
                yield entry

    def _goes_on(self, number: int, lines: Lines) -> bool:
        known = self._lines.get((lines.attempt, lines.node), 0)
        return number == self._last + 1 and lines.number > known and (bool(self._last) or not self._source.earlier)

    def _told(self, entry: Entry) -> Entry:
        """*entry* with what no agent can know: by which digest its image was pulled."""
        event = entry.event
        if event is None or event.kind != record.STARTED or not self._source.pulled:
            return entry
        return entry._replace(event=replace(event, values={**event.values, "container": self._source.pulled}))

    async def _recovered(self, missing: int, entry: Entry) -> list[Entry]:
        """What the run folder holds of *missing* entries before *entry*, and an event that tells what it lacks."""
        node, until = self._source.node, entry.time or self._client.now()
        try:
            found = await self._source.replay(self._source.pod, node, self._time, until)
        except SpotmpiError as error:
            if not missing:
                reason = f"what earlier attempts printed on node {node} can no longer be had: {error}"
                return [Entry(0, event=Event(until, record.GAP, values={"reason": reason}))]
            found = []
        new = [each for some in found for each in some.split() if self._is_new(each)]
        # The folder may repeat lines at both ends of the span, of which one is *entry* itself.
        lost = missing - sum(not _is_same_line(each, entry) for each in new)
        if lost <= 0:
            return new
        reason = f"{lost} entries of node {node} can no longer be had"
        return [*new, Entry(0, event=Event(until, record.GAP, values={"size": lost, "reason": reason}))]

    def _is_new(self, entry: Entry) -> bool:
        self._time = max(self._time, entry.time or 0)
        event, lines = entry.event, entry.lines
        if lines is not None:
            self._lines[lines.attempt, lines.node] = lines.last
            return True  # or they would have been taken apart
        if event is None or event.kind != record.LINE:
            return True
        where = (event.attempt, event.node)
        if event.number <= self._lines.get(where, 0):
            return False
        self._lines[where] = event.number
        return True


def _is_same_line(one: Entry, other: Entry) -> bool:
    """Whether both are the same line of output."""
    first, second = one.event, other.event
    if first is None or second is None or first.kind != record.LINE or second.kind != record.LINE:
        return False
    return (first.attempt, first.node, first.number) == (second.attempt, second.node, second.number)
