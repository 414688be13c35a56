"""One end of a connection between two agents: JSON messages, one a line, over TLS, with heartbeats.

TLS works on buffers in memory and this module moves their bytes, so nothing ever waits for the other end. Both ends
prove that they have the key of the run, and no message can be read, forged, repeated or reordered.

All agents of a run present the certificate in its Secret, which only its pods can read, and accept only those of its
authority. Names of hosts are not compared, for pods have several, and dates are not either: a node's clock may be off
by hours, and the Secret is deleted with its run.

A host that is gone and an agent that does nothing for a while are both silent. But the kernel of the latter still
acknowledges what is sent to it, whatever the agent does: the own kernel closes a connection on which nothing is
acknowledged for a while (TCP_USER_TIMEOUT, tcp(7)), so a host is lost within seconds, and an agent only after a minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from . import protocol
from .clock import CLOCK, Clock
from .ssh import TLS_REMEDY, InvalidKeys

HEARTBEAT_INTERVAL = 0.2  # seconds between heartbeats
HEARTBEAT_TIMEOUT = 60.0  # seconds after which an agent counts as lost that is silent while its host answers
GREETING_TIMEOUT = 7.0  # seconds that a client has until it is welcomed
_BUSY = 300  # heartbeats per second that node 0 receives at most; more nodes send fewer each
STALL = 60.0  # seconds for which an agent may block on a file system, or on the reader of its output, and still live
_MAX_MESSAGE = 1 << 16  # bytes
_MAX_GREETING = 1 << 14  # bytes of the handshake and the greeting together
_MAX_UNSENT = 1 << 18  # bytes that wait here for an end that does not read them
_MAX_RECORD = 1 << 14  # bytes in a record of TLS
_MAPPED = "::ffff:"
# ALPN's name of the protocol of `peers`: the scheduler of a pool has the same certificate, and speaks another one.
PROTOCOL = "spotmpi-agents"
_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL since 1.1.0, for which Python has no name


class Identity:
    """Membership of the run called *run*, by the TLS files in *folder*.

    Runs may share a Secret, so agents compare the name of the run as well.
    """

    def __init__(self, run: str, folder: str) -> None:
        self.run = run
        self._folder = folder

    @cached_property
    def accepting(self) -> ssl.SSLContext:
        """The settings of the end that accepts connections; `InvalidKeys` where the files are of no use."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        if ssl.HAS_TLSv1_3:
            context.num_tickets = 0  # no connection is resumed
        return context

    @cached_property
    def connecting(self) -> ssl.SSLContext:
        """The settings of the end that connects; `InvalidKeys` where the files are of no use."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, protocol_of_end: int) -> ssl.SSLContext:
        """The TLS settings of an end: the run's own authority alone, and no dates, see the module.

        Raises:
            InvalidKeys: the files are missing, or of no use.
        """
        authority, certificate, key = (os.path.join(self._folder, name) for name in protocol.TLS_FILES)
        missing = [name for name in protocol.TLS_FILES if not os.path.exists(os.path.join(self._folder, name))]
        if missing:
            raise InvalidKeys("the SSH Secret has no %s; %s" % (", ".join(missing), TLS_REMEDY))
        context = ssl.SSLContext(protocol_of_end)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= _NO_CHECK_TIME
        context.set_alpn_protocols([PROTOCOL])
        try:
            context.load_verify_locations(authority)
            context.load_cert_chain(certificate, key)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise InvalidKeys("the TLS files of the SSH Secret cannot be used: %s" % error) from error
        return context


class Connection:
    """One end of a connection between two agents; never blocks. Threads may share it.

    Until it is admitted, the other end may send a handshake and a greeting and no more, and nothing that it sends
    counts as a heartbeat.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, clock: Clock = CLOCK) -> None:
        self._clock = clock
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # it is disconnected already
            # A greeting follows the handshake at once: it need not wait until the handshake's end is acknowledged.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = sock
        self.address = _address(sock)  # of the other end
        self.last_received = self.last_polled = self._clock.uptime()
        self.closed = False
        self.heartbeat: Heartbeat | None = None  # ends with the connection
        self.authenticated = False  # whether the other end has proved that it has the run's key
        self.failure = ""  # of TLS, if any
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        accepts = context.protocol == ssl.PROTOCOL_TLS_SERVER
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=accepts)
        self._lock = threading.RLock()  # OpenSSL does not let two threads use one connection at once
        self._admitted = False
        self._greeting_left = _MAX_GREETING
        self._last_sent = 0.0
        self._unsent = b""  # encrypted
        self._buffer = b""  # decrypted

    def admit(self, silence: float) -> None:
        """Take messages of any number and size from now on: the other end has greeted as it should.

        The connection closes if its host acknowledges nothing for *silence* seconds.
        """
        self._admitted = True
        with contextlib.suppress(OSError):  # it is disconnected already
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * silence))
        self.last_received = self._clock.uptime()

    @property
    def has_unsent(self) -> bool:
        """Whether bytes wait until the other end takes them, which the next `send` or `receive` tries again."""
        return bool(self._unsent)

    @property
    def events(self) -> int:
        """What to wait for before this connection can go on, as selectors have it."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self.has_unsent else 0)

    def wait(self, seconds: float) -> None:
        """Wait until something has arrived, or for so many seconds."""
        with selectors.PollSelector() as selector:
            if self.register(selector):
                self._clock.select(selector, seconds)

    def register(self, selector: selectors.BaseSelector) -> bool:
        """Let *selector* wait for it, unless it is closed, which another thread may do at any moment."""
        with contextlib.suppress(ValueError):  # of a closed socket
            if not self.closed:
                selector.register(self.socket, self.events, self)
                return True
        return False

    def send(self, **message: Any) -> None:
        """Send one message to an authenticated end; a connection that has not taken the earlier ones is closed."""
        with self._lock:
            text = json.dumps(message).encode() + b"\n"
            try:
                while text and not self.closed:
                    text = text[self._tls.write(text) :]
            except ssl.SSLError as error:
                self._fail(error)
                self.close()
            self._flush()
            self._last_sent = self._clock.uptime()

    def send_heartbeat(self, interval: float) -> None:
        """Send a heartbeat if none of the last *interval* seconds saw a message."""
        if not self.closed and self._clock.uptime() > self._last_sent + interval:
            self.send(beat=1)

    def receive(self, limit: int | None = None) -> list[dict[str, Any]]:
        """The messages that have arrived, at most *limit* of them; closes at the end, or at what is not a message."""
        with self._lock:
            if self.closed:
                return []
            ended = self._read()
            ended = self._decrypt() or ended
            self._flush()
            *lines, rest = self._buffer.split(b"\n")
            later = lines[limit:] if limit is not None else []
            self._buffer = b"\n".join([*later, rest])
            messages = [parse(line) for line in lines[:limit]]
            if lines and self._admitted:
                self.last_received = self.last_polled
            if None in messages or len(rest) > _MAX_MESSAGE or (ended and not later):
                self.close()
            return [message for message in messages if message is not None]

    def _read(self) -> bool:
        """Take what has arrived from the socket; whether no more will come."""
        self.last_polled = self._clock.uptime()
        try:
            data = self.socket.recv(_MAX_MESSAGE if self._admitted else self._greeting_left)
        except BlockingIOError:
            return False
        except OSError:
            return True
        if not data:
            return True
        self._incoming.write(data)
        if self._admitted:
            return False
        self._greeting_left -= len(data)
        return not self._greeting_left

    def _decrypt(self) -> bool:
        """Go on with the handshake, and decrypt what came after it; whether no more will come."""
        try:
            if not self.authenticated:
                self._tls.do_handshake()
                if self._tls.selected_alpn_protocol() != PROTOCOL:
                    self.failure = "it speaks another protocol"
                    return True
                self.authenticated = True
            while True:
                text = self._tls.read(_MAX_RECORD)
                if not text:
                    return True
                self._buffer += text
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            self._fail(error)
            return True

    def _flush(self) -> None:
        """Send what the other end takes now; where it takes no more, what it has sent before is received yet."""
        self._unsent += self._outgoing.read()
        try:
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            if len(self._unsent) > _MAX_UNSENT:
                self.close()
        except OSError:
            self._unsent = b""

    def _fail(self, error: ssl.SSLError) -> None:
        reason = getattr(error, "verify_message", None) or getattr(error, "reason", None) or str(error)
        self.failure = str(reason).replace("_", " ").lower()

    @property
    def silence(self) -> float:
        """Seconds, at the last poll, since something came from the other end."""
        return self.last_polled - self.last_received

    @property
    def lost(self) -> bool:
        """Whether, at the last poll, the other end had closed or was silent for too long."""
        limit = HEARTBEAT_TIMEOUT if self._admitted else GREETING_TIMEOUT
        return self.closed or self.silence > limit

    def finish(self) -> None:
        """Send no more; what the other end sends can be received until it closes."""
        if self.heartbeat:
            self.heartbeat.stop()
        with self._lock, contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close it, and end its heartbeat; harmless when done twice."""
        if self.heartbeat:
            self.heartbeat.stop()
        with self._lock, contextlib.suppress(OSError):
            self.closed = True
            self.socket.close()


class Heartbeat:
    """Sends heartbeats from a thread of its own, for this process may have to wait for a disk meanwhile.

    Only as long as *last_polled*, as `Clock.uptime` counts, is not too long ago: an agent that stalls for good counts
    as lost. The interval grows with the number of *nodes* that send to one.
    """

    def __init__(
        self,
        connections: Callable[[], Iterable[Connection]],
        last_polled: Callable[[], float],
        nodes: int = 2,
        clock: Clock = CLOCK,
    ) -> None:
        self._clock = clock
        self._interval = max(HEARTBEAT_INTERVAL, nodes / _BUSY)
        self._connections = connections
        self._last_polled = last_polled
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval / 2):
            for connection in self._connections() if self._clock.uptime() < self._last_polled() + STALL else ():
                connection.send_heartbeat(self._interval)

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
