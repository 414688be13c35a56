"""Real Redis servers with keys, each behind a proxy that delays its requests."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from tests.testbed.daemon import Daemon
from tests.testbed.proxies import Proxy, running_proxies
from tests.testbed.web import socket_health

PREFIXES = ("user", "order", "session")
_CHUNK = 500  # keys of one MSET


def redis_installed() -> bool:
    """Whether there is a redis-server; scripts/redis-packages installs Debian's."""
    return shutil.which("redis-server") is not None


@contextlib.contextmanager
def redis_servers(folder: Path, count: int, keys: int, delay: float, host: str = "127.0.0.1") -> Iterator[list[Proxy]]:
    """Proxies at *host* to servers with so many keys of each prefix; requests take *delay* seconds more."""
    with contextlib.ExitStack() as stack:
        paths = [stack.enter_context(_redis(folder / f"redis-{number}", keys)) for number in range(count)]
        yield stack.enter_context(running_proxies(paths, delay, host))


@contextlib.contextmanager
def _redis(folder: Path, keys: int) -> Iterator[Path]:
    folder.mkdir()
    path = folder / "socket"
    options = {"--port": "0", "--unixsocket": str(path), "--dir": str(folder), "--save": "", "--daemonize": "no"}
    command = ["redis-server", *(word for option in options.items() for word in option)]
    server = Daemon("redis", command, folder)
    with server.running(lambda: socket_health(path), limit=10):
        _fill(path, keys)
        yield path


def _fill(path: Path, keys: int) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        names = [f"{prefix}:{number}" for prefix in PREFIXES for number in range(keys)]
        for first in range(0, len(names), _CHUNK):
            connection.sendall(f"MSET {' '.join(f'{name} 1' for name in names[first : first + _CHUNK])}\r\n".encode())
            assert connection.recv(100) == b"+OK\r\n"
