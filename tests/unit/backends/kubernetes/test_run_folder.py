"""What a follower reads from the run folder through pods, which may end while they read it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spotmpi.backends.kubernetes.follow import run_folder
from spotmpi.backends.kubernetes.follow.run_folder import RunFolder
from spotmpi.core.errors import NotPermitted, SpotmpiError
from tests.unit.backends.kubernetes.watched_cluster import FakeCluster, jobset

LINE = '{"n":0,"l":[1,0,1,1000.5,null,"o","hello"]}\n'


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "RETRY_DELAYS", (0.0, 0.0, 0.0))


def answering(*outputs: str | Exception) -> FakeCluster:
    """A cluster whose pods answer commands so, one after another."""
    cluster = FakeCluster()
    cluster.outputs = list(outputs)
    return cluster


def texts(cluster: Any, *running: list[str]) -> list[str]:
    """The lines that a follower reads, while *running* lists the pods at each try."""
    remaining = list(running)
    folder = RunFolder(cluster, jobset(), lambda text: None)
    entries = asyncio.run(folder.entries(lambda: remaining.pop(0), 0, 0.0, 2000.0))
    return [str(entry.event.values["text"]) for entry in entries if entry.event]


def test_reading_is_retried_in_the_pod_or_its_successor() -> None:
    cluster = answering(SpotmpiError("gone"), LINE, LINE + "that is all\n")

    assert texts(cluster, ["a"], ["a"], ["b"]) == ["hello"]
    assert cluster.requests == ["a", "a", "b"], "an answer that broke off is no answer"


def test_without_a_running_pod_and_a_volume_the_error_says_so() -> None:
    with pytest.raises(SpotmpiError, match="no run volume, and no pod that holds its output is running"):
        texts(answering(SpotmpiError("gone")), ["a"], [])


def test_a_pod_that_cannot_be_read_is_named_with_the_reason() -> None:
    # It runs at every try, so the error says what is wrong with it, not that it is gone.
    reason = "could not read the run folder: the cluster answered 500"
    cluster = answering(SpotmpiError("gone"), LINE, SpotmpiError(reason))

    with pytest.raises(SpotmpiError, match=f"^the run has no run volume, and its pod b failed: {reason}$"):
        texts(cluster, ["a"], ["a"], ["b"])


def test_a_forbidden_read_is_not_retried() -> None:
    cluster = answering(NotPermitted("not permitted"))
    with pytest.raises(NotPermitted):
        texts(cluster, ["a"])
    assert cluster.requests == ["a"]
