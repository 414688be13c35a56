"""The local port that leads to a pod, over a real WebSocket; the server speaks as an API server and kubelet 1.35 do.

What the server sends was read off a cluster: on each channel the port first, as two bytes; on the error channel one
message for a port on which nothing listens, after which the connection ends.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import httpx2
import pytest
from wsproto import WSConnection
from wsproto.connection import ConnectionType
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, RejectConnection, RejectData, Request

from spotmpi.backends.kubernetes.client.port_forward import PortForward, forward_port
from spotmpi.backends.kubernetes.client.portal import serve

OPEN_PORT = 8786
PORT_MESSAGES = b"\x00\x52\x22", b"\x01\x52\x22"
REFUSED = "failed to connect to localhost:9 inside namespace: connect: connection refused"


class ApiServer:
    """Forwards to an echo on OPEN_PORT of any pod; other ports are refused; a *forbidden* user gets 403."""

    def __init__(self) -> None:
        self.forbidden = False
        self.requests: list[str] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = WSConnection(ConnectionType.SERVER)
        while data := await reader.read(1 << 16):
            peer.receive_data(data)
            for event in peer.events():
                writer.write(b"".join(peer.send(answer) for answer in self._answers(event)))
                if isinstance(event, CloseConnection):
                    writer.close()
                    return

    def _answers(self, event: object) -> list[Any]:
        if isinstance(event, Request):
            self.requests.append(event.target)
            if self.forbidden:
                return [RejectConnection(status_code=403, has_body=True), RejectData(data=b"forbidden")]
            opened: list[Any] = [AcceptConnection(subprotocol=event.subprotocols[0])]
            opened += [BytesMessage(data=message) for message in PORT_MESSAGES]
            if f"ports={OPEN_PORT}" in event.target:
                return opened
            return [*opened, BytesMessage(data=b"\x01" + REFUSED.encode()), CloseConnection(code=1000)]
        if isinstance(event, BytesMessage):
            return [BytesMessage(data=event.data, message_finished=event.message_finished)]
        return []


class Api:
    """What `forward_port` needs of a `ClusterApi`."""

    namespace = "lab"

    def __init__(self, port: int) -> None:
        self._port = port

    def http_client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{self._port}")


@asynccontextmanager
async def listening(server: ApiServer) -> AsyncIterator[ApiServer]:
    """The API server on a port of its own."""
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    yield server
    listener.close()


@pytest.fixture
def forwarding_server() -> Iterator[ApiServer]:
    with serve(listening(ApiServer())) as server:
        yield server


Forward = Callable[..., AbstractContextManager[PortForward]]


@pytest.fixture
def forward(forwarding_server: ApiServer) -> Forward:
    pods = iter(["node-0-0-abcde", "node-0-0-fghij", "node-0-0-klmno"])

    async def find_pod() -> str:
        return next(pods)

    def start(remote: int = OPEN_PORT) -> AbstractContextManager[PortForward]:
        api: Any = Api(forwarding_server.port)
        return serve(forward_port(api, find_pod, remote))

    return start


def connect(forwarded: PortForward) -> socket.socket:
    return socket.create_connection(("127.0.0.1", forwarded.port), timeout=10)


def read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := connection.recv(1 << 16)):
        data += more
    return data


def test_bytes_of_any_size_and_value_arrive_both_ways_in_order(forward: Forward, forwarding_server: ApiServer) -> None:
    sent = bytes(range(256)) * 1000
    with forward() as forwarded, connect(forwarded) as connection:
        for part in (b"hello", sent):
            connection.sendall(part)
            assert read(connection, len(part)) == part
        assert forwarded.failure is None
    (request,) = forwarding_server.requests
    assert request == f"/api/v1/namespaces/lab/pods/node-0-0-abcde/portforward?ports={OPEN_PORT}"


def test_each_connection_is_its_own_and_goes_to_the_pod_of_its_time(
    forward: Forward, forwarding_server: ApiServer
) -> None:
    with forward() as forwarded, connect(forwarded) as first, connect(forwarded) as second:
        first.sendall(b"first")
        second.sendall(b"second")
        assert (read(second, 6), read(first, 5)) == (b"second", b"first")
        first.close()
        second.sendall(b"more")
        assert read(second, 4) == b"more"
    assert sorted(path.split("/")[6] for path in forwarding_server.requests) == ["node-0-0-abcde", "node-0-0-fghij"]


@pytest.mark.parametrize(
    ("port", "forbidden", "failure"),
    [
        (9, False, f"pod node-0-0-abcde: {REFUSED}"),
        (
            OPEN_PORT,
            True,
            "no permission to forward ports: the role needs the verbs get and create for pods/portforward",
        ),
    ],
    ids=["port without a listener", "user without the permission"],
)
def test_a_connection_that_is_refused_ends_with_the_reason(
    forward: Forward, forwarding_server: ApiServer, port: int, forbidden: bool, failure: str
) -> None:
    forwarding_server.forbidden = forbidden
    with forward(port) as forwarded, connect(forwarded) as connection:
        assert connection.recv(1) == b""
        assert forwarded.failure == failure


def test_closing_the_port_ends_its_connections_and_leaves_nothing_behind(forward: Forward) -> None:
    with forward() as forwarded:
        connection = connect(forwarded)
        connection.sendall(b"x")
        assert read(connection, 1) == b"x"
    assert connection.recv(1) == b""
    connection.close()
    with pytest.raises(ConnectionRefusedError):
        connect(forwarded)
