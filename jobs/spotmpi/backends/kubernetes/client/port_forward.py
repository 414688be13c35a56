"""Forwards a port of this machine to a port of a pod through the API server, as `kubectl port-forward` does.

Each connection has a WebSocket of its own, with the subprotocol ``v4.channel.k8s.io``: every message starts with a byte
that is its channel, 0 for data and 1 for an error, and the first message of each channel is the port
(kubernetes, ``pkg/kubelet`` and ``staging/src/k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go``). There is no
message for the end of one direction only: where one side closes its half, the whole connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

import httpx2
from lightkube import ApiError

from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.wording import print_message

if TYPE_CHECKING:
    from httpx2.websockets import AsyncWebSocketSession

_SUBPROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_CHUNK = 1 << 16  # bytes of a message
_LONGEST = 1 << 20  # bytes of a message from the cluster
_NOT_PERMITTED = (
    "no permission to forward ports to pods: the user's role needs the verbs get and create for pods/portforward"
)

FindPod = Callable[[], Awaitable[str]]


class PortForward:
    """A port of 127.0.0.1 that leads to *remote* in the pod that *find_pod* names; use `forward_port`.

    The pod is looked up for each connection, so a pod that replaces another is reached without a new port. A connection
    that cannot be carried on is closed. A missing permission is printed once: to Dask it is only a closed port.
    """

    def __init__(self, api: ClusterApi, find_pod: FindPod, remote: int, http: httpx2.AsyncClient) -> None:
        self._api, self._find_pod, self._remote, self._http = api, find_pod, remote, http
        self._connections: set[asyncio.Task[None]] = set()
        self._refused = False
        self.port = 0

    async def open(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """End the port and all its connections."""
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._connect(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection to the pod and back."""
        from httpx2.websockets import HTTPXWSException, WebSocketUpgradeError  # 50 ms that few commands need

        try:
            pod = await self._find_pod()
            path = f"/api/v1/namespaces/{self._api.namespace}/pods/{pod}/portforward"
            async with self._http.websocket(
                path, params={"ports": self._remote}, subprotocols=[_SUBPROTOCOL], max_message_size_bytes=_LONGEST
            ) as socket:
                await _carry(reader, writer, socket)
        except WebSocketUpgradeError as error:
            if error.response.status_code == HTTPStatus.FORBIDDEN and not self._refused:
                self._refused = True
                print_message(_NOT_PERMITTED)
        except (httpx2.HTTPError, HTTPXWSException, ApiError, SpotmpiError, OSError):
            pass  # as of a pod that has gone: whoever has connected connects again
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def forward_port(api: ClusterApi, find_pod: FindPod, remote: int) -> AsyncIterator[PortForward]:
    """In the context, the returned `PortForward` accepts connections; `portal.serve` runs it behind ordinary code."""
    async with api.http_client() as http:
        forward = PortForward(api, find_pod, remote, http)
        await forward.open()
        try:
            yield forward
        finally:
            await forward.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, socket: AsyncWebSocketSession) -> None:
    """Carry data both ways until one side ends."""
    directions = {asyncio.create_task(_send(reader, socket)), asyncio.create_task(_receive(socket, writer))}
    try:
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)


async def _send(reader: asyncio.StreamReader, socket: AsyncWebSocketSession) -> None:
    while data := await reader.read(_CHUNK):
        await socket.send_bytes(bytes((_DATA,)) + data)


async def _receive(socket: AsyncWebSocketSession, writer: asyncio.StreamWriter) -> None:
    """Write what the pod sends to *writer* until an end closes, or the pod reports an error."""
    started = set()
    while True:
        message = await socket.receive_bytes()
        channel, data = message[0], message[1:]
        if channel not in started:
            started.add(channel)  # the port
        elif channel == _ERROR:
            return
        else:
            writer.write(data)
            await writer.drain()
