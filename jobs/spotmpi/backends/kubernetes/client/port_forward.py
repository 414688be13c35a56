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
from typing import TYPE_CHECKING

import httpx2
from lightkube import ApiError

from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.client.errors import reason_of_end
from spotmpi.core.errors import SpotmpiError

if TYPE_CHECKING:
    from httpx2.websockets import AsyncWebSocketSession

_SUBPROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_CHUNK = 1 << 16  # bytes of a message
_LONGEST = 1 << 20  # bytes of a message from the cluster

FindPod = Callable[[], Awaitable[str]]


class PortForward:
    """A port of 127.0.0.1 that leads to *remote* in the pod that *find_pod* names; use `forward_port`.

    The pod is looked up for each connection, so a pod that replaces another is reached without a new port. A connection
    that cannot be carried on is closed; `failure` is the latest reason for that, or None.
    """

    def __init__(self, api: ClusterApi, find_pod: FindPod, remote: int, http: httpx2.AsyncClient) -> None:
        self._api, self._find_pod, self._remote, self._http = api, find_pod, remote, http
        self._connections: set[asyncio.Task[None]] = set()
        self.failure: str | None = None
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
        """Carry one connection to the pod and back; ``failure`` says why that was not possible."""
        from httpx2.websockets import HTTPXWSException, WebSocketUpgradeError  # 50 ms that few commands need

        try:
            pod = await self._find_pod()
            path = f"/api/v1/namespaces/{self._api.namespace}/pods/{pod}/portforward"
            async with self._http.websocket(
                path, params={"ports": self._remote}, subprotocols=[_SUBPROTOCOL], max_message_size_bytes=_LONGEST
            ) as socket:
                failure = await _carry(reader, writer, socket)
            self.failure = failure and f"pod {pod}: {failure}"
        except WebSocketUpgradeError as error:
            self.failure = await _refusal(error.response)
        except (httpx2.HTTPError, HTTPXWSException, ApiError, SpotmpiError, OSError) as error:
            self.failure = str(error) or repr(error)
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


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, socket: AsyncWebSocketSession
) -> str | None:
    """Carry data both ways until one side ends; the reason where that is an error."""
    directions = {asyncio.create_task(_send(reader, socket)), asyncio.create_task(_receive(socket, writer))}
    try:
        done, _ = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        return next((failure for each in done if (failure := each.result())), None)
    finally:
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)


async def _send(reader: asyncio.StreamReader, socket: AsyncWebSocketSession) -> str | None:
    from httpx2.websockets import HTTPXWSException

    try:
        while data := await reader.read(_CHUNK):
            await socket.send_bytes(bytes((_DATA,)) + data)
    except ConnectionError:
        return None  # the local side is gone
    except HTTPXWSException as error:
        return f"the connection broke off{reason_of_end(error)}"
    return None


async def _receive(socket: AsyncWebSocketSession, writer: asyncio.StreamWriter) -> str | None:
    """Write what the pod sends to *writer* until an end closes; why it failed, or None."""
    from httpx2.websockets import HTTPXWSException, WebSocketDisconnect

    started = set()
    try:
        while True:
            message = await socket.receive_bytes()
            channel, data = message[0], message[1:]
            if channel not in started:
                started.add(channel)  # the port
            elif channel == _ERROR:
                return data.decode("utf-8", "replace")
            else:
                writer.write(data)
                await writer.drain()
    except (WebSocketDisconnect, ConnectionError):
        return None  # the pod's side has ended, or the local one
    except HTTPXWSException as error:
        return f"the connection broke off{reason_of_end(error)}"


async def _refusal(response: httpx2.Response) -> str:
    """Why the API server does not forward ports, with the remedy where permission is missing."""
    if response.status_code == 403:
        return "no permission to forward ports: the role needs the verbs get and create for pods/portforward"
    with contextlib.suppress(httpx2.HTTPError, httpx2.StreamError):
        await response.aread()
        return f"the API server refused to forward a port ({response.status_code}): {response.text.strip()}"
    return f"the API server refused to forward a port ({response.status_code})"
