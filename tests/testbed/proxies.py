"""TCP proxies on this machine, which delay what they pass on, and can cut it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

Server = Path | tuple[str, int]  # a Unix socket, or host and port


class Proxy:
    """A port that leads to *server*; requests to it take *delay* seconds more. Use `running_proxies`."""

    def __init__(self, server: Server, delay: float, loop: asyncio.AbstractEventLoop) -> None:
        self._server, self._delay, self._loop = server, delay, loop
        self._writers: set[asyncio.StreamWriter] = set()
        self._refuses = False
        self._listener: asyncio.Server | None = None
        self.address = ""
        self.accepted = 0  # connections so far

    async def listen(self, host: str, port: int = 0) -> None:
        """Accept connections from now on."""
        self._listener = await asyncio.start_server(self._connect, host, port)
        self.address = f"{host}:{self._listener.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """Accept no more connections."""
        if self._listener is not None:
            self._listener.close()

    def cut(self) -> int:
        """Break all connections off, and those to come until `mend`; how many were open."""
        return asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(10)

    def mend(self) -> None:
        """Pass connections on again."""
        self._refuses = False

    async def _cut(self) -> int:
        self._refuses = True
        for writer in self._writers:
            writer.transport.abort()
        return len(self._writers) // 2

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        self.accepted += 1
        if isinstance(self._server, Path):
            server_reader, server_writer = await asyncio.open_unix_connection(str(self._server))
        else:
            server_reader, server_writer = await asyncio.open_connection(*self._server)
        both = {writer, server_writer}
        self._writers |= both
        answers = asyncio.ensure_future(_copy(server_reader, writer, 0.0))
        await _copy(reader, server_writer, self._delay)
        await answers
        self._writers -= both


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            await asyncio.sleep(delay)
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.contextmanager
def running_proxies(
    servers: Sequence[Server], delay: float = 0.0, host: str = "127.0.0.1", port: int = 0
) -> Iterator[list[Proxy]]:
    """A proxy to each server, at a free port of *host*, or at *port*."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    proxies = [Proxy(server, delay, loop) for server in servers]
    try:
        for proxy in proxies:
            asyncio.run_coroutine_threadsafe(proxy.listen(host, port), loop).result(10)
        yield proxies
    finally:
        for proxy in proxies:
            loop.call_soon_threadsafe(proxy.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
