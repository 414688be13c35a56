"""Following a run on a fake cluster, or looking at it once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from spotmpi.backends.kubernetes.follow.run import ClusterFollower
from spotmpi.core.events import Event
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.store import Object


def follow(
    cluster: FakeCluster, of: Object, script: Callable[[list[Event]], object] = lambda events: None, enough: int = 99
) -> list[Event]:
    """Give the events of a followed run; *script* is called after each, and *enough* events end the following.

    The cluster has the JobSet *of* unless it has another one of that name, as if it had changed since.
    """

    async def collect() -> list[Event]:
        events: list[Event] = []
        async for entries in ClusterFollower(cluster.api(), of).follow():
            for event in (each.event for entry in entries for each in entry.split() if each.event):
                events.append(event)
                script(events)
            if len(events) >= enough:
                break
        return events

    if cluster.key(of) not in cluster.store.objects:
        cluster.put(of)
    return asyncio.run(asyncio.wait_for(collect(), 60))


def look(cluster: FakeCluster, of: Object, diagnose: Callable[[], str | None] | None = None) -> list[Event]:
    """Give the events of a run as they are now."""

    async def collect() -> list[Event]:
        batches = ClusterFollower(cluster.api(), of, diagnose).snapshot()
        return [entry.event async for entries in batches for entry in entries if entry.event]

    cluster.put(of)
    return asyncio.run(asyncio.wait_for(collect(), 60))
