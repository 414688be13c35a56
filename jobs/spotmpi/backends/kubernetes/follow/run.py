"""Following a run on a cluster: one watch per kind of object, one log stream per pod that prints output."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import httpx2
from lightkube import ApiError

from spotmpi.agent import record
from spotmpi.agent.plan import COORDINATOR, Member
from spotmpi.backends.kubernetes.client import api
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import permitted, translate_errors
from spotmpi.backends.kubernetes.follow.jobset import (
    RUNNING,
    ExitDiagnosis,
    FollowedRun,
    creation_time,
    has_ended,
    has_predecessors,
    has_started,
    image_reference,
    jobset_end,
    kept_nodes_reason,
    member_of,
    placement_events,
    pod_name,
    pod_phase,
    terminal_condition,
)
from spotmpi.backends.kubernetes.follow.pod_log import FolderLog, PodLog, RunFolder, Source, concatenate
from spotmpi.backends.kubernetes.follow.waiting import (
    CloudDiagnosis,
    ClusterAnswers,
    Observations,
    PendingDiagnostics,
    find_wait,
    reason_key,
)
from spotmpi.backends.kubernetes.volume_access import START_TIMEOUT
from spotmpi.core import names
from spotmpi.core.errors import NotPermitted, SpotmpiError
from spotmpi.core.events import Event
from spotmpi.plan import cluster_plan, manifests
from spotmpi.runs.pod_output import PodEntry

LOG_TIMEOUT = 10.0  # seconds that logs may still take once the JobSet has ended
MAX_STREAMS = 64  # logs read at once; the client's connections are limited, and watches need theirs
QUEUE_SIZE = 16  # pieces of logs, up to 64 kB each, that may wait for the consumer
CHECK_INTERVAL = 1.0  # seconds between checks of why a run waits


class Listing(NamedTuple):
    """What all runs of a namespace are looked up in, which is requested once for all of them."""

    pods: Mapping[str, Sequence[Object]]  # by run
    events: Sequence[Object] | None  # None where they may not be listed
    answers: ClusterAnswers


async def list_all(client: ClusterApi) -> Listing | None:
    """The pods and events of a namespace; None where its pods may not be listed."""
    listed = await permitted(client.list(api.POD, {names.LABEL_APP: "spotmpi"}), None)
    if listed is None:
        return None
    pods: dict[str, list[Object]] = {}
    for pod in listed:
        pods.setdefault(pod["metadata"]["labels"].get(names.LABEL_RUN, ""), []).append(pod)
    return Listing(pods, await permitted(client.list(api.EVENT), None), ClusterAnswers())


class ClusterFollower:
    """Merges all that happens to one run into one stream; a snapshot looks at a *listing* if there is one."""

    def __init__(
        self,
        client: ClusterApi,
        jobset: Object,
        cloud: CloudDiagnosis | None = None,
        listing: Listing | None = None,
    ) -> None:
        self._client = client
        self._run = FollowedRun(jobset)
        self._queue: asyncio.Queue[list[PodEntry] | Exception | None] = asyncio.Queue(QUEUE_SIZE)
        claims = frozenset(name for name, _ in cluster_plan.mounted_claims(cluster_plan.pod_template(jobset)))
        self._seen = Observations(claims=claims)
        self._listing = listing
        self._diagnostics = PendingDiagnostics(client, cloud, listing.answers if listing else None)
        self._tasks: list[asyncio.Task[None]] = []
        self._logs: dict[str, asyncio.Task[None]] = {}
        self._exits = ExitDiagnosis(self._run.workers_tables)
        self._recorded_end: PodEntry | None = None  # the end as node 0's agent recorded it
        self._jobset_end: Event | None = None  # and as the JobSet shows it
        self._ended = asyncio.Event()
        self._pods_known = asyncio.Event()
        self._has_joined = False  # whether a worker ever has
        self._log_slots = asyncio.Semaphore(MAX_STREAMS)
        self._first_look = client.now()
        self._last_reason: frozenset[str] = frozenset()
        self._placements: set[float] = set()  # times of those that were reported
        self._read: set[Member] = set()  # those that had a pod to read
        self._folder = RunFolder(client, jobset, self._report_waiting)
        self._folder_lock = asyncio.Lock()
        self.folder_log = FolderLog(client)

    async def follow(self) -> AsyncIterator[list[PodEntry]]:
        """Everything from the first pod that still exists until the run has ended, some at a time."""
        for work in (
            self._watch_jobset(),
            self._watch_pods(),
            self._watch_events(),
            self._report_reasons(),
            self._finish(),
        ):
            self._tasks.append(self._start_task(work))
        try:
            while (entries := await self._queue.get()) is not None:
                if isinstance(entries, Exception):
                    raise entries
                yield self._delay_end(entries)
                if self._recorded_end:
                    self._ended.set()
            yield [*self._kept_nodes(), self._last_entry()]
        finally:
            tasks = [*self._tasks, *self._logs.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._folder.close()

    async def snapshot(self) -> AsyncIterator[list[PodEntry]]:
        """All that has happened up to now, by the listing if there is one; a run that has waited too long is ended."""
        try:
            async for entries in self._snapshot():
                yield entries
        finally:
            await self._folder.close()

    async def _snapshot(self) -> AsyncIterator[list[PodEntry]]:
        """All entries so far: the output of pods and of deleted ones, placements, then the end, or why pods wait.

        Agents print placements too, each before the attempt that it led to: what is new after that is not theirs yet.
        """
        self._update_jobset(self._run.jobset)
        pods: Sequence[Object]
        if self._listing is None:
            pods = await self._client.list(api.POD, {names.LABEL_RUN: self._run.name})
        else:
            pods = self._listing.pods.get(self._run.name, ())
        pods = sorted(pods, key=creation_time)
        self._seen.pods = {pod_name(pod): pod for pod in pods}
        logs = [self._output(pod, follow=False) for pod in pods if self._has_output(pod)]
        for stream in (concatenate(logs), self._output_of_deleted_pods()):
            async for entries in stream:
                yield self._delay_end(entries)
        yield [PodEntry(0, event=event) for event in placement_events(self._run.jobset)]
        if self._recorded_end or self._jobset_end:
            await self._end_workers()
            yield [*self._kept_nodes(), self._last_entry()]
            return
        await self._read_events()
        yield [PodEntry(0, event=event) for event in await self._check()]

    def _delay_end(self, entries: list[PodEntry]) -> list[PodEntry]:
        """*entries* without the end of the run, which is kept to come last; notes joined agents and exits too."""
        ends = [entry for entry in entries if entry.event and entry.event.kind in record.TERMINAL]
        self._recorded_end = ends[-1] if ends else self._recorded_end
        self._has_joined = self._has_joined or any(e.event and e.event.kind == record.JOINED for e in entries)
        self._exits.observe(entries)
        return [entry for entry in entries if entry not in ends] if ends else entries

    def _last_entry(self) -> PodEntry:
        if self._recorded_end:
            return self._recorded_end
        assert self._jobset_end is not None
        return self._exits.explain(self._jobset_end, self._seen.pods.values())

    def _kept_nodes(self) -> list[PodEntry]:
        """That nodes are kept after the end, if they are: the JobSet does not end before the containers in them do."""
        reason = (
            None if terminal_condition(self._run.jobset) else kept_nodes_reason(self._run, self._seen.pods.values())
        )
        return [PodEntry(0, event=self._event(record.WAITING, reason))] if reason else []

    async def _output_of_deleted_pods(self) -> AsyncIterator[list[PodEntry]]:
        """What the run folder holds of members whose pods were deleted before this follower came, after the end."""
        for member in sorted({*self._run.members} - self._read) if terminal_condition(self._run.jobset) else []:
            try:
                yield await self._read_folder("", member, self._run.submitted, math.inf)
            except SpotmpiError as error:
                reason = f"the output of {member} is no longer available: {error}"
                yield [PodEntry(0, event=self._event(record.GAP, reason))]

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """The task of *work*; what it raises ends the stream."""

        async def guard() -> None:
            try:
                await work
            except Exception as error:
                await self._queue.put(error)

        return asyncio.create_task(guard())

    async def _finish(self) -> None:
        """End the stream when the JobSet has ended and its logs are read."""
        await self._ended.wait()
        # The JobSet's end may arrive before the watch has shown a short pod.
        if len(self._seen.pods) < cluster_plan.pod_count(self._run.jobset) + sum(self._run.workers.values()):
            with contextlib.suppress(ApiError, httpx2.HTTPError):  # the run folder may still have their output
                for pod in await self._client.list(api.POD, {names.LABEL_RUN: self._run.name}):
                    self._update_pod(pod)
        if not self._has_joined:  # or their logs would be waited for
            await self._end_workers()
        if self._logs:
            _, late = await asyncio.wait(self._logs.values(), timeout=LOG_TIMEOUT)
            if late and self._folder_lock.locked():
                await asyncio.wait(late, timeout=START_TIMEOUT)
        async for entries in self._output_of_deleted_pods():
            await self._queue.put(entries)
        if self._has_joined:
            await self._end_workers()
        await self._queue.put(None)

    async def _end_workers(self) -> None:
        """End the workers of a run that is over, which could not join it: they would wait for nodes and for node 0."""
        for role in self._run.workers:
            with contextlib.suppress(ApiError, httpx2.HTTPError):
                await self._client.patch(api.JOB, names.workers_name(self._run.name, role), {"spec": {"suspend": True}})

    def _report_waiting(self, reason: str) -> None:
        """Report why the consumer waits for this follower."""
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait([PodEntry(0, event=self._event(record.WAITING, reason))])

    def _event(self, kind: str, reason: str, running: bool = False) -> Event:
        """An event of now, by the API server's clock; *running* says that the run goes on while it waits."""
        return Event(self._client.now(), kind, values={"reason": reason, **({RUNNING: True} if running else {})})

    async def _watch_jobset(self) -> None:
        async for change, jobset in self._client.watch(api.JOBSET, name=self._run.name):
            if change == api.RESYNC:
                change, jobset = ("MODIFIED", jobset["items"][0]) if jobset["items"] else ("DELETED", self._run.jobset)
            self._update_jobset(jobset, is_gone=change == "DELETED")
            new = [event for event in placement_events(self._run.jobset) if event.time not in self._placements]
            self._placements.update(event.time for event in new)
            if new:
                await self._queue.put([PodEntry(0, event=event) for event in new])
            if self._jobset_end:
                self._ended.set()

    def _update_jobset(self, jobset: Object, is_gone: bool = False) -> None:
        self._run.jobset = jobset
        self._jobset_end = self._jobset_end or jobset_end(self._run, is_gone, self._client.now())

    async def _watch_pods(self) -> None:
        async for change, pod in self._client.watch(api.POD, labels={names.LABEL_RUN: self._run.name}, listed=True):
            if change == "DELETED":
                self._seen.pods.pop(pod_name(pod), None)
            elif change == api.RESYNC:
                self._seen.pods.clear()
                for each in pod["items"]:
                    self._update_pod(each)
                self._pods_known.set()
            else:
                self._update_pod(pod)

    def _update_pod(self, pod: Object) -> None:
        """Take a pod's new state into account, and begin to read its output once it has some."""
        name = pod_name(pod)
        self._seen.pods[name] = pod
        if reason := self._exits.report_killed(pod):
            self._report_waiting(reason)
        if name not in self._logs and self._has_output(pod):
            self._logs[name] = self._start_task(self._read_log(pod))
            if len(self._logs) == MAX_STREAMS + 1:
                text = (
                    f"the output of {MAX_STREAMS} nodes is shown as it comes, that of others once one of them has "
                    f"ended; `spotmpi logs {self._run.name}` shows all so far"
                )
                event = self._event(record.WAITING, text, running=True)
                with contextlib.suppress(asyncio.QueueFull):
                    self._queue.put_nowait([PodEntry(0, event=event)])

    async def _watch_events(self) -> None:
        try:
            async for change, event in self._client.watch(api.EVENT):
                for each in event["items"] if change == api.RESYNC else [event]:
                    self._add_event(each)
        except ApiError as error:
            self._without_events(error)

    async def _read_events(self) -> None:
        try:
            events = self._listing.events if self._listing else await self._client.list(api.EVENT)
        except ApiError as error:
            self._without_events(error)
            return
        self._seen.events_forbidden = events is None
        for event in events or ():
            self._add_event(event)

    def _without_events(self, error: ApiError) -> None:
        """Note that events can't be read: the pods' own conditions remain. A busy server is not a lack of a right."""
        self._seen.events_forbidden = error.status.code == HTTPStatus.FORBIDDEN

    def _add_event(self, event: Object) -> None:
        name = str(event["involvedObject"].get("name", ""))
        if self._run.name in name or name in self._seen.claims:  # that of Kueue's workload contains that of its JobSet
            self._seen.add_event(event)

    async def _report_reasons(self) -> None:
        """Report why the run waits, whenever that changes; not before its pods are known, or it might be given up."""
        await self._pods_known.wait()
        reported = None
        while not self._ended.is_set():
            await asyncio.sleep(CHECK_INTERVAL)
            if (outage := self._client.outage) and not reported:
                text = f"the cluster does not answer ({outage}); the run may go on meanwhile"
                await self._queue.put([PodEntry(0, event=self._event(record.WAITING, text, running=True))])
            reported = outage
            if not self._ended.is_set():
                await self._queue.put([PodEntry(0, event=event) for event in await self._check()])

    async def _check(self) -> list[Event]:
        """Why the run waits, if that has changed; its end, if it has waited too long."""
        await self._diagnostics.update(self._seen, self._run.submitted)
        reason, running, is_over = find_wait(self._seen, self._run, self._first_look, self._client.now())
        if reason and is_over and await self._give_up(reason):
            return [self._event(record.FAILED, reason)]
        before, self._last_reason = self._last_reason, reason_key(reason or "")
        if not reason or self._last_reason == before:
            return []
        return [self._event(record.WAITING, reason, running)]

    async def _give_up(self, reason: str) -> bool:
        """Delete a run whose first node never came, which would wait for ever; False where that is not possible."""
        try:
            with translate_errors("end the run"):
                note = {"metadata": {"annotations": {manifests.ANNOTATION_GIVEN_UP: reason}}}
                await self._client.patch(api.JOBSET, self._run.name, note)
                await self._client.delete(api.JOBSET, self._run.name)
        except SpotmpiError:
            return False  # A follower without the right to delete goes on waiting.
        return True

    def _has_output(self, pod: Object) -> bool:
        """Whether the pod has output that belongs to the run."""
        return has_started(pod) and self._run.prints(member_of(pod))

    async def _read_log(self, pod: Object) -> None:
        async with self._log_slots:
            async for entries in self._output(pod, follow=True):
                await self._queue.put(entries)

    async def _output(self, pod: Object, follow: bool) -> AsyncIterator[list[PodEntry]]:
        """What a pod has printed, from its log or, where that is forbidden, from the run folder."""
        source = self._source(pod)
        try:
            async for entries in PodLog(self._client, source, self._exits.other_lines).entries(follow):
                yield entries
        except NotPermitted:
            async for entries in self.folder_log.entries(source, follow):
                yield entries

    def _source(self, pod: Object) -> Source:
        """Where the output of a pod is read from, with what earlier pods of its member have written."""
        name, member = pod_name(pod), member_of(pod)
        self._read.add(member)
        predecessors = has_predecessors(pod)
        since = self._run.submitted if predecessors else creation_time(pod)
        return Source(
            name,
            member,
            since,
            predecessors,
            is_finished=lambda: self._pod_has_ended(name),
            image=image_reference(pod),
            read_folder=self._read_folder,
        )

    async def _read_folder(self, pod: str, member: Member, since: float, until: float) -> list[PodEntry]:
        """What the run folder holds, by way of the pod itself or of node 0's, where one of them runs."""

        def readers() -> list[str]:
            running = [each for each in self._seen.pods.values() if pod_phase(each) == "Running"]
            return [pod_name(each) for each in running if pod_name(each) == pod or member_of(each) == COORDINATOR]

        async with self._folder_lock:  # one after the other, as a pod may have to be created
            return await self._folder.entries(readers, member, since, until)

    def _pod_has_ended(self, pod: str) -> bool:
        values = self._seen.pods.get(pod)
        return values is None or has_ended(values)
