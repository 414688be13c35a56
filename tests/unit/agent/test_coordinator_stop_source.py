"""What node 0 concludes from the reports of nodes, in order of importance."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotmpi.agent import pod_context
from spotmpi.agent.coordinator import CoordinatorStopSource
from spotmpi.agent.outcomes import FAILURE, INTERRUPTION, NOT_RETRYABLE, STOPPED


class Peers:
    """A coordinator, a notice and an sshd whose states a test sets."""

    def __init__(self) -> None:
        self.notices: dict[int, str] = {}
        self.ended: dict[int, tuple[int, str]] = {}
        self.lost_hosts: list[int] = []
        self.reason: str | None = None
        self.sshd: str | None = None

    def serve(self, timeout: float) -> None:
        """Nothing arrives."""

    def name_of(self, node: int) -> str:
        return f"node {node}"

    def of_gang(self, values: dict[int, Any]) -> dict[int, Any]:
        return values

    def lost(self) -> list[int]:
        return self.lost_hosts

    def error(self) -> str | None:
        return self.sshd

    def stop_source(self) -> CoordinatorStopSource:
        hosts: Any = SimpleNamespace(hosts=["a", "b", "c"], plan={"pool": None})
        peers: Any = self
        return CoordinatorStopSource(hosts, peers, peers, peers)


@pytest.fixture(autouse=True)
def pod_info(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pod_context, "POD_INFO", str(tmp_path))
    return tmp_path / "annotations"


def test_without_reports_no_stop_request_is_pending() -> None:
    peers = Peers()
    peers.ended[1] = (0, "None")
    assert peers.stop_source().pending() is None
    assert peers.stop_source().interruption() is None


@pytest.mark.parametrize(
    ("state", "cause", "reason", "checkpoint_first"),
    [
        ({"reason": "the pod got SIGTERM"}, INTERRUPTION, "node 0: the pod got SIGTERM", True),
        ({"notices": {2: "its sshd ended"}}, INTERRUPTION, "node 2: its sshd ended", True),
        ({"sshd": "its sshd ended"}, INTERRUPTION, "node 0: its sshd ended", False),
        ({"lost_hosts": [1, 2]}, INTERRUPTION, "lost b, c", False),
        ({"ended": {1: (3, "exit code 3")}}, FAILURE, "node 1: exit code 3", False),
        ({"ended": {1: (78, "wrong key")}}, NOT_RETRYABLE, "node 1: wrong key", False),
        ({"ended": {1: (3, "exit code 3")}, "lost_hosts": [2]}, INTERRUPTION, "lost c", False),
    ],
)
def test_reports_of_nodes_end_the_attempt(
    state: dict[str, Any], cause: str, reason: str, checkpoint_first: bool
) -> None:
    peers = Peers()
    vars(peers).update(state)
    stop_request = peers.stop_source().pending()
    assert stop_request is not None
    assert (stop_request.outcome.cause, stop_request.outcome.reason, stop_request.checkpoint_first) == (
        cause,
        reason,
        checkpoint_first,
    )


def test_a_stop_by_a_user_comes_first(pod_info: Path) -> None:
    pod_info.write_text('spotmpi.dev/stop="enough"\n')
    peers = Peers()
    peers.reason = "the pod got SIGTERM"
    stop_request = peers.stop_source().pending()
    assert stop_request is not None and stop_request.outcome.cause == STOPPED and stop_request.checkpoint_first


def test_an_sshd_that_was_ended_with_the_attempt_makes_no_failure_an_interruption() -> None:
    peers = Peers()
    peers.sshd = "its sshd ended"
    assert peers.stop_source().interruption() is None
    peers.lost_hosts = [1]
    interruption = peers.stop_source().interruption()
    assert interruption is not None and (interruption.reason, interruption.lost_nodes) == ("lost b", (1,))
    peers.notices = {2: "the pod got SIGTERM"}
    interruption = peers.stop_source().interruption()
    assert interruption is not None
    assert (interruption.reason, interruption.lost_nodes) == ("node 2: the pod got SIGTERM", ())


def test_a_node_that_gave_notice_is_not_lost() -> None:
    peers = Peers()
    peers.lost_hosts, peers.notices = [1, 2], {2: "the pod got SIGTERM"}
    assert peers.stop_source().lost_nodes() == (1,)
