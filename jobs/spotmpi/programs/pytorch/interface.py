"""The network interface by which a peer is reached."""

import fcntl
import socket
import struct

_GET_ADDRESS = 0x8915  # SIOCGIFADDR, Linux


def local_interface(peer: str) -> str | None:
    """The name of the interface that leads to *peer*, or None where the system does not tell."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((peer, 9))  # sends nothing, only asks the routing table
            address = probe.getsockname()[0]
            names = [name for _, name in socket.if_nameindex()]
            return next((name for name in names if _address(probe, name) == address), None)
    except OSError:
        return None


def _address(probe: socket.socket, name: str) -> str | None:
    request = struct.pack("256s", name.encode()[:15])
    try:
        answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)
    except OSError:
        return None
    return socket.inet_ntoa(answer[20:24])
