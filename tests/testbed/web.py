"""Loopback ports, servers in threads, and health addresses of the testbed's programs."""

from __future__ import annotations

import collections
import contextlib
import os
import random
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import HTTPServer
from pathlib import Path

from tests.testbed.certificates import Credential

_names = collections.deque[int]()  # descriptors that keep the names of this process's newest ports


def free_port() -> int:
    """Return a free loopback port."""
    return free_ports(1)[0]


def free_pair() -> int:
    """Return the lower one of two adjacent free loopback ports."""
    return _free(2)


def free_ports(count: int) -> list[int]:
    """Return that many different free loopback ports."""
    return [_free(1) for _ in range(count)]


def _free(count: int) -> int:
    """The first of so many adjacent ports that nobody has, nor any other process of these tests may get for a while.

    All are below 32768, where the ports that the kernel gives to connections begin (ip_local_port_range): one of those
    can be that of a connection once its user binds it.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        numbers = range(port, port + count)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            names = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in numbers]
            for name, number in zip(names, numbers, strict=True):
                name.bind(f"\0spotmpi-tests-port-{number}")  # of one process at a time
                stack.enter_context(socket.socket()).bind(("127.0.0.1", number))
            _names.extend(os.dup(name.fileno()) for name in names)
            while len(_names) > 64:
                os.close(_names.popleft())
            return port


@contextlib.contextmanager
def answering(server: HTTPServer) -> Iterator[str]:
    """Let *server* answer on 127.0.0.1, in a thread, until the end of the block; its host and port."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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
