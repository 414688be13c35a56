"""What node 0 makes of all that it hears, in its order of importance."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotmpi.agent import pod_context
from spotmpi.agent.coordinator_requests import LeaderRequests
from spotmpi.agent.outcomes import FAILURE, INTERRUPTION, NOT_RETRYABLE, STOPPED


class Heard:
    """A hub, a notice and an sshd whose states a test sets."""

    def __init__(self) -> None:
        self.notices: dict[int, str] = {}
        self.ended: dict[int, tuple[int, str]] = {}
        self.gone: list[int] = []
        self.reason: str | None = None
        self.sshd: str | None = None

    def serve(self, timeout: float) -> None:
        """Nothing arrives."""

    def lost(self) -> list[int]:
        return self.gone

    def trouble(self) -> str | None:
        return self.sshd

    def requests(self) -> LeaderRequests:
        hosts: Any = SimpleNamespace(hosts=["a", "b", "c"])
        itself: Any = self
        return LeaderRequests(hosts, itself, itself, itself)


@pytest.fixture(autouse=True)
def pod_info(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pod_context, "POD_INFO", str(tmp_path))
    return tmp_path / "annotations"


def test_nothing_heard_means_going_on() -> None:
    heard = Heard()
    heard.ended[1] = (0, "None")
    assert heard.requests().wanted() is None
    assert heard.requests().interruption() is None


@pytest.mark.parametrize(
    ("state", "cause", "reason", "checkpoint_first"),
    [
        ({"reason": "the pod got SIGTERM"}, INTERRUPTION, "node 0: the pod got SIGTERM", True),
        ({"notices": {2: "its sshd ended"}}, INTERRUPTION, "node 2: its sshd ended", True),
        ({"sshd": "its sshd ended"}, INTERRUPTION, "node 0: its sshd ended", False),
        ({"gone": [1, 2]}, INTERRUPTION, "lost b, c", False),
        ({"ended": {1: (3, "exit code 3")}}, FAILURE, "node 1: exit code 3", False),
        ({"ended": {1: (78, "wrong key")}}, NOT_RETRYABLE, "node 1: wrong key", False),
        ({"ended": {1: (3, "exit code 3")}, "gone": [2]}, INTERRUPTION, "lost c", False),
    ],
)
def test_what_is_heard_ends_the_attempt_as_it_counts(
    state: dict[str, Any], cause: str, reason: str, checkpoint_first: bool
) -> None:
    heard = Heard()
    vars(heard).update(state)
    ending = heard.requests().wanted()
    assert ending is not None
    assert (ending.outcome.cause, ending.outcome.reason, ending.checkpoint_first) == (cause, reason, checkpoint_first)


def test_a_stop_that_was_asked_for_comes_first(pod_info: Path) -> None:
    pod_info.write_text('spotmpi.dev/stop="enough"\n')
    heard = Heard()
    heard.reason = "the pod got SIGTERM"
    ending = heard.requests().wanted()
    assert ending is not None and ending.outcome.cause == STOPPED and ending.checkpoint_first


def test_an_sshd_that_was_ended_with_the_attempt_makes_no_failure_an_interruption() -> None:
    heard = Heard()
    heard.sshd = "its sshd ended"
    assert heard.requests().interruption() is None
    heard.gone = [1]
    interrupted = heard.requests().interruption()
    assert interrupted is not None and (interrupted.reason, interrupted.lost_nodes) == ("lost b", (1,))
    heard.notices = {2: "the pod got SIGTERM"}
    interrupted = heard.requests().interruption()
    assert interrupted is not None
    assert (interrupted.reason, interrupted.lost_nodes) == ("node 2: the pod got SIGTERM", ())


def test_a_node_that_gave_notice_is_not_lost() -> None:
    heard = Heard()
    heard.gone, heard.notices = [1, 2], {2: "the pod got SIGTERM"}
    assert heard.requests().lost_nodes() == (1,)
