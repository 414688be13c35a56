"""What node 0 waits for before it launches, and what it concludes from the reports of nodes afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock, Mock

import pytest

from spotmpi.agent import network, protocol, readiness
from spotmpi.agent.coordinator import CoordinatedAttempt
from spotmpi.agent.launch import Launch
from spotmpi.agent.outcomes import FAILURE, INTERRUPTION, NOT_RETRYABLE, STOPPED, Outcome, StopRequest
from spotmpi.agent.plan import NODE, Member
from spotmpi.agent.readiness import Readiness, Staging
from spotmpi.agent.stop_requests import CoordinatorStopSignal, NoticedNodes
from tests.clocks import SetClock
from tests.unit.agent.agent_process import mounts_below

NODES = [Member(NODE, number) for number in range(3)]
TWELVE = [f"run-{node}" for node in range(12)]
HOSTS = TWELVE[:3]
NEW = {1: "10.0.0.11", 2: "10.0.0.12"}
WORKERS = {Member(NODE, node): SimpleNamespace(address=address) for node, address in NEW.items()}


class Dns:
    """Names and their addresses, and the time, all as a test sets them."""

    def __init__(self) -> None:
        self.addresses = {"run-0": {"10.0.0.10"}, "run-1": {NEW[1]}, "run-2": {NEW[2]}}
        self.clock = SetClock(100.0)


@pytest.fixture(autouse=True)
def dns(monkeypatch: pytest.MonkeyPatch) -> Dns:
    dns = Dns()
    monkeypatch.setattr(network, "addresses", lambda host: dns.addresses.get(host, set()))
    return dns


def expecting(dns: Dns) -> Readiness:
    """The readiness of three nodes, all of which have connected."""
    coordinator: Any = SimpleNamespace(workers=WORKERS, missing=lambda: [], hint="")
    return Readiness(lambda: HOSTS, coordinator, Staging(None, ""), dns.clock, names=True)


def test_nothing_is_missing_when_every_name_resolves_to_its_pod(dns: Dns) -> None:
    state = expecting(dns)
    assert state.missing() is None
    assert state.addresses == {"run-1": NEW[1], "run-2": NEW[2]}


def test_a_name_that_resolves_to_the_previous_pod_is_waited_for(dns: Dns) -> None:
    state, unresolved = expecting(dns), "1 of 3 hosts are not in DNS with their address yet: run-1"
    dns.addresses["run-1"] = {"10.0.0.1"}
    assert state.missing() == unresolved
    dns.clock.seconds += readiness.DNS_GRACE / 2
    assert state.missing() == unresolved

    dns.addresses["run-1"] = {"10.0.0.1", NEW[1]}

    assert state.missing() is None
    assert state.addresses["run-1"] == NEW[1], "whatever DNS says first"


def test_where_addresses_are_translated_names_count_after_a_while(dns: Dns) -> None:
    state = expecting(dns)
    dns.addresses["run-1"] = {"192.168.7.7"}
    assert state.missing() is not None
    dns.clock.seconds += readiness.DNS_GRACE
    assert state.missing() is None
    assert state.addresses == {"run-2": NEW[2]}


@pytest.mark.parametrize("host", HOSTS)
def test_a_name_without_any_address_is_waited_for_as_long_as_it_takes(dns: Dns, host: str) -> None:
    state = expecting(dns)
    dns.addresses[host] = set()
    assert state.missing() is not None
    dns.clock.seconds += 10 * readiness.DNS_GRACE
    assert state.missing() == f"1 of 3 hosts are not in DNS with their address yet: {host}"


@pytest.mark.parametrize(
    ("missing", "description"),
    [
        ([2], "1 of 12 hosts are not ready yet: run-2"),
        (list(range(4, 12)), f"8 of 12 hosts are not ready yet: {', '.join(TWELVE[4:])}"),
        (list(range(3, 12)), f"9 of 12 hosts are not ready yet: {', '.join(TWELVE[3:11])} ..."),
    ],
)
def test_hosts_that_are_missing_are_named_of_many_the_first_eight(missing: list[int], description: str) -> None:
    coordinator: Any = SimpleNamespace(workers={}, missing=lambda: missing, hint="")
    assert Readiness(lambda: TWELVE, coordinator, Staging(None, "")).missing() == description


class Waiting:
    """Node 0 while it waits: each service of its workers takes 0.3 s, after which a test may change something."""

    def __init__(self, dns: Dns) -> None:
        self.dns = dns
        self.missing = [1, 2]
        progress = Mock(return_value="30 % of 2.0 GB of data copied")
        self.staging = MagicMock(busy=False, error=None, failure=None, __str__=progress)
        self.stop_request: StopRequest | None = None
        self.events: list[tuple[float, str, str]] = []
        self.changes: dict[int, Callable[[], object]] = {}  # after so many times
        self._served = 0

    def wait(self, limit: float = 60.0) -> Outcome | None:
        coordinator: Any = SimpleNamespace(workers=WORKERS, missing=lambda: self.missing, serve=self._serve, hint="")
        events: Any = SimpleNamespace(
            event=lambda kind, reason: self.events.append((self.dns.clock.seconds, kind, reason))
        )
        source: Any = SimpleNamespace(pending=lambda: self.stop_request)
        readiness = Readiness(lambda: HOSTS, coordinator, self.staging, self.dns.clock, names=True)
        return readiness.wait(limit, events, source)

    def _serve(self, seconds: float) -> None:
        assert seconds < 1, "stop requests are answered in time"
        self.dns.clock.seconds += 0.3
        self._served += 1
        self.changes.get(self._served, lambda: None)()


def test_node_0_waits_until_nothing_is_missing_and_records_for_what_at_most_once_a_second(dns: Dns) -> None:
    waiting = Waiting(dns)
    waiting.changes = {2: lambda: waiting.missing.remove(1), 20: waiting.missing.clear}

    assert waiting.wait() is None

    assert dns.clock.seconds == pytest.approx(106.0)
    assert [(round(time, 1), kind, reason) for time, kind, reason in waiting.events] == [
        (100.3, "waiting", "2 of 3 hosts are not ready yet: run-1, run-2 (limits.start allows 1m)"),
        (101.5, "waiting", "1 of 3 hosts are not ready yet: run-2 (limits.start allows 1m)"),
    ]


def test_hosts_that_do_not_come_within_the_start_limit_end_the_run(dns: Dns) -> None:
    waiting = Waiting(dns)
    reason = "limits.start (2.5s) is over: 2 of 3 hosts are not ready yet: run-1, run-2"
    assert waiting.wait(2.5) == Outcome(NOT_RETRYABLE, reason)
    assert dns.clock.seconds == pytest.approx(102.7)


def test_a_stop_request_ends_the_wait(dns: Dns) -> None:
    waiting = Waiting(dns)
    stopped = Outcome(STOPPED, "enough")
    waiting.changes = {2: lambda: setattr(waiting, "stop_request", StopRequest(stopped, True))}
    assert waiting.wait() == stopped


def test_data_that_is_being_copied_is_waited_for(dns: Dns) -> None:
    waiting = Waiting(dns)
    waiting.missing, waiting.staging.busy = [], True
    waiting.changes = {3: lambda: setattr(waiting.staging, "busy", False)}
    assert waiting.wait() is None
    reason = "node 0: 30 % of 2.0 GB of data copied (limits.start allows 1m)"
    assert [text for _, _, text in waiting.events] == [reason]


def test_data_that_cannot_be_copied_ends_the_attempt_with_the_node_in_the_reason(dns: Dns) -> None:
    waiting = Waiting(dns)
    waiting.missing = []
    failure = Outcome(NOT_RETRYABLE, "data /shared cannot be staged: a reason")
    waiting.staging.failure = failure
    assert waiting.wait() == failure._replace(reason="node 0: data /shared cannot be staged: a reason")


def stop_signal(
    notices: dict[Member, str] | None = None,
    ended: dict[Member, tuple[int, str]] | None = None,
    lost: list[Member] | None = None,
    reason: str | None = None,
    folder: Path | None = None,
    larger: int | None = None,
) -> CoordinatorStopSignal:
    """The stop signal of three nodes: what coordinator and notice (*reason*) of node 0 report."""
    plan = {"grace": 60.0}
    mounts, clock = mounts_below(str(folder or "/nowhere")), SetClock(100.0)
    context: Any = SimpleNamespace(plan=plan, folder="/", mounts=mounts, clock=clock, is_supervised=True)
    context.with_pods = lambda pods: SimpleNamespace(hosts=["a", "b", "c"], remote_launchers=0)
    coordinator: Any = SimpleNamespace(
        notices=notices or {},
        ended=ended or {},
        lost=lambda: lost or [],
        serve=lambda timeout: None,  # nothing arrives
        of_gang=lambda values: values,
        larger_size=lambda: larger,
        pods=NODES[:2] if larger else None,
        name_of=str,
        standby_ready=0,
    )
    notice: Any = SimpleNamespace(reason=reason)
    return CoordinatorStopSignal(context, coordinator, notice)


def values_of(request: StopRequest | None) -> tuple[str, str | None, bool] | None:
    return request and (request.outcome.cause, request.outcome.reason, request.checkpoint_first)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"ended": {NODES[1]: (0, "None")}}, None),
        ({"reason": "the pod got SIGTERM"}, (INTERRUPTION, "node 0: the pod got SIGTERM", True)),
        ({"notices": {NODES[2]: "its pod got SIGTERM"}}, (INTERRUPTION, "node 2: its pod got SIGTERM", True)),
        ({"lost": [NODES[1], NODES[2]]}, (INTERRUPTION, "lost b, c", False)),
        ({"ended": {NODES[1]: (3, "exit code 3")}}, (FAILURE, "node 1: exit code 3", False)),
        ({"ended": {NODES[1]: (78, "wrong key")}}, (NOT_RETRYABLE, "node 1: wrong key", False)),
        ({"ended": {NODES[1]: (3, "exit code 3")}, "lost": [NODES[2]]}, (INTERRUPTION, "lost c", False)),
    ],
)
def test_reports_of_nodes_end_the_attempt(state: dict[str, Any], expected: tuple[str, str, bool] | None) -> None:
    assert values_of(stop_signal(**state).pending()) == expected


@pytest.mark.parametrize(("code", "node"), [(1, 1), (protocol.KILLED, None)])
def test_a_launcher_that_was_killed_tells_nothing_about_its_machine(code: int, node: int | None) -> None:
    request = stop_signal(ended={NODES[1]: (code, "rank 1 failed")}).pending()
    assert request is not None and (request.outcome.cause, request.outcome.node) == (FAILURE, node)


@pytest.mark.parametrize(("checkpoint", "resumed", "grows"), [(None, None, False), (7, None, True), (None, 0, True)])
def test_an_attempt_with_checkpoints_ends_for_more_nodes_after_one(
    checkpoint: int | None, resumed: int | None, grows: bool
) -> None:
    source = stop_signal(larger=4)
    assert source.pending() is None, "it has not started"
    source.progress = cast(Any, SimpleNamespace(checkpoint=checkpoint, resumed=resumed))
    reason = "4 nodes are ready: continues on 4 instead of 2"
    assert values_of(source.pending()) == ((INTERRUPTION, reason, True) if grows else None)


def test_a_stop_by_a_user_comes_first(tmp_path: Path) -> None:
    (tmp_path / "pod").mkdir()
    (tmp_path / "pod" / "annotations").write_text('spotmpi.dev/stop="enough"\n')
    assert values_of(stop_signal(reason="the pod got SIGTERM", folder=tmp_path).pending()) == (STOPPED, "enough", True)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"ended": {NODES[1]: (0, "None")}}, None),
        ({}, None),
        ({"lost": [NODES[1]]}, ("lost b", (1,))),
        ({"lost": [NODES[1]], "notices": {NODES[2]: "the pod got SIGTERM"}}, ("node 2: the pod got SIGTERM", ())),
    ],
)
def test_a_failed_attempt_counts_as_interrupted_where_a_node_is_lost_or_about_to_go(
    state: dict[str, Any], expected: tuple[str, tuple[int, ...]] | None
) -> None:
    interruption = stop_signal(**state).interruption()
    assert (interruption and (interruption.reason, interruption.lost_nodes)) == expected


def test_a_node_that_gave_notice_is_not_lost() -> None:
    assert stop_signal(lost=NODES[1:], notices={NODES[2]: "the pod got SIGTERM"}).lost_nodes() == (1,)


class Noticed:
    """An attempt that trains while nodes get notice: 60 s of grace, of which a checkpoint may need 20."""

    def __init__(self, standby: int = 1, margin: float | None = 20.0) -> None:
        self.clock, self.lines, self.notices, self.ready = SetClock(100.0), list[str](), dict[str, str](), 0
        plan: Any = {"grace": 60.0, "standby": ["c"] * standby} | ({} if margin is None else {"margin": margin})
        self.nodes = NoticedNodes(plan, self.clock, self.lines.append)

    def are_due(self, after: float = 0.0) -> bool:
        self.clock.seconds += after
        return self.nodes.are_due(self.notices, self.ready)


def test_training_goes_on_after_a_notice_until_the_margin_is_left_and_a_line_says_so_once() -> None:
    noticed = Noticed()
    noticed.notices["node 1"] = "the pod of this node received SIGTERM"
    assert [noticed.are_due(), noticed.are_due(39.9), noticed.are_due(0.2)] == [False, False, True]
    assert noticed.lines == [
        "node 1: the pod of this node received SIGTERM; training goes on for 40 s (checkpoint.grace less "
        "checkpoint.margin) or until a pod stands by that takes its place"
    ]


def test_a_pod_that_stands_by_ends_an_attempt_at_once_or_as_soon_as_it_is_ready() -> None:
    noticed = Noticed()
    noticed.notices["node 1"], noticed.ready = "a", 1
    assert noticed.are_due() and not noticed.lines, "there is nothing to wait for"
    noticed = Noticed()
    noticed.notices["node 1"] = "a"
    assert not noticed.are_due(5)
    noticed.ready = 1
    assert noticed.are_due(5)


def test_of_two_notices_the_first_decides_unless_pods_stand_by_for_both() -> None:
    noticed = Noticed(standby=2)
    noticed.notices["node 2"] = "a"
    assert not noticed.are_due()
    noticed.clock.seconds += 30
    noticed.notices["node 1"], noticed.ready = "b", 1
    assert [noticed.are_due(), noticed.are_due(11)] == [False, True]
    noticed.ready = 2
    noticed.clock.seconds -= 5
    assert noticed.are_due() and [line[:6] for line in noticed.lines] == ["node 2", "node 1"]


def test_without_a_margin_a_notice_ends_an_attempt_at_once() -> None:
    noticed = Noticed(standby=0, margin=None)
    noticed.notices["node 1"] = "a"
    assert noticed.are_due() and not noticed.lines
    noticed = Noticed(standby=0)
    noticed.notices["node 1"] = "a"
    assert not noticed.are_due() and noticed.lines == [
        "node 1: a; training goes on for 40 s (checkpoint.grace less checkpoint.margin)"
    ]


def test_an_attempt_knows_the_ranks_that_other_nodes_report(tmp_path: Path) -> None:
    limits = {"start": 60.0}
    plan: Any = {"limits": limits, "launcher": "mpirun", "metrics_pattern": None}
    members: Any = SimpleNamespace(machines={}, pods=None, ranks={NODES[1]: {3: "idle"}}, broadcast=lambda go: None)
    context, attempt = SimpleNamespace(plan=plan, clock=SetClock(0.0)), MagicMock()
    attempt._context, attempt._members, attempt._history.world.rate = context, members, None
    launch = Launch([], {}, str(tmp_path / "pid"))
    assert CoordinatedAttempt._start(attempt, launch).launch.ranks is members.ranks


def test_a_notice_before_ranks_train_ends_an_attempt_at_once() -> None:
    source = stop_signal(notices={NODES[1]: "a"})
    source._noticed = Noticed().nodes
    assert source.pending() is not None
    source.progress = cast(Any, SimpleNamespace(checkpoint=None, resumed=None))
    assert source.pending() is None
    assert source.interruption() is None, "a program that fails meanwhile does so by itself"
