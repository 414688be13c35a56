"""Stopping a run, and deleting the objects of an interrupted submission later."""

from __future__ import annotations

import asyncio

import pytest

from spotmpi.backends.kubernetes import stop
from spotmpi.core import names
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import RUN, jobset, of_kind, pod
from tests.cloud.cluster.store import Object


def remaining(cluster: FakeCluster, *jobsets: Object) -> list[str]:
    cluster.put(*jobsets)

    async def names_left() -> list[str]:
        api = cluster.api()
        left = await stop.delete_abandoned(api, await api.list("JobSet"))
        return [each["metadata"]["name"] for each in left]

    return asyncio.run(names_left())


def test_a_run_whose_submission_broke_off_minutes_ago_is_deleted_and_no_other(cluster: FakeCluster) -> None:
    cluster.put(of_kind("ConfigMap", names.parts_name("queued")))
    ages = {"stray": 301, "queued": 3600, "fresh": 200}
    runs = [jobset(name=name, age=age, suspend=True) for name, age in ages.items()]
    assert remaining(cluster, *runs, jobset(name="goes-on", age=3600)) == ["fresh", "goes-on", "queued"]
    assert cluster.deleted == ["stray"]


@pytest.mark.parametrize(
    ("verb", "resource", "expected"),
    [("get", "configmaps", ["stray"]), ("delete", "jobsets", [])],
    ids=["find", "delete"],
)
def test_a_user_without_the_rights_sees_the_other_runs(
    cluster: FakeCluster, verb: str, resource: str, expected: list[str]
) -> None:
    cluster.forbid(verb, resource)
    assert remaining(cluster, jobset(name="stray", age=301, suspend=True)) == expected
    assert cluster.deleted == []


def test_a_terminal_whose_clock_is_ahead_deletes_no_submission_of_others(cluster: FakeCluster) -> None:
    """The age is 10 s by the cluster's clock; by the terminal's it would be 610 s, and the run would be deleted."""
    cluster.ahead = -600.0
    assert remaining(cluster, jobset(name="fresh", age=610, suspend=True)) == ["fresh"]
    assert cluster.deleted == []


def test_a_node_that_is_reclaimed_while_its_run_is_stopped_prevents_nothing(cluster: FakeCluster) -> None:
    cluster.put(node_0 := pod(0, "Running"))
    cluster.on_request = lambda request: cluster.remove(node_0)  # right after it was listed
    asyncio.run(stop.request_stop(cluster.api(), RUN, "enough"))
    assert [request.verb for request in cluster.requests][:2] == ["list", "patch"]
