"""Stopping a run, and deleting the objects of an interrupted submission later."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spotmpi.backends.kubernetes import stop
from spotmpi.core import names
from tests.unit.backends.kubernetes.watched_cluster import RUN, FakeCluster, Object, api_error, jobset, pod


def remaining(cluster: Any, *jobsets: Object) -> list[str]:
    return [each["metadata"]["name"] for each in asyncio.run(stop.delete_abandoned(cluster, jobsets))]


def test_a_run_whose_submission_broke_off_minutes_ago_is_deleted_and_no_other() -> None:
    cluster = FakeCluster()
    cluster.objects[f"here/{names.parts_name('queued')}"] = {}
    ages = {"stray": 301, "queued": 3600, "fresh": 200}
    runs = [jobset(name=name, age=age, suspend=True) for name, age in ages.items()]
    assert remaining(cluster, *runs, jobset(name="goes-on", age=3600)) == ["queued", "fresh", "goes-on"]
    assert cluster.deleted == ["stray"]


@pytest.mark.parametrize(
    ("forbidden", "expected"),
    [(f"here/{names.parts_name('stray')}", ["stray"]), ("delete", [])],
    ids=["find", "delete"],
)
def test_a_user_without_the_rights_sees_the_other_runs(forbidden: str, expected: list[str]) -> None:
    cluster = FakeCluster()
    cluster.errors[forbidden] = api_error(403)
    assert remaining(cluster, jobset(name="stray", age=301, suspend=True)) == expected
    assert cluster.deleted == []


def test_a_terminal_whose_clock_is_ahead_deletes_no_submission_of_others() -> None:
    """The age is 10 s by the cluster's clock; by the terminal's it would be 610 s, and the run would be deleted."""
    cluster = FakeCluster(ahead=-600.0)
    assert remaining(cluster, jobset(name="fresh", age=610, suspend=True)) == ["fresh"]
    assert cluster.deleted == []


def test_a_node_that_is_reclaimed_while_its_run_is_stopped_prevents_nothing() -> None:
    cluster = FakeCluster([pod(0, "Running")])
    cluster.errors["patch"] = api_error(404, 'pods "digits-1-node-0-0-abcde" not found')
    asyncio.run(stop.request_stop(cluster, RUN, "enough"))  # type: ignore[arg-type]
