"""Following a run on a cluster: one watch per kind of object, one log stream per pod that reports."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from lightkube import ApiError

from spotmpi.agent import record
from spotmpi.backends.kubernetes.client import api
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import translate_errors
from spotmpi.backends.kubernetes.follow import read_ahead, start_limit
from spotmpi.backends.kubernetes.follow.folder_reading import FolderReading
from spotmpi.backends.kubernetes.follow.outcome import ExitDiagnosis, ended
from spotmpi.backends.kubernetes.follow.pending_diagnostics import Ask, PendingDiagnostics
from spotmpi.backends.kubernetes.follow.pod_log import PodLog, Source
from spotmpi.backends.kubernetes.follow.replay import Replayer
from spotmpi.backends.kubernetes.follow.state import followed, name_of, node_of, phase_of, pulled
from spotmpi.backends.kubernetes.follow.waiting import Seen, why_waiting
from spotmpi.backends.kubernetes.volume_access import PATIENCE
from spotmpi.core import names
from spotmpi.core.errors import NotPermitted, SpotmpiError
from spotmpi.core.events import Event
from spotmpi.plan import manifests
from spotmpi.runs.pod_output import Entry

LABEL_RESTARTS = "jobset.sigs.k8s.io/restart-attempt"
LAST_WORDS = 10.0  # seconds that logs may still take once the JobSet is over
STREAMS = 64  # logs read at once; the client's connections are limited, and watches need theirs
WAITING = 16  # pieces of logs, up to 64 kB each, that may wait for whoever follows
TALK = 1.0  # seconds between looks at why a run waits


class ClusterFollower:
    """Gathers what happens to one run into one stream of entries."""

    def __init__(self, client: ClusterApi, jobset: Object, ask_cloud: Ask | None = None) -> None:
        self._client = client
        self._it = followed(jobset)
        self._jobset: Object = jobset
        self._entries: asyncio.Queue[list[Entry] | Exception | None] = asyncio.Queue(WAITING)
        self._seen = Seen()
        self._beyond = PendingDiagnostics(client, ask_cloud)
        self._tasks: list[asyncio.Task[None]] = []
        self._logs: dict[str, asyncio.Task[None]] = {}
        self._words = ExitDiagnosis()
        self._end: Entry | None = None  # what node 0's agent says of the end
        self._over: Event | None = None  # and what the JobSet itself says
        self._ran = False  # whether it came to an end by itself
        self._ended = asyncio.Event()
        self._streams = asyncio.Semaphore(STREAMS)
        self._began = client.now()
        self._said: frozenset[str] = frozenset()
        self._read: set[int] = set()  # nodes of whom there was a pod to read
        self._replayer = Replayer(client, jobset, self._say)
        self._replaying = asyncio.Lock()
        self.folder = FolderReading(client)

    async def follow(self) -> AsyncIterator[list[Entry]]:
        """Everything from the first pod that is still there until the run has ended, some at a time."""
        for work in (self._watch_jobset(), self._watch_pods(), self._watch_events(), self._talk(), self._finish()):
            self._tasks.append(self._started(work))
        try:
            while (entries := await self._entries.get()) is not None:
                if isinstance(entries, Exception):
                    raise entries
                yield self._before_the_end(entries)
                if self._end:
                    self._ended.set()
            yield [self._end or self._verdict()]
        finally:
            tasks = [*self._tasks, *self._logs.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._replayer.close()

    def _before_the_end(self, entries: list[Entry]) -> list[Entry]:
        """*entries* but for the end of the run, which is kept to be told last."""
        ends = [entry for entry in entries if entry.event and entry.event.kind in record.TERMINAL]
        self._end = ends[-1] if ends else self._end
        self._words.take(entries)
        return [entry for entry in entries if entry not in ends] if ends else entries

    async def so_far(self) -> AsyncIterator[list[Entry]]:
        """What there is at this moment; a run that has waited too long is ended by it."""
        try:
            async for entries in self._at_this_moment():
                yield entries
        finally:
            await self._replayer.close()

    async def _at_this_moment(self) -> AsyncIterator[list[Entry]]:
        self._take_jobset(self._jobset)
        pods = await self._client.list(api.POD, {names.LABEL_RUN: self._it.run})
        pods.sort(key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
        self._seen.pods = {name_of(pod): pod for pod in pods}
        found = [self._output(pod, follow=False) for pod in pods if self._reports(pod)]
        for entries in (read_ahead.in_order(found), self._of_the_gone()):
            async for some in entries:
                yield self._before_the_end(some)
        if self._end or self._over:
            yield [self._end or self._verdict()]
            return
        await self._read_events()
        yield [Entry(0, event=event) for event in await self._look()]

    async def _of_the_gone(self) -> AsyncIterator[list[Entry]]:
        """What the run folder holds of nodes whose pods went before we came, once the run is over."""
        nodes = range(self._it.nodes if self._it.every_node else 1)
        for node in sorted(set(nodes) - self._read) if self._ran else []:
            try:
                yield await self._replayed("", node, self._it.submitted, math.inf)
            except SpotmpiError as error:
                reason = f"the output of node {node} can no longer be had: {error}"
                yield [Entry(0, event=self._event(record.GAP, reason))]

    def _started(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """The task of *work*; what it raises ends the stream."""

        async def guarded() -> None:
            try:
                await work
            except Exception as error:
                await self._entries.put(error)

        return asyncio.create_task(guarded())

    async def _finish(self) -> None:
        """End the stream when the JobSet is over and its logs are read."""
        await self._ended.wait()
        if self._logs:
            _, late = await asyncio.wait(self._logs.values(), timeout=LAST_WORDS)
            if late and self._replaying.locked():
                await asyncio.wait(late, timeout=PATIENCE)
        async for entries in self._of_the_gone():
            await self._entries.put(entries)
        await self._entries.put(None)

    def _say(self, reason: str) -> None:
        """Tell whoever follows why they wait for us."""
        with contextlib.suppress(asyncio.QueueFull):
            self._entries.put_nowait([Entry(0, event=self._event(record.WAITING, reason))])

    def _event(self, kind: str, reason: str) -> Event:
        """What this follower finds, at this moment by the API server's clock."""
        return Event(self._client.now(), kind, values={"reason": reason})

    async def _watch_jobset(self) -> None:
        async for change, jobset in self._client.watch(api.JOBSET, name=self._it.run):
            if change == api.RESYNC:
                change, jobset = ("MODIFIED", jobset["items"][0]) if jobset["items"] else ("DELETED", self._jobset)
            self._take_jobset(jobset, gone=change == "DELETED")
            if self._over:
                self._ended.set()

    def _take_jobset(self, jobset: Object, gone: bool = False) -> None:
        self._jobset = jobset
        notes = jobset["metadata"].get("annotations", {})
        given_up, stopped = notes.get(manifests.ANNOTATION_GIVEN_UP), notes.get(manifests.ANNOTATION_STOPPED)
        # Whoever deletes it says why beforehand; until it is being deleted, the word alone ends nothing.
        if gone or jobset["metadata"].get("deletionTimestamp"):
            if given_up:
                self._over = self._event(record.FAILED, given_up)
            elif gone or stopped:
                # Its pods may take minutes to go, and have said all that they had to say.
                reason = stopped or "its JobSet was deleted"
                self._over = self._over or self._event(record.STOPPED, reason)
        for condition in jobset.get("status", {}).get("conditions") or []:
            if condition["type"] in ("Completed", "Failed") and condition["status"] == "True":
                self._ran = True
                self._over = self._over or ended(condition, self._it.failures)

    def _verdict(self) -> Entry:
        assert self._over is not None
        return self._words.added_to(self._over, self._seen.pods.values())

    async def _watch_pods(self) -> None:
        async for change, pod in self._client.watch(api.POD, labels={names.LABEL_RUN: self._it.run}):
            if change == "DELETED":
                self._seen.pods.pop(name_of(pod), None)
            elif change == api.RESYNC:
                self._seen.pods.clear()
                for there in pod["items"]:
                    self._take_pod(there)
            else:
                self._take_pod(pod)

    def _take_pod(self, pod: Object) -> None:
        name = name_of(pod)
        self._seen.pods[name] = pod
        if killed := self._words.news_of(pod):
            self._say(killed)
        if name not in self._logs and self._reports(pod):
            self._logs[name] = self._started(self._read_log(pod))

    async def _watch_events(self) -> None:
        try:
            async for change, event in self._client.watch(api.EVENT):
                if change != api.RESYNC:
                    self._take_event(event)
        except ApiError:
            self._seen.blind = True  # The pods' own conditions remain.

    async def _read_events(self) -> None:
        try:
            for event in await self._client.list(api.EVENT):
                self._take_event(event)
        except ApiError:
            self._seen.blind = True

    def _take_event(self, event: Object) -> None:
        # Kueue's workload of a JobSet has its own name around the JobSet's.
        if self._it.run in str(event["involvedObject"].get("name", "")):
            self._seen.take_event(event)

    async def _talk(self) -> None:
        """Say why the run waits, whenever that changes."""
        while not self._ended.is_set():
            await asyncio.sleep(TALK)
            if not self._ended.is_set():
                await self._entries.put([Entry(0, event=event) for event in await self._look()])

    async def _look(self) -> list[Event]:
        """Why the run waits, where that is news; its end, where it has waited too long."""
        await self._beyond.look(self._seen, self._it.submitted)
        reason = why_waiting(self._seen, self._it.run, self._it.nodes)
        wait = start_limit.wait_of(self._jobset, self._it.submitted, self._seen.pods.values(), self._began)
        if reason and wait:
            left = wait.since + self._it.start_limit - self._client.now()
            if left > 0:
                reason = start_limit.counted_down(reason, left)
            elif not wait.led:
                reason = f"limits.start ({self._it.start_limit:g}s) is over: {reason}"
                if await self._give_up(reason):
                    return [self._event(record.FAILED, reason)]
        told_already, self._said = self._said, start_limit.gist(reason or "")
        fresh = self._said != told_already
        return [self._event(record.WAITING, reason)] if reason and fresh else []

    async def _give_up(self, reason: str) -> bool:
        """Delete a run whose first node never came, for it would wait for ever; False where that is not possible."""
        try:
            with translate_errors("end the run"):
                note = {"metadata": {"annotations": {manifests.ANNOTATION_GIVEN_UP: reason}}}
                await self._client.patch(api.JOBSET, self._it.run, note)
                await self._client.delete(api.JOBSET, self._it.run)
        except SpotmpiError:
            return False  # Whoever follows without the right to delete goes on waiting.
        return True

    def _reports(self, pod: Object) -> bool:
        """Whether the pod has output that belongs to the run."""
        return phase_of(pod) in ("Running", "Succeeded", "Failed") and (self._it.every_node or node_of(pod) == 0)

    async def _read_log(self, pod: Object) -> None:
        async with self._streams:
            async for entries in self._output(pod, follow=True):
                await self._entries.put(entries)

    async def _output(self, pod: Object, follow: bool) -> AsyncIterator[list[Entry]]:
        """What a pod has printed, from its log or, where that may not be read, from the run folder."""
        source = self._source(pod)
        try:
            async for entries in PodLog(self._client, source, self._words.strays).entries(follow):
                yield entries
        except NotPermitted:
            async for entries in self.folder.entries(source, follow):
                yield entries

    def _source(self, pod: Object) -> Source:
        name = name_of(pod)
        self._read.add(node_of(pod))
        earlier = pod["metadata"].get("labels", {}).get(LABEL_RESTARTS, "0") != "0"
        began = self._it.submitted if earlier else start_limit.unix(pod["metadata"]["creationTimestamp"])
        return Source(name, node_of(pod), began, earlier, lambda: self._finished(name), pulled(pod), self._replayed)

    async def _replayed(self, pod: str, node: int, since: float, until: float) -> list[Entry]:
        """What the run folder holds, by way of the pod itself or of node 0's, where one of them lives."""

        def seeing() -> list[str]:
            living = [each for each in self._seen.pods.values() if phase_of(each) == "Running"]
            return [name_of(each) for each in living if name_of(each) == pod or node_of(each) == 0]

        async with self._replaying:  # one after the other, for a pod may have to be made
            return await self._replayer.entries(seeing, node, since, until)

    def _finished(self, pod: str) -> bool:
        values = self._seen.pods.get(pod)
        return values is None or phase_of(values) in ("Succeeded", "Failed")
