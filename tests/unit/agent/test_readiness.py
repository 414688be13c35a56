"""What node 0 waits for before it launches: a name that still resolves to the previous pod is not ready."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotmpi.agent import network, protocol, readiness, ssh
from spotmpi.agent.outcomes import NOT_RETRYABLE, STOPPED, Outcome, StopRequest
from spotmpi.agent.readiness import Readiness
from spotmpi.agent.staging import Staging

HOSTS = ["run-0", "run-1", "run-2"]
NEW = {1: "10.0.0.11", 2: "10.0.0.12"}


class Dns:
    """Names and their addresses, and the time, all as a test sets them."""

    def __init__(self) -> None:
        self.addresses = {"run-0": {"10.0.0.10"}, "run-1": {NEW[1]}, "run-2": {NEW[2]}}
        self.now = 100.0


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Dns:
    dns = Dns()
    monkeypatch.setattr(network, "addresses", lambda host: dns.addresses.get(host, set()))
    monkeypatch.setattr(readiness, "time", SimpleNamespace(monotonic=lambda: dns.now))
    return dns


def expecting(missing: tuple[int, ...] = ()) -> Readiness:
    workers = {node: SimpleNamespace(address=address) for node, address in NEW.items() if node not in missing}
    coordinator: Any = SimpleNamespace(workers=workers, missing=lambda: list(missing))
    return Readiness(HOSTS, coordinator, Staging(None))


def test_nothing_is_missing_when_every_name_resolves_to_its_pod(dns: Dns) -> None:
    state = expecting()

    assert state.missing() is None
    assert state.addresses == {"run-1": NEW[1], "run-2": NEW[2]}


def test_hosts_that_are_missing_are_named(dns: Dns) -> None:
    assert expecting(missing=(2,)).missing() == "1 of 3 hosts are not ready yet: run-2"


def test_a_name_that_resolves_to_the_previous_pod_is_waited_for(dns: Dns) -> None:
    state, unresolved = expecting(), "1 of 3 hosts are not in DNS with their address yet: run-1"
    dns.addresses["run-1"] = {"10.0.0.1"}
    assert state.missing() == unresolved
    dns.now += readiness.DNS_GRACE / 2
    assert state.missing() == unresolved

    dns.addresses["run-1"] = {"10.0.0.1", NEW[1]}

    assert state.missing() is None
    assert state.addresses["run-1"] == NEW[1], "whatever DNS says first"


def test_where_addresses_are_translated_names_count_after_a_while(dns: Dns) -> None:
    state = expecting()
    dns.addresses["run-1"] = {"192.168.7.7"}
    assert state.missing() is not None

    dns.now += readiness.DNS_GRACE

    assert state.missing() is None
    assert state.addresses == {"run-2": NEW[2]}


@pytest.mark.parametrize("host", HOSTS)
def test_a_name_without_any_address_is_waited_for_as_long_as_it_takes(dns: Dns, host: str) -> None:
    state = expecting()
    dns.addresses[host] = set()
    assert state.missing() is not None

    dns.now += 10 * readiness.DNS_GRACE

    assert state.missing() == f"1 of 3 hosts are not in DNS with their address yet: {host}"


def test_of_many_missing_hosts_the_first_eight_are_named(dns: Dns) -> None:
    hosts = [f"run-{node}" for node in range(12)]

    def description(missing: int) -> str | None:
        coordinator: Any = SimpleNamespace(workers={}, missing=lambda: list(range(12 - missing, 12)))
        return Readiness(hosts, coordinator, Staging(None)).missing()

    assert description(8) == f"8 of 12 hosts are not ready yet: {', '.join(hosts[4:])}"
    assert description(9) == f"9 of 12 hosts are not ready yet: {', '.join(hosts[3:11])} ..."


class ScriptedStaging:
    """A copy of data in the state that a test sets."""

    def __init__(self) -> None:
        self.busy = False
        self.failure: Outcome | None = None

    @property
    def error(self) -> str | None:
        return self.failure and self.failure.reason

    def __str__(self) -> str:
        return "30 % of 2.0 GB of data copied"


class Waiting:
    """Node 0 while it waits: each service of its workers takes 0.3 s, after which a test may change something."""

    def __init__(self, dns: Dns) -> None:
        self.dns = dns
        self.missing = [1, 2]
        self.staging = ScriptedStaging()
        self.stop_request: StopRequest | None = None
        self.events: list[tuple[float, str, str]] = []
        self.changes: dict[int, Callable[[], object]] = {}  # after so many times
        self._served = 0

    def wait(self, limit: float = 60.0) -> Outcome | None:
        workers = {node: SimpleNamespace(address=address) for node, address in NEW.items()}
        coordinator: Any = SimpleNamespace(workers=workers, missing=lambda: self.missing, serve=self._serve)
        staging: Any = self.staging
        events: Any = SimpleNamespace(event=lambda kind, reason: self.events.append((self.dns.now, kind, reason)))
        source: Any = SimpleNamespace(pending=lambda: self.stop_request)
        return Readiness(HOSTS, coordinator, staging).wait(limit, events, source)

    def _serve(self, seconds: float) -> None:
        assert seconds < 1, "stop requests are answered in time"
        self.dns.now += 0.3
        self._served += 1
        self.changes.get(self._served, lambda: None)()


def test_node_0_waits_until_nothing_is_missing_and_records_for_what(dns: Dns) -> None:
    waiting = Waiting(dns)
    waiting.changes = {5: lambda: waiting.missing.remove(1), 6: lambda: waiting.missing.remove(2)}

    assert waiting.wait() is None

    assert float(dns.now) == pytest.approx(101.8)
    assert [event[0] for event in waiting.events] == pytest.approx([100.3, 101.5])
    assert [event[1:] for event in waiting.events] == [
        ("waiting", "2 of 3 hosts are not ready yet: run-1, run-2"),
        ("waiting", "1 of 3 hosts are not ready yet: run-2"),
    ]


def test_what_is_missing_is_recorded_at_most_once_a_second_and_only_when_it_changes(dns: Dns) -> None:
    waiting = Waiting(dns)
    waiting.changes = {2: lambda: waiting.missing.remove(1), 20: waiting.missing.clear}

    assert waiting.wait() is None

    assert [(round(time, 1), reason[:1]) for time, _, reason in waiting.events] == [(100.3, "2"), (101.5, "1")]


def test_hosts_that_do_not_come_within_the_start_limit_end_the_run(dns: Dns) -> None:
    waiting = Waiting(dns)
    reason = "limits.start (2.5s) is over: 2 of 3 hosts are not ready yet: run-1, run-2"
    assert waiting.wait(2.5) == Outcome(NOT_RETRYABLE, reason, protocol.NOT_RETRYABLE)
    assert dns.now == pytest.approx(102.7)


def test_a_stop_request_ends_the_wait(dns: Dns) -> None:
    waiting = Waiting(dns)
    stopped = Outcome(STOPPED, "enough", 0)
    waiting.changes = {2: lambda: setattr(waiting, "stop_request", StopRequest(stopped, True))}
    assert waiting.wait() == stopped


def test_data_that_is_being_copied_is_waited_for(dns: Dns) -> None:
    waiting = Waiting(dns)
    waiting.missing, waiting.staging.busy = [], True
    waiting.changes = {3: lambda: setattr(waiting.staging, "busy", False)}

    assert waiting.wait() is None

    assert [reason for _, _, reason in waiting.events] == ["node 0: 30 % of 2.0 GB of data copied"]


def test_data_that_cannot_be_copied_ends_the_attempt_with_the_node_in_the_reason(dns: Dns) -> None:
    waiting = Waiting(dns)
    waiting.missing = []
    failure = Outcome(NOT_RETRYABLE, "data /shared cannot be staged: a reason", protocol.NOT_RETRYABLE)
    waiting.staging.failure = failure
    assert waiting.wait() == failure._replace(reason="node 0: data /shared cannot be staged: a reason")


def test_ssh_connects_to_the_address_from_which_a_host_connected(tmp_path: Path) -> None:
    ssh.pin(str(tmp_path), {"run-1": NEW[1]})

    def ssh_options(host: str) -> dict[str, str]:
        command = ["ssh", "-G", "-F", str(tmp_path / "ssh_config"), host]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return dict(line.split(" ", 1) for line in output.splitlines() if " " in line)

    assert ssh_options("run-1")["hostname"] == NEW[1] and ssh_options("run-2")["hostname"] == "run-2"
    assert {ssh_options(host)["port"] for host in HOSTS} == {"2222"}
    assert {ssh_options(host)["stricthostkeychecking"] for host in HOSTS} == {"true"}
