"""Which network interface leads to a peer, so that MPI, NCCL and Gloo all use the one that works."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
_IPV6_TABLE = "/proc/net/if_inet6"  # address, index, prefix, scope, flags, name; only where the kernel has IPv6
_BACKLOG = 1024
_DISCARD = 9  # the port of RFC 863: any would do, as nothing is sent
_UNKNOWN = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))  # not that no server answered


def listen(port: int) -> socket.socket:
    """A listener for both families of addresses, or for IPv4 alone where the machine has no other."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # of a kernel or container without IPv6
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=_BACKLOG)


def interface_towards(host: str) -> str:
    """The name of the interface through which packets to *host* leave; nothing is sent.

    Raises:
        OSError: the host has no address or there is no route to it.
    """
    own = address_towards(host)
    for _, name in socket.if_nameindex():
        if own in (_address(name), *_ipv6_addresses(name)):
            return name
    raise OSError("no interface has the address %s, from which %s is reached" % (own, host))


def address_towards(host: str) -> str:
    """The own address from which packets to *host* leave; nothing is sent.

    Raises:
        OSError: the host has no address or there is no route to it.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, _DISCARD, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def own_address() -> str | None:
    """The address to which the own host name leads, in pods that of the pod by /etc/hosts; None if it leads to none."""
    return min(addresses(socket.gethostname()), default=None)


def addresses(host: str) -> set[str]:
    """The addresses to which the host's name resolves; empty if it does not."""
    try:
        return {str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)}
    except OSError:
        return set()


def has_no_address(host: str) -> bool:
    """Whether the host's name has no address; False also where the name service does not answer."""
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except socket.gaierror as error:
        return error.errno in _UNKNOWN
    except OSError:
        pass
    return False


def _address(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            packed = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(packed[20:24])


def _ipv6_addresses(name: str) -> list[str]:
    """The IPv6 addresses of an interface, for which there is no such request."""
    try:
        with open(_IPV6_TABLE, encoding="utf-8") as table:
            rows = [line.split() for line in table]
    except FileNotFoundError:
        return []
    return [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0])) for row in rows if row[5] == name]
