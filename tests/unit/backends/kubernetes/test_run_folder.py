"""What a follower reads from the run folder through pods, which may end while they read it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.follow import run_folder
from spotmpi.backends.kubernetes.follow.run_folder import RunFolder
from spotmpi.core.errors import NotPermitted, SpotmpiError
from spotmpi.plan import manifests

LINE = '{"n":0,"l":[1,0,1,1000.5,null,"o","hello"]}\n'


class Pods:
    """Answers each question with the next of *answers*."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[str] = []

    async def execute(self, pod: str, command: Sequence[str]) -> str:
        self.requests.append(pod)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def jobset(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(run_folder, "RETRY_DELAYS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(manifests, "run_volume", lambda jobset: None)
    return {"metadata": {"name": "digits-1"}}


def texts(pods: Pods, jobset: dict[str, Any], *running: list[str]) -> list[str]:
    """The lines that a follower reads, while *running* lists the pods at each try."""
    remaining = list(running)
    replayer = RunFolder(cast("ClusterApi", pods), jobset, lambda text: None)
    entries = asyncio.run(replayer.entries(lambda: remaining.pop(0), 0, 0.0, 2000.0))
    return [str(entry.event.values["text"]) for entry in entries if entry.event]


def test_reading_is_retried_in_the_pod_or_its_successor(jobset: dict[str, Any]) -> None:
    pods = Pods(SpotmpiError("gone"), LINE, LINE + "that is all\n")

    assert texts(pods, jobset, ["a"], ["a"], ["b"]) == ["hello"]
    assert pods.requests == ["a", "a", "b"], "an answer that broke off is no answer"


def test_without_a_running_pod_and_a_volume_the_error_says_so(jobset: dict[str, Any]) -> None:
    with pytest.raises(SpotmpiError, match="no run volume, and no pod that holds its output is running"):
        texts(Pods(SpotmpiError("gone")), jobset, ["a"], [])


def test_a_pod_that_cannot_be_read_is_named_with_the_reason(jobset: dict[str, Any]) -> None:
    # It runs at every try, so the error says what is wrong with it, not that it is gone.
    pods = Pods(SpotmpiError("gone"), LINE, SpotmpiError("could not read the run folder: the cluster answered 500"))

    with pytest.raises(SpotmpiError) as raised:
        texts(pods, jobset, ["a"], ["a"], ["b"])
    assert str(raised.value) == (
        "the run has no run volume, and its pod b failed: could not read the run folder: the cluster answered 500"
    )


def test_a_forbidden_read_is_not_retried(jobset: dict[str, Any]) -> None:
    pods = Pods(NotPermitted("not permitted"))
    with pytest.raises(NotPermitted):
        texts(pods, jobset, ["a"])
    assert pods.requests == ["a"]
