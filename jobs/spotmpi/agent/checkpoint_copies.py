"""Copies the checkpoints in node 0's memory to that of the next node, over TLS with the run's certificate.

The next node asks node 0 for the newest one again and again, and its agent keeps it for node 0's successor, which asks
that node before its first attempt. No attempt begins before each has reached the other, or has tried for some seconds.
Both ask the same, one JSON object a line:

    -> {"run": name, "newer": 41, "wait": 1}          the newest one after iteration 41, or within a second
    <- {"manifest": {...}}, then the state's bytes     or {} where there is none
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Tuple

from . import checkpoint_files as files
from . import hardware, network, pod_record, protocol
from .attempt_history import pods_at_work
from .checkpoint_files import newest_iteration
from .checkpoint_memory import folder_of
from .clock import CLOCK, Clock
from .connection import PROTOCOL, Connection, Identity, parse
from .context import AgentContext
from .files import error_text
from .plan import COORDINATOR, NODE, Member
from .ssh import InvalidKeys

PORT = 2224  # of node 0; that of the next node is one higher
_PAIR = (COORDINATOR, Member(NODE, 1))
KEPT = 2
_CONNECT_TIMEOUT = 0.5  # seconds, as of agents
_TIMEOUT = 10.0  # seconds for a handshake and for each piece
_POLL_INTERVAL = 0.02  # seconds between looks for a new checkpoint
_LEAST_PAUSE = 0.02  # seconds between copies, of which a small one takes 0.6 ms of a processor
_RETRY_INTERVAL = 0.5  # seconds after an error of this node, or a damaged copy
_RECONNECT_INTERVAL = 0.05  # seconds after an error of a connection, as of agents
PATIENCE = 5.0  # seconds for which an attempt waits until the two nodes reach each other
_MOST_CONNECTIONS = 8
_MAX_LINE = 1 << 20  # bytes
_PIECE = 1 << 20  # bytes
Channel = Tuple[ssl.SSLSocket, BinaryIO]


class Copies:
    """The checkpoints of *run* in the *memory* of this node, as the other node gets them, and as they come from it.

    They count towards the limit of *cgroup*.
    """

    def __init__(
        self, run: str, memory: str, identity: Identity, cgroup: str | None = None, clock: Clock = CLOCK
    ) -> None:
        self._run = run
        self._memory = memory
        self._identity = identity
        self._cgroup = cgroup
        self._clock = clock
        self._stopped = threading.Event()
        self._listener: socket.socket | None = None
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._problem = ""
        self._answered = 0.0  # when the newest copy began to arrive: before, there may have been nothing for a while
        self._lock = threading.Lock()
        self._source: tuple[str, int] | None = None  # what is followed
        self._channel_to_source: ssl.SSLSocket | None = None
        self.connected = threading.Event()  # to what is followed
        self.fetched = threading.Event()  # nothing, or all that was to be; or nobody has answered
        self.fetched.set()

    def serve(self, port: int) -> None:
        """Answer on *port*, in the background, until it is closed."""
        with contextlib.suppress(OSError):  # of an agent that was killed
            for name in os.listdir(self._memory):
                if name.startswith(files.SENT):
                    shutil.rmtree(os.path.join(self._memory, name), ignore_errors=True)
        self._listener = network.listen(port)
        threading.Thread(target=self._accept, args=(self._listener,), name="copies", daemon=True).start()

    def follow(self, host: str, port: int) -> None:
        """Copy what is newer there again and again, in the background, until this is closed or follows another one.

        A connection to the one before is given up: its end may never be heard of.
        """
        with self._lock:
            is_first, self._source = self._source is None, (host, port)
            self.connected.clear()
            if self._channel_to_source is not None:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self._channel_to_source, socket.SHUT_RDWR)  # without TLS, which has a reader
        if is_first:
            threading.Thread(target=self._follow, name="copy", daemon=True).start()

    def close(self) -> None:
        """End what happens in the background."""
        self._stopped.set()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # which ends accept(2)
            self._listener.close()

    def fetch(self, host: str, port: int, newer: int) -> int | None:
        """Copy the newest checkpoint there, if it is newer; its iteration, or None.

        Raises:
            OSError: the other node does not answer, or memory does not suffice.
            Damaged: what has arrived is not what was announced.
        """
        with self._channel(host, port) as channel:
            return self._copy(channel, newer, wait=0)

    def fetch_later(self, host: str, port: int, newer: int) -> None:
        """`fetch` in the background, again where that fails, for at most `PATIENCE`; then it is *fetched*."""
        self.fetched.clear()
        threading.Thread(target=self._fetch, args=(host, port, newer), name="fetch", daemon=True).start()

    def _fetch(self, host: str, port: int, newer: int) -> None:
        deadline, iteration, problem = self._clock.uptime() + PATIENCE, None, ""
        try:
            while not self._stopped.is_set():
                try:
                    iteration, problem = self.fetch(host, port, newer), ""
                    break
                except (OSError, files.Damaged, InvalidKeys) as error:
                    problem = str(error)
                    if isinstance(error, (_NoRoom, InvalidKeys)) or self._clock.uptime() > deadline:
                        break
                self._stopped.wait(_RECONNECT_INTERVAL)
        finally:
            self.fetched.set()
        if problem:
            sys.stderr.write("no checkpoint from the memory of node 1: %s\n" % error_text(problem))
        elif iteration is not None:
            sys.stderr.write("checkpoint of iteration %d copied from the memory of node 1\n" % iteration)

    def _follow(self) -> None:
        while not self._stopped.is_set():
            pause = _RECONNECT_INTERVAL
            try:
                self._follow_source()
            except (files.Damaged, InvalidKeys, _NoRoom) as error:
                self._report(error)
                pause = _RETRY_INTERVAL
            except OSError:  # of a node that is away
                pass
            self._stopped.wait(pause)

    def _follow_source(self) -> None:
        """Copy newer checkpoints from the node that they come from, until the connection to it ends."""
        source = self._source
        assert source is not None, "it is followed"
        with self._channel(*source) as channel:
            with self._lock:
                if source is not self._source:
                    return
                self._channel_to_source = channel[0]
                self.connected.set()
            try:
                while not self._stopped.is_set():
                    if self._copy(channel, newest_iteration(self._memory), wait=1) is not None:
                        # At most half of the time is spent on copies.
                        self._stopped.wait(max(_LEAST_PAUSE, self._clock.uptime() - self._answered))
            finally:
                with self._lock:
                    self._channel_to_source = None
                    if source is self._source:
                        self.connected.clear()

    def _report(self, error: Exception) -> None:
        """Print a problem of this node once; others are those of a node that is away, or has just written over it."""
        if isinstance(error, _NoRoom) and str(error) != self._problem:
            self._problem = str(error)
            sys.stderr.write("checkpoints of node 0 are not copied: %s\n" % error_text(error))

    @contextlib.contextmanager
    def _channel(self, host: str, port: int) -> Iterator[Channel]:
        with socket.create_connection((host, port), _CONNECT_TIMEOUT) as plain:
            plain.settimeout(_TIMEOUT)
            with self._identity.connecting.wrap_socket(plain) as secure, secure.makefile("rb") as stream:
                _require_protocol(secure)
                yield secure, stream

    def _copy(self, channel: Channel, newer: int, wait: float) -> int | None:
        secure, stream = channel
        request = {"run": self._run, "newer": newer, "wait": wait}
        secure.sendall(json.dumps(request).encode() + b"\n")
        answer = parse(stream.readline(_MAX_LINE))
        if answer is None:
            raise ConnectionError("it ended the connection")
        manifest = answer.get("manifest")
        if manifest is None:
            return None
        self._answered = self._clock.uptime()
        self._make_room(manifest)
        files.receive(stream.read, manifest, self._memory, self._run)
        return int(manifest["iteration"])

    def _make_room(self, manifest: files.Manifest) -> None:
        """Remove all but the newest checkpoint, and what was not completed; `_NoRoom` if there is too little still."""
        size = files.size_of(manifest)
        os.makedirs(self._memory, mode=0o700, exist_ok=True)
        for name in files.names(self._memory)[: 1 - KEPT]:
            files.remove(os.path.join(self._memory, name))
        for name in os.listdir(self._memory):
            if name.startswith(files.UNFINISHED) and not name.startswith(files.SENT):
                shutil.rmtree(os.path.join(self._memory, name), ignore_errors=True)
        free = hardware.free_bytes(self._memory, self._cgroup)
        if size > free:
            raise _NoRoom("one of %.1f MB does not fit into %.1f MB of memory" % (size / 1e6, free / 1e6))

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopped.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                self._stopped.wait(_RETRY_INTERVAL)  # without descriptors, or closed
                continue
            if not self._free.acquire(blocking=False):
                connection.close()
                continue
            try:
                threading.Thread(target=self._answer, args=(connection,), name="copies", daemon=True).start()
            except RuntimeError:  # a limit of threads; the other end tries again
                self._free.release()
                connection.close()

    def _answer(self, connection: socket.socket) -> None:
        """Answer requests of one connection until it ends."""
        try:
            with contextlib.suppress(OSError, InvalidKeys, KeyError, TypeError, ValueError), connection:
                connection.settimeout(_TIMEOUT)
                with self._identity.accepting.wrap_socket(connection, server_side=True) as secure:
                    _require_protocol(secure)
                    with secure.makefile("rb") as stream:
                        while not self._stopped.is_set():
                            request = parse(stream.readline(_MAX_LINE))
                            if request is None or request.get("run") != self._run:
                                return
                            self._send(secure, request)
        finally:
            self._free.release()

    def _send(self, secure: ssl.SSLSocket, request: dict[str, Any]) -> None:
        """Send the checkpoint that is newer than what the other end has, once there is one; or an empty object."""
        newer, deadline = int(request["newer"]), self._clock.uptime() + min(float(request["wait"]), _TIMEOUT / 2)
        while newest_iteration(self._memory) <= newer and self._clock.uptime() < deadline:
            self._stopped.wait(_POLL_INTERVAL)
        opened = self._open(newer)
        if opened is None:
            secure.sendall(b"{}\n")
            return
        manifest, held = opened
        try:
            secure.sendall(json.dumps({"manifest": manifest}).encode() + b"\n")
            with open(os.path.join(held, files.STATE), "rb") as state:
                for piece in iter(lambda: state.read(_PIECE), b""):
                    secure.sendall(piece)
        finally:
            shutil.rmtree(held, ignore_errors=True)

    def _open(self, newer: int) -> tuple[files.Manifest, str] | None:
        """The manifest of the newest checkpoint, and a folder with a link to its state, by which rank 0 keeps it."""
        iteration = newest_iteration(self._memory)
        if iteration <= newer:
            return None
        path = os.path.join(self._memory, files.name_of(iteration))
        held = "%s%d-%s-%d" % (os.path.join(self._memory, files.SENT), threading.get_ident(), self._run, os.getpid())
        try:
            os.mkdir(held)
            os.link(os.path.join(path, files.STATE), os.path.join(held, files.STATE))
            return files.read_manifest(path), held
        except (OSError, files.Damaged):
            shutil.rmtree(held, ignore_errors=True)
            return None


class _NoRoom(OSError):
    """Memory does not suffice for a copy."""


class Exchange:
    """The exchange of this agent with that of the other of the first two nodes, on *port* of node 0 and the next one.

    Where pods stand by, what an agent is may change.
    """

    def __init__(self, port: int | None = None) -> None:
        self._port = PORT if port is None else port
        self._member: Member | None = None
        self._copies: Copies | None = None
        self._node_0: Connection | None = None
        self._is_given_up = False

    def begin(self, context: AgentContext, node_0: Connection | None = None) -> None:
        """Exchange as the member that *context* says, as node 1 with the end of the connection to *node_0*'s agent."""
        if context.member != self._member:
            self.close()
            self._member, self._copies, self._is_given_up = context.member, _start(context, self._port), False
        if self._copies is not None and node_0 is not None and node_0 is not self._node_0:
            self._node_0 = node_0
            # Its name may lead to the pod before for a while.
            self._copies.follow(node_0.address, self._port)

    def close(self) -> None:
        """End it."""
        if self._copies is not None:
            self._copies.close()
        self._member = self._copies = self._node_0 = None

    def missing(self) -> str | None:
        """What node 0 waits for before ranks may start, or None."""
        if self._copies is None or self._copies.fetched.is_set():
            return None
        return "asks node 1 for the newest checkpoint in its memory (tries for %g s)" % PATIENCE

    def wait(self, clock: Clock, serve: Callable[[], bool]) -> None:
        """Wait until node 1 is connected, for `PATIENCE` once, as long as *serve* is true."""
        if self._copies is None or self._node_0 is None or self._is_given_up:
            return
        deadline = clock.uptime() + PATIENCE
        while not self._copies.connected.wait(0.005) and serve():
            if clock.uptime() > deadline:
                self._is_given_up = True
                text = "node 0 has not answered on port %d for %g s: its checkpoints in memory may not be copied\n"
                sys.stderr.write(text % (self._port, PATIENCE))
                return


def _start(context: AgentContext, port: int) -> Copies | None:
    """Serve this node's checkpoints in memory to the other of the first two nodes, and get what that one has.

    None on other nodes, and on one node alone. On Slurm agents have nothing in memory at their start: those before have
    copied it to the volume.
    """
    memory = folder_of(context)
    if memory is None or context.member not in _PAIR or len(context.hosts) < 2:
        return None
    if context.identity is None:
        return None
    copies = Copies(context.plan["run"], memory, context.identity, context.mounts.cgroup, context.clock)
    try:
        copies.serve(port + context.member.number)
    except OSError as error:
        sys.stderr.write("checkpoints in memory are not copied to another node: %s\n" % error_text(error))
        return None
    has_predecessor = context.replaces_nodes and context.restart_count > 0  # which node 1 has outlived
    if context.is_coordinator and not context.slurm and (has_predecessor or pod_record.newest_attempt(context.folder)):
        # If it is newer than what is in memory and on the volume.
        volume = context.plan["environment"].get(protocol.ENV_CHECKPOINT_PATH, "")
        own = max(newest_iteration(memory), newest_iteration(volume))
        pods = pods_at_work(context.folder) if context.standby else None
        copies.fetch_later(context.with_pods(pods).hosts[1], port + 1, own)
    return copies


def _require_protocol(secure: ssl.SSLSocket) -> None:
    """The scheduler of a pool has the same certificate and speaks another protocol."""
    if secure.selected_alpn_protocol() != PROTOCOL:
        raise ConnectionError("it speaks another protocol")
