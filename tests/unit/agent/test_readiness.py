"""What node 0 waits for before it launches: a name that still resolves to the previous pod is not ready."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotmpi.agent import network, readiness, ssh
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

    dns.now += readiness.DNS_GRACE + 1

    assert state.missing() is None
    assert state.addresses == {"run-2": NEW[2]}


@pytest.mark.parametrize("host", HOSTS)
def test_a_name_without_any_address_is_waited_for_as_long_as_it_takes(dns: Dns, host: str) -> None:
    state = expecting()
    dns.addresses[host] = set()
    assert state.missing() is not None

    dns.now += 10 * readiness.DNS_GRACE

    assert state.missing() == f"1 of 3 hosts are not in DNS with their address yet: {host}"


def test_ssh_connects_to_the_address_from_which_a_host_connected(tmp_path: Path) -> None:
    ssh.pin(str(tmp_path), {"run-1": NEW[1]})

    def ssh_options(host: str) -> dict[str, str]:
        command = ["ssh", "-G", "-F", str(tmp_path / "ssh_config"), host]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return dict(line.split(" ", 1) for line in output.splitlines() if " " in line)

    assert ssh_options("run-1")["hostname"] == NEW[1] and ssh_options("run-2")["hostname"] == "run-2"
    assert {ssh_options(host)["port"] for host in HOSTS} == {"2222"}
    assert {ssh_options(host)["stricthostkeychecking"] for host in HOSTS} == {"true"}
