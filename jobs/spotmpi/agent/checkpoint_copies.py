"""Copies the checkpoints in node 0's memory to that of the next node, over TLS with the run's certificate.

The next node asks node 0 for the newest one again and again, and its agent keeps it for node 0's successor, which asks
that node once, before its first attempt. Both ask the same, one JSON object a line:

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
from collections.abc import Iterator
from typing import Any, BinaryIO, Tuple

from . import checkpoint_files as files
from . import fencing, hardware, network, protocol
from .attempt_history import pods_at_work
from .checkpoint_files import newest_iteration
from .checkpoint_memory import folder_of
from .clock import CLOCK, Clock
from .connection import PROTOCOL, Identity, parse
from .context import AgentContext
from .plan import COORDINATOR, NODE, Member
from .ssh import InvalidKeys

PORT = 2224  # of node 0; that of the next node is one higher
_PAIR = (COORDINATOR, Member(NODE, 1))
KEPT = 2
_CONNECT_TIMEOUT = 0.5  # seconds, as of agents
_TIMEOUT = 10.0  # seconds for a handshake and for each piece
_POLL_INTERVAL = 0.02  # seconds between looks for a new checkpoint
_LEAST_PAUSE = 0.1  # seconds between copies
_RETRY_INTERVAL = 0.5  # seconds after an error
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

    def serve(self, port: int) -> None:
        """Answer on *port*, in the background, until it is closed."""
        self._listener = network.listen(port)
        threading.Thread(target=self._accept, args=(self._listener,), name="copies", daemon=True).start()

    def follow(self, host: str, port: int) -> None:
        """Copy what is newer there again and again, in the background, until this is closed."""
        threading.Thread(target=self._follow, args=(host, port), name="copy", daemon=True).start()

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

    def _follow(self, host: str, port: int) -> None:
        while not self._stopped.is_set():
            try:
                with self._channel(host, port) as channel:
                    while not self._stopped.is_set():
                        start = self._clock.uptime()
                        if self._copy(channel, newest_iteration(self._memory), wait=1) is not None:
                            # At most half of the time is spent on copies.
                            self._stopped.wait(max(_LEAST_PAUSE, self._clock.uptime() - start))
            except (OSError, files.Damaged, InvalidKeys) as error:
                self._report(error)
            self._stopped.wait(_RETRY_INTERVAL)

    def _report(self, error: Exception) -> None:
        """Print a problem of this node once; others are those of a node that is away, or has just written over it."""
        if isinstance(error, _NoRoom) and str(error) != self._problem:
            self._problem = str(error)
            sys.stderr.write("checkpoints of node 0 are not copied: %s\n" % error)

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
            if name.startswith(files.UNFINISHED):
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
            if self._free.acquire(blocking=False):
                threading.Thread(target=self._answer, args=(connection,), name="copies", daemon=True).start()
            else:
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
        held = files.unfinished(self._memory, "sent%d" % threading.get_ident(), self._run)
        try:
            os.mkdir(held)
            os.link(os.path.join(path, files.STATE), os.path.join(held, files.STATE))
            return files.read_manifest(path), held
        except (OSError, files.Damaged):
            shutil.rmtree(held, ignore_errors=True)
            return None


class _NoRoom(OSError):
    """Memory does not suffice for a copy."""


def start(context: AgentContext, port: int = PORT) -> Copies | None:
    """Serve this node's checkpoints in memory to the other of the first two nodes, and copy that one's.

    None on other nodes, and on one node alone. On Slurm agents have nothing in memory at their start: those before have
    copied it to the volume.
    """
    memory = folder_of(context)
    if memory is None or context.member not in _PAIR or len(context.hosts) < 2:
        return None
    if context.identity is None:
        return None
    copies = Copies(context.plan["run"], memory, context.identity, context.mounts.cgroup, context.clock)
    has_predecessor = context.replaces_nodes and context.restart_count > 0  # which node 1 has outlived
    if context.is_coordinator and not context.slurm and (has_predecessor or fencing.newest(context.folder)):
        _fetch(context, copies, memory, port)
    try:
        copies.serve(port + context.member.number)
    except OSError as error:
        sys.stderr.write("checkpoints in memory are not copied to another node: %s\n" % error)
        return None
    if not context.is_coordinator:
        copies.follow(context.hosts[0], port)
    return copies


def _fetch(context: AgentContext, copies: Copies, memory: str, port: int) -> None:
    """Get what node 1 has of earlier attempts, if it is newer than what is in memory and on the volume."""
    volume = context.plan["environment"].get(protocol.ENV_CHECKPOINT_PATH, "")
    own = max(newest_iteration(memory), newest_iteration(volume))
    next_host = context.with_pods(pods_at_work(context.folder) if context.standby else None).hosts[1]
    try:
        iteration = copies.fetch(next_host, port + 1, own)
    except (OSError, files.Damaged, InvalidKeys) as error:
        sys.stderr.write("no checkpoint from the memory of node 1: %s\n" % error)
        return
    if iteration is not None:
        sys.stderr.write("checkpoint of iteration %d copied from the memory of node 1\n" % iteration)


def _require_protocol(secure: ssl.SSLSocket) -> None:
    """The scheduler of a pool has the same certificate and speaks another protocol."""
    if secure.selected_alpn_protocol() != PROTOCOL:
        raise ConnectionError("it speaks another protocol")
