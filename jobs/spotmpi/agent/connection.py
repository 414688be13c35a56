"""One end of a connection between two agents: JSON messages, one a line, authenticated, with heartbeats.

Both ends prove that they hold the run's token, which never travels. Each sends a random challenge. The key of the
connection is an HMAC by the token over both challenges, the node index and the generation; every message carries an
HMAC by this key over the role of its sender, its number and its text. So the first message of each end authenticates
it, and no message can be forged, repeated, reordered or sent back to its sender, not even by somebody who relays the
bytes of two agents.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

from .clock import CLOCK, Clock

HEARTBEAT_INTERVAL = 1.0  # seconds between heartbeats
HEARTBEAT_TIMEOUT = 7.0  # seconds after which a silent peer counts as lost
STALL = 60.0  # seconds for which an agent may block on a file system, or on the reader of its output, and still live
NODE_0, WORKER = b"node 0", b"worker"  # roles
_MAX_MESSAGE = 1 << 16  # bytes
_MAX_GREETING = 1 << 12  # bytes of a message from an end that has not proved the token
_VERSION = b"spotmpi agents 1\n"
_MAPPED = "::ffff:"


def new_challenge() -> str:
    """A fresh challenge: 128 random bits."""
    return secrets.token_hex(16)


class Session:
    """Signs and verifies the messages of one connection for *role*; *challenges* are node 0's and the worker's."""

    def __init__(self, token: str, role: bytes, challenges: tuple[str, str], node: int, generation: int) -> None:
        identity = json.dumps([*challenges, node, generation]).encode()
        self._key = hmac.new(token.encode(), _VERSION + identity, hashlib.sha256).digest()
        self._role = role
        self._peer = NODE_0 if role == WORKER else WORKER
        self._sent = self._received = 0  # messages

    def sign(self, text: bytes) -> bytes:
        """The line, without its end, that carries *text* as the next message to the other end."""
        line = self._code(self._role, self._sent, text) + b" " + text
        self._sent += 1
        return line

    def verify(self, line: bytes) -> bytes | None:
        """The text in *line*; None where it is not the next message of the other end."""
        code, _, text = line.partition(b" ")
        if not hmac.compare_digest(code, self._code(self._peer, self._received, text)):
            return None
        self._received += 1
        return text

    def _code(self, role: bytes, number: int, text: bytes) -> bytes:
        return hmac.new(self._key, b"%s %d %s" % (role, number, text), hashlib.sha256).hexdigest().encode()


class Connection:
    """One end of a connection between two agents; never blocks.

    Until the other end is authenticated it returns no more than lines, short ones, and none of them counts as a
    heartbeat.
    """

    def __init__(self, sock: socket.socket, clock: Clock = CLOCK) -> None:
        self._clock = clock
        sock.setblocking(False)
        self.socket = sock
        self.address = _address(sock)  # of the other end
        self.last_received = self.last_polled = self._clock.awake()
        self.closed = False
        self._session: Session | None = None
        self._send_lock = threading.Lock()
        self._last_sent = 0.0
        self._buffer = b""

    @property
    def authenticated(self) -> bool:
        """Whether the other end has proved that it holds the token."""
        return self._session is not None

    def authenticate(self, session: Session) -> None:
        """Sign and verify every message by *session* from now on."""
        self._session = session

    def send(self, **message: Any) -> None:
        """Send one message, signed once the other end is authenticated; a connection that cannot take it is closed."""
        with self._send_lock:
            text = json.dumps(message).encode()
            self._write(self._session.sign(text) if self._session else text)

    def send_line(self, line: bytes) -> None:
        """Send one message that is signed already, or needs no signature."""
        with self._send_lock:
            self._write(line)

    def _write(self, line: bytes) -> None:
        try:
            self.socket.sendall(line + b"\n")
            self._last_sent = self._clock.awake()
        except OSError:
            self.close()

    def send_heartbeat(self) -> None:
        """Send a heartbeat if none of the last `HEARTBEAT_INTERVAL` seconds saw a message."""
        if not self.closed and self._clock.awake() > self._last_sent + HEARTBEAT_INTERVAL:
            self.send(beat=1)

    def receive_line(self) -> bytes | None:
        """The next line of an end that has not proved the token, or None; closes one that ends or sends too much."""
        ended = self._fill_buffer(_MAX_GREETING)
        line, newline, rest = self._buffer.partition(b"\n")
        if newline:
            self._buffer = rest
            return line
        if ended or len(line) >= _MAX_GREETING:
            self.close()
        return None

    def receive(self) -> list[dict[str, Any]]:
        """The messages that have arrived; closes the connection at its end or when one cannot be verified."""
        ended = self._fill_buffer(_MAX_MESSAGE)
        *lines, self._buffer = self._buffer.split(b"\n")
        messages = [self._verify(line) for line in lines]
        if None in messages or len(self._buffer) > _MAX_MESSAGE:
            self.close()
            return []
        if lines:
            self.last_received = self.last_polled
        if ended:
            self.close()
        return [message for message in messages if message is not None]

    def _fill_buffer(self, size: int) -> bool:
        """Read up to *size* bytes that have arrived; whether no more will come."""
        self.last_polled = self._clock.awake()
        try:
            data = self.socket.recv(size)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._buffer += data
        return not data

    def _verify(self, line: bytes) -> dict[str, Any] | None:
        text = self._session.verify(line) if self._session else None
        return None if text is None else parse(text)

    @property
    def lost(self) -> bool:
        """Whether, at the last poll, the other end had closed or was silent for too long."""
        return self.closed or self.last_polled > self.last_received + HEARTBEAT_TIMEOUT

    def close(self) -> None:
        """Close it; harmless when done twice."""
        self.closed = True
        with contextlib.suppress(OSError):
            self.socket.close()


class Heartbeat:
    """Sends heartbeats from a thread of its own, for this process may have to wait for a disk meanwhile.

    Only as long as *last_polled*, as `Clock.awake` counts, is not too long ago: an agent that stalls for good counts as
    lost.
    """

    def __init__(
        self,
        connections: Callable[[], Iterable[Connection]],
        last_polled: Callable[[], float],
        clock: Clock = CLOCK,
    ) -> None:
        self._clock = clock
        self._connections = connections
        self._last_polled = last_polled
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def _run(self) -> None:
        while not self._stopped.wait(HEARTBEAT_INTERVAL / 2):
            for connection in self._connections() if self._clock.awake() < self._last_polled() + STALL else ():
                connection.send_heartbeat()

    def stop(self) -> None:
        """Send no more heartbeats."""
        self._stopped.set()


def parse(line: bytes) -> dict[str, Any] | None:
    """The JSON object in a line; None where it holds none."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _address(sock: socket.socket) -> str:
    try:
        address = str(sock.getpeername()[0])
    except OSError:
        return ""  # already disconnected
    # As names resolve to it: a socket for both families shows IPv4 addresses within IPv6's (RFC 4291, 2.5.5.2).
    return address[len(_MAPPED) :] if address.startswith(_MAPPED) and "." in address else address
