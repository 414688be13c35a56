"""Real Redis servers with keys, each behind a proxy that delays its requests."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

PREFIXES = ("user", "order", "session")
_CHUNK = 500  # keys of one MSET


def redis_installed() -> bool:
    """Whether there is a redis-server; scripts/redis-packages installs Debian's."""
    return shutil.which("redis-server") is not None


@contextlib.contextmanager
def redis_servers(folder: Path, count: int, keys: int, delay: float) -> Iterator[list[str]]:
    """The addresses of servers with so many keys of each prefix; requests to them take *delay* seconds more."""
    with contextlib.ExitStack() as stack:
        paths = [stack.enter_context(_redis(folder / f"redis-{number}", keys)) for number in range(count)]
        yield stack.enter_context(_delaying_proxies(paths, delay))


@contextlib.contextmanager
def _redis(folder: Path, keys: int) -> Iterator[Path]:
    folder.mkdir()
    path = folder / "socket"
    options = {"--port": "0", "--unixsocket": str(path), "--dir": str(folder), "--save": "", "--daemonize": "no"}
    command = ["redis-server", *(word for option in options.items() for word in option)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            _fill(path, keys)
            yield path
        finally:
            process.kill()


def _fill(path: Path, keys: int) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        for _ in range(200):
            with contextlib.suppress(OSError):
                connection.connect(str(path))
                break
            time.sleep(0.05)
        names = [f"{prefix}:{number}" for prefix in PREFIXES for number in range(keys)]
        for first in range(0, len(names), _CHUNK):
            connection.sendall(f"MSET {' '.join(f'{name} 1' for name in names[first : first + _CHUNK])}\r\n".encode())
            assert connection.recv(100) == b"+OK\r\n"


@contextlib.contextmanager
def _delaying_proxies(paths: list[Path], delay: float) -> Iterator[list[str]]:
    """The addresses on this machine of proxies to these sockets."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def listen() -> list[str]:
        servers = [await asyncio.start_server(_Proxy(path, delay), "127.0.0.1", 0) for path in paths]
        return [f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]

    try:
        yield asyncio.run_coroutine_threadsafe(listen(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


class _Proxy:
    """Handles the connections of a proxy."""

    def __init__(self, path: Path, delay: float) -> None:
        self._path, self._delay = path, delay

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(str(self._path))
        answers = asyncio.ensure_future(_copy(server_reader, writer, 0.0))
        await _copy(reader, server_writer, self._delay)
        await answers


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            await asyncio.sleep(delay)
            writer.write(data)
            await writer.drain()
    writer.close()
