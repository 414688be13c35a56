"""The connections into pods: exec and port-forward over WebSockets, as API server and kubelet 1.35 speak.

* exec: subprotocol ``v5.channel.k8s.io``; each message begins with its channel: 0 to 2 are the standard streams, 3 ends
  the connection with a Status, whose cause is the exit code; 255 with a channel closes that
  (apimachinery, ``pkg/util/remotecommand/constants.go``)
* containerd closes the input of a command when the connection ends, whatever the reason (pkg/cri/io/exec_io.go,
  StdinOnce), and nobody ends the command (github.com/kubernetes/kubernetes/issues/89031)
* a container that has ended runs no command, though its pod shows as running up to a second longer (seen with 1.35)
* port-forward: on each channel the port first, as two bytes; on the error channel one message for a port on which
  nothing listens, after which the connection ends (read off a cluster). Here any open port is an echo.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wsproto import WSConnection
from wsproto.connection import ConnectionType
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, RejectConnection, RejectData
from wsproto.events import Request as Opening

if TYPE_CHECKING:
    from tests.cloud.cluster.fake_cluster import FakeCluster
    from tests.cloud.cluster.handler import Handler

OPEN_PORT = 8786
PORT_REFUSED = "failed to connect to localhost:9 inside namespace: connect: connection refused"
_STDOUT, _STDERR, _STATUS, _CLOSE = b"\x01", b"\x02", b"\x03", b"\xff"
_PORT_MESSAGES = b"\x00\x52\x22", b"\x01\x52\x22"
_FRAME = 1 << 15  # bytes of a message


class _Channel:
    """The server's end of a WebSocket whose opening request has been read."""

    def __init__(self, handler: Handler) -> None:
        self._file, self._socket = handler.wfile, handler.connection
        self._peer = WSConnection(ConnectionType.SERVER)
        head = "".join(f"{name}: {value}\r\n" for name, value in handler.headers.items())
        self._peer.receive_data(f"{handler.command} {handler.path} HTTP/1.1\r\n{head}\r\n".encode())
        self._opening = next(event for event in self._peer.events() if isinstance(event, Opening))

    def accept(self) -> None:
        self.send(AcceptConnection(subprotocol=self._opening.subprotocols[0]))

    def reject(self, code: int, text: str) -> None:
        headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode())]
        self.send(RejectConnection(status_code=code, has_body=True, headers=headers), RejectData(data=text.encode()))

    def send(self, *events: Any) -> None:
        self._file.write(b"".join(self._peer.send(event) for event in events))
        self._file.flush()

    def messages(self) -> Iterator[BytesMessage]:
        """The messages of the client, in parts as they come, until it closes the connection."""
        while data := self._socket.recv(1 << 16):
            self._peer.receive_data(data)
            for event in self._peer.events():
                if isinstance(event, BytesMessage):
                    yield event
                elif isinstance(event, CloseConnection):
                    self.send(event.response())
                    return


def refuse_container(handler: Handler) -> None:
    """Refuse a command in a pod whose container does not run."""
    _Channel(handler).reject(500, "Internal error occurred: unable to upgrade connection: container not found")


def execute(
    handler: Handler, cluster: FakeCluster, pod: str, command: Sequence[str], options: Mapping[str, str]
) -> None:
    """Run a command, once all of its input has come."""
    channel = _Channel(handler)
    channel.accept()
    stdin = b""
    if options.get("stdin", "").lower() == "true":
        stdin, is_whole = _read(channel, cluster)
        if not is_whole:
            cluster.run(pod, command, stdin)
            return
    output = cluster.run(pod, command, stdin)
    for kind, content in ((_STDOUT, output.stdout), (_STDERR, output.stderr)):
        for start in range(0, len(content), _FRAME):
            channel.send(BytesMessage(data=kind + content[start : start + _FRAME]))
    status: dict[str, Any] = {"metadata": {}, "status": "Success"}
    if output.returncode:
        causes = [{"reason": "ExitCode", "message": str(output.returncode)}]
        status = {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
    channel.send(BytesMessage(data=_STATUS + json.dumps(status).encode()), CloseConnection(code=1000))


def _read(channel: _Channel, cluster: FakeCluster) -> tuple[bytes, bool]:
    """The input of a command, and whether it came to its end."""
    stdin, is_start = b"", True
    for part in channel.messages():
        if is_start and part.data[:1] == _CLOSE:
            return stdin, True
        stdin += part.data[1:] if is_start else part.data
        is_start = part.message_finished
        if cluster.cut_off is not None and len(stdin) > cluster.cut_off:
            stdin, cluster.cut_off = stdin[: cluster.cut_off], None
            return stdin, False
    return stdin, False


def forward_port(handler: Handler, cluster: FakeCluster, options: Mapping[str, str]) -> None:
    """Carry what comes back to the client, if the port is open."""
    channel = _Channel(handler)
    channel.accept()
    channel.send(*(BytesMessage(data=message) for message in _PORT_MESSAGES))
    if options["ports"] != str(OPEN_PORT):
        channel.send(BytesMessage(data=b"\x01" + PORT_REFUSED.encode()), CloseConnection(code=1000))
        return
    for part in channel.messages():
        channel.send(BytesMessage(data=bytes(part.data), message_finished=part.message_finished))
