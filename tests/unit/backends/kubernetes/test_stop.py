"""The objects of an interrupted submission are deleted later."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from lightkube import ApiError

from spotmpi.backends.kubernetes import stop
from spotmpi.core import names
from spotmpi.plan import manifests

Object = dict[str, Any]


def jobset(name: str, age: float, suspend: bool = True) -> Object:
    created = datetime.fromtimestamp(time.time() - age, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    notes = {manifests.ANNOTATION_SPEC: '{"command": ["x"]}'}
    return {
        "metadata": {"name": name, "creationTimestamp": created, "annotations": notes},
        "spec": {"suspend": suspend},
    }


class Namespace:
    """Has the parts of some runs; may forbid reading or deleting them."""

    def __init__(self, *whole: str, errors: str = "", ahead: float = 0.0) -> None:
        self.ahead = ahead  # of this machine's clock, seconds
        self.parts = [names.parts_name(run) for run in whole]
        self.errors = errors
        self.deleted: list[str] = []

    def now(self) -> float:
        return time.time() + self.ahead

    async def find(self, kind: str, name: str) -> Object | None:
        self._may("find")
        return {} if name in self.parts else None

    async def delete(self, kind: str, name: str) -> None:
        self._may("delete")
        self.deleted.append(name)

    def _may(self, verb: str) -> None:
        if verb == self.errors:
            request = httpx2.Request("GET", "https://cluster")
            body = {"kind": "Status", "code": 403, "message": "no"}
            raise ApiError(request=request, response=httpx2.Response(403, json=body, request=request))


def remaining(namespace: Namespace, *jobsets: Object) -> list[str]:
    deleted = asyncio.run(stop.delete_abandoned(namespace, jobsets))  # type: ignore[arg-type]
    return [each["metadata"]["name"] for each in deleted]


def test_a_run_whose_submission_broke_off_minutes_ago_is_deleted_and_no_other() -> None:
    namespace = Namespace("queued")
    runs = [jobset("stray", 301), jobset("queued", 3600), jobset("fresh", 200), jobset("goes-on", 3600, suspend=False)]
    assert remaining(namespace, *runs) == ["queued", "fresh", "goes-on"]
    assert namespace.deleted == ["stray"]


@pytest.mark.parametrize(("errors", "expected"), [("find", ["stray"]), ("delete", [])])
def test_a_user_without_the_rights_sees_the_other_runs(errors: str, expected: list[str]) -> None:
    namespace = Namespace(errors=errors)
    assert remaining(namespace, jobset("stray", 301)) == expected
    assert namespace.deleted == []


def test_a_terminal_whose_clock_is_ahead_deletes_no_submission_of_others() -> None:
    """The age is 10 s by the cluster's clock; by the terminal's it would be 610 s, and the run would be deleted."""
    namespace = Namespace(ahead=-600.0)
    assert remaining(namespace, jobset("fresh", 610)) == ["fresh"]
    assert namespace.deleted == []
