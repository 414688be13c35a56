"""Loopback ports and health addresses of the testbed's programs."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path

from tests.testbed.certificates import Credential


def free_port() -> int:
    """Return a free loopback port."""
    return free_ports(1)[0]


def free_pair() -> int:
    """Return the lower one of two adjacent free loopback ports.

    Both are below 32768, where the ports that the kernel gives to connections begin (ip_local_port_range): it prefers
    even ones for these and odd ones for `free_ports`, so the next one of such a port is often taken.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for each in (port, port + 1):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", each))
            return port


def free_ports(count: int) -> list[int]:
    """Return that many different free loopback ports."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def socket_health(server: Path | tuple[str, int]) -> str:
    """Return "" when somebody listens at a Unix socket, or at a host and port, else the reason why not."""
    family, address = (socket.AF_UNIX, str(server)) if isinstance(server, Path) else (socket.AF_INET, server)
    with socket.socket(family) as connection:
        code = connection.connect_ex(address)
    return os.strerror(code) if code else ""


def http_health(url: str, credential: Credential | None = None) -> str:
    """Return "" when the address answers 200, else the reason why not."""
    context = ssl.create_default_context()
    # Components other than the API server sign their own certificate; this only asks for their health on loopback.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if credential:
        context.load_cert_chain(credential.certificate, credential.key)
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=2):
            return ""
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read(300).decode(errors='replace').strip()}"
    except OSError as error:
        return str(error)
