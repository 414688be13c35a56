"""The interface that leads to a peer, and the addresses of a host."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from spotmpi.agent import network


def test_the_interface_of_an_address_is_found_without_sending_anything() -> None:
    assert network.interface_towards("127.0.0.1") == "lo"


def test_an_address_that_no_interface_has_is_an_error_with_both_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "no-such-device")])
    with pytest.raises(OSError) as error:
        network.interface_towards("127.0.0.2")
    assert str(error.value).startswith("no interface has the address 127.0.0.")
    assert str(error.value).endswith("from which 127.0.0.2 is reached")


def test_a_host_has_all_addresses_that_its_name_resolves_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: Any, **options: Any) -> list[Any]:
        addresses = {"run-0": ["10.0.0.1", "10.0.0.2"]}
        if host not in addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        assert options == {"type": socket.SOCK_DGRAM}, "each address once"
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (address, port or 0)) for address in addresses[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert network.addresses("run-0") == {"10.0.0.1", "10.0.0.2"}
    assert network.addresses("run-1") == set()
