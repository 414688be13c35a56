"""The local port that leads to a pod, over a real WebSocket."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from spotmpi.backends.kubernetes.client.port_forward import PortForward, forward_port
from spotmpi.backends.kubernetes.client.portal import serve
from tests.cloud.cluster.channels import OPEN_PORT
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import a_pod

Forward = Callable[..., AbstractContextManager[PortForward]]


@pytest.fixture
def forward(cluster: FakeCluster) -> Forward:
    names = ["node-0-0-abcde", "node-0-0-fghij", "node-0-0-klmno"]
    cluster.put(*(a_pod(name, "Running", {}) for name in names))
    pods = iter(names)

    async def find_pod() -> str:
        return next(pods)

    def start(remote: int = OPEN_PORT) -> AbstractContextManager[PortForward]:
        return serve(forward_port(cluster.api(), find_pod, remote))

    return start


def connect(forwarded: PortForward) -> socket.socket:
    return socket.create_connection(("127.0.0.1", forwarded.port), timeout=60)


def read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := connection.recv(1 << 16)):
        data += more
    return data


def test_bytes_of_any_size_and_value_arrive_both_ways_in_order(forward: Forward, cluster: FakeCluster) -> None:
    sent = bytes(range(256)) * 1000
    with forward() as forwarded, connect(forwarded) as connection:
        for part in (b"hello", sent):
            connection.sendall(part)
            assert read(connection, len(part)) == part
    assert cluster.paths == [f"/api/v1/namespaces/here/pods/node-0-0-abcde/portforward?ports={OPEN_PORT}"]


def test_each_connection_is_its_own_and_goes_to_the_pod_of_its_time(forward: Forward, cluster: FakeCluster) -> None:
    with forward() as forwarded, connect(forwarded) as first, connect(forwarded) as second:
        first.sendall(b"first")
        second.sendall(b"second")
        assert (read(second, 6), read(first, 5)) == (b"second", b"first")
        first.close()
        second.sendall(b"more")
        assert read(second, 4) == b"more"
    assert sorted(request.name for request in cluster.requests) == ["node-0-0-abcde", "node-0-0-fghij"]


def test_a_port_without_a_listener_closes_the_connection(forward: Forward) -> None:
    with forward(9) as forwarded, connect(forwarded) as connection:
        assert connection.recv(1) == b""


def test_a_missing_permission_is_said_once(
    forward: Forward, cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.forbid("get", "pods/portforward")
    with forward() as forwarded:
        for _ in range(2):
            with connect(forwarded) as connection:
                assert connection.recv(1) == b""
    assert capsys.readouterr().err == (
        "no permission to forward ports to pods: the user's role needs the verbs get and create for pods/portforward\n"
    )


def test_closing_the_port_ends_its_connections_and_leaves_nothing_behind(forward: Forward) -> None:
    with forward() as forwarded:
        connection = connect(forwarded)
        connection.sendall(b"x")
        assert read(connection, 1) == b"x"
    assert connection.recv(1) == b""
    connection.close()
    with pytest.raises(ConnectionRefusedError):
        connect(forwarded)
