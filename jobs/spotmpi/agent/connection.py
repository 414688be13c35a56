"""One end of a connection between two agents: messages as JSON objects, one a line, and signs of life."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from .authentication import Session

HEARTBEAT_INTERVAL = 1.0  # seconds between signs of life
HEARTBEAT_TIMEOUT = 7.0  # seconds after which a silent peer counts as lost
STALL = 60.0  # seconds for which an agent may wait for a file system, or for whoever takes its output, and still live
_LONGEST = 1 << 16  # bytes of a message
_GREETING = 1 << 12  # bytes of a message from an end that has not proved the token


class Connection:
    """One end of a connection between two agents; never blocks.

    Until it is authenticated it gives no more than lines, short ones, and none of them is a sign of life.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.address = _address(sock)  # of the other end
        self.heard = self.looked = time.monotonic()
        self.closed = False
        self._session: Session | None = None
        self._speaking = threading.Lock()
        self._spoke = 0.0
        self._rest = b""

    @property
    def authenticated(self) -> bool:
        """Whether the other end has proved that it holds the token."""
        return self._session is not None

    def authenticate(self, session: Session) -> None:
        """Sign and verify every message by *session* from now on."""
        self._session = session

    def send(self, **message: Any) -> None:
        """Send one message, signed once the other end is authenticated; a connection that cannot take it is closed."""
        with self._speaking:
            text = json.dumps(message).encode()
            self._write(self._session.sign(text) if self._session else text)

    def send_line(self, line: bytes) -> None:
        """Send one message that is signed already, or is not signed."""
        with self._speaking:
            self._write(line)

    def _write(self, line: bytes) -> None:
        try:
            self.socket.sendall(line + b"\n")
            self._spoke = time.monotonic()
        except OSError:
            self.close()

    def beat(self) -> None:
        """Give a sign of life when it is time for one."""
        if not self.closed and time.monotonic() > self._spoke + HEARTBEAT_INTERVAL:
            self.send(beat=1)

    def first_line(self) -> bytes | None:
        """The next line of an end that has not proved the token, or None; closes one that ends or says too much."""
        over = self._fill(_GREETING)
        line, end, rest = self._rest.partition(b"\n")
        if end:
            self._rest = rest
            return line
        if over or len(line) >= _GREETING:
            self.close()
        return None

    def receive(self) -> list[dict[str, Any]]:
        """The messages that have arrived; closes the connection at its end or when one is not the other end's."""
        over = self._fill(_LONGEST)
        *whole, self._rest = self._rest.split(b"\n")
        messages = [self._verified(line) for line in whole]
        if None in messages or len(self._rest) > _LONGEST:
            self.close()
            return []
        if whole:
            self.heard = self.looked
        if over:
            self.close()
        return [message for message in messages if message is not None]

    def _fill(self, size: int) -> bool:
        """Take up to *size* bytes that have arrived; whether no more will come."""
        self.looked = time.monotonic()
        try:
            data = self.socket.recv(size)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._rest += data
        return not data

    def _verified(self, line: bytes) -> dict[str, Any] | None:
        text = self._session.verify(line) if self._session else None
        return None if text is None else parse(text)

    @property
    def lost(self) -> bool:
        """Whether the other end was gone, or silent for too long, when we looked last."""
        return self.closed or self.looked > self.heard + HEARTBEAT_TIMEOUT

    def close(self) -> None:
        """Close it; harmless when done twice."""
        self.closed = True
        with contextlib.suppress(OSError):
            self.socket.close()


class Heartbeat:
    """Gives signs of life by a thread of its own, for this process may have to wait for a disk meanwhile.

    Only as long as *looked*, a time by `time.monotonic`, is not too long ago: who stalls for good is as good as gone.
    """

    def __init__(self, connections: Callable[[], Iterable[Connection]], looked: Callable[[], float]) -> None:
        self._connections = connections
        self._looked = looked
        self._over = threading.Event()
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def _beat(self) -> None:
        while not self._over.wait(HEARTBEAT_INTERVAL / 2):
            for connection in self._connections() if time.monotonic() < self._looked() + STALL else ():
                connection.beat()

    def end(self) -> None:
        """No more signs of life."""
        self._over.set()


def _address(sock: socket.socket) -> str:
    try:
        return str(sock.getpeername()[0])
    except OSError:
        return ""  # it has gone already


def parse(line: bytes) -> dict[str, Any] | None:
    """What a line says; None where no agent would say it."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None
