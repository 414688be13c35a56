"""What node 0 waits for before it launches: a name that still leads to the pod of before is not there yet."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotmpi.agent import arrival, network, ssh
from spotmpi.agent.arrival import Arrival
from spotmpi.agent.staging import Staging

HOSTS = ["run-0", "run-1", "run-2"]
NEW = {1: "10.0.0.11", 2: "10.0.0.12"}


class Dns:
    """Names and their addresses, and the time, all as a test sets them."""

    def __init__(self) -> None:
        self.says = {"run-0": {"10.0.0.10"}, "run-1": {NEW[1]}, "run-2": {NEW[2]}}
        self.now = 100.0


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Dns:
    dns = Dns()
    monkeypatch.setattr(network, "addresses", lambda host: dns.says.get(host, set()))
    monkeypatch.setattr(arrival, "time", SimpleNamespace(monotonic=lambda: dns.now))
    return dns


def arriving(missing: tuple[int, ...] = ()) -> Arrival:
    workers = {node: SimpleNamespace(address=address) for node, address in NEW.items() if node not in missing}
    hub: Any = SimpleNamespace(workers=workers, missing=lambda: list(missing))
    return Arrival(HOSTS, hub, Staging(None))


def test_all_are_there_when_every_name_leads_to_its_pod(dns: Dns) -> None:
    here = arriving()

    assert here.awaited() is None
    assert here.addresses == {"run-1": NEW[1], "run-2": NEW[2]}


def test_hosts_that_are_missing_are_named(dns: Dns) -> None:
    assert arriving(missing=(2,)).awaited() == "1 of 3 hosts are not ready yet: run-2"


def test_a_name_that_leads_to_the_pod_of_before_is_waited_for(dns: Dns) -> None:
    here, unknown = arriving(), "1 of 3 hosts are not known to DNS by their address yet: run-1"
    dns.says["run-1"] = {"10.0.0.1"}
    assert here.awaited() == unknown
    dns.now += arrival.PATIENCE / 2
    assert here.awaited() == unknown

    dns.says["run-1"] = {"10.0.0.1", NEW[1]}

    assert here.awaited() is None
    assert here.addresses["run-1"] == NEW[1], "whatever DNS says first"


def test_where_addresses_are_translated_names_count_after_a_while(dns: Dns) -> None:
    here = arriving()
    dns.says["run-1"] = {"192.168.7.7"}
    assert here.awaited() is not None

    dns.now += arrival.PATIENCE + 1

    assert here.awaited() is None
    assert here.addresses == {"run-2": NEW[2]}


@pytest.mark.parametrize("host", HOSTS)
def test_a_name_without_any_address_is_waited_for_as_long_as_it_takes(dns: Dns, host: str) -> None:
    here = arriving()
    dns.says[host] = set()
    assert here.awaited() is not None

    dns.now += 10 * arrival.PATIENCE

    assert here.awaited() == f"1 of 3 hosts are not known to DNS by their address yet: {host}"


def test_ssh_connects_to_the_address_that_a_host_came_from(tmp_path: Path) -> None:
    ssh.pin(str(tmp_path), {"run-1": NEW[1]})

    def told(host: str) -> dict[str, str]:
        command = ["ssh", "-G", "-F", str(tmp_path / "ssh_config"), host]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return dict(line.split(" ", 1) for line in said.splitlines() if " " in line)

    assert told("run-1")["hostname"] == NEW[1] and told("run-2")["hostname"] == "run-2"
    assert {told(host)["port"] for host in HOSTS} == {"2222"}
    assert {told(host)["stricthostkeychecking"] for host in HOSTS} == {"true"}
