"""Which network interface leads to a peer, so that MPI, NCCL and Gloo all use the one that works."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915


def interface_towards(host: str, port: int = 9) -> str:
    """The name of the interface through which packets to *host* leave; nothing is sent.

    Raises:
        OSError: the host has no address or there is no route to it.
    """
    own = address_towards(host, port)
    for _, name in socket.if_nameindex():
        if _address(name) == own:
            return name
    raise OSError("no interface has the address %s, from which %s is reached" % (own, host))


def address_towards(host: str, port: int = 9) -> str:
    """The own address from which packets to *host* leave; nothing is sent.

    Raises:
        OSError: the host has no address or there is no route to it.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def addresses(host: str) -> set[str]:
    """The addresses to which the host's name resolves; empty if it does not."""
    try:
        return {str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)}
    except OSError:
        return set()


def _address(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            packed = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(packed[20:24])
