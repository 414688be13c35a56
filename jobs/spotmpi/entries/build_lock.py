"""One builder of an entry at a time: the others wait, and find what it has built. What a killed one left is removed.

In a folder it is a lock of a file, which ends with its process. A storage behind a URL has none: there it is a claim
that its owner renews, and that others take over once it was not renewed for a while. The one of them removes it that
creates a marker, a file named after its content: else a slower one would remove the claim of a faster one. Markers are
removed with the claim of the build that follows; whoever creates one later finds that the claim has another content.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from spotmpi.agent.files import lock_file
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.wording import Echo
from spotmpi.entries.manifest import SHORT
from spotmpi.entries.storage import Storage

RENEWAL, EXPIRY = 10.0, 60.0  # seconds
_PAUSE = 1.0


@contextlib.contextmanager
def only_builder(
    storage: Storage,
    name: str,
    echo: Echo,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Wait until no other process builds the folder *name* in *storage*; others wait while in the context."""
    parent, _, entry = name.rpartition("/")
    if storage.folder:
        with _file_lock(storage.folder / parent / f".lock-{entry}", echo, f"{parent}/{entry[:SHORT]}"):
            yield
        return
    claim = f"{parent}/.claim-{entry}.json"
    owner = f"{socket.gethostname()} {os.getpid()} {uuid.uuid4().hex}"
    _take(storage, claim, owner, echo, sleep, clock)
    ended = threading.Event()
    renewer = threading.Thread(target=_renew, args=(storage, claim, owner, ended), daemon=True)
    renewer.start()
    try:
        yield
    finally:
        ended.set()
        renewer.join()
        with contextlib.suppress(SpotmpiError):
            if _is_ours(storage, claim, owner):
                _remove(storage, claim)


def collect(storage: Storage, name: str, parts: str, just_written: str) -> bool:
    """Remove the folder *parts* of the folder *name*, unless a process builds that; whether it was removed.

    Times of a storage behind a URL are compared with that of the file *just_written*, since clocks may differ.
    """
    parent, _, entry = name.rpartition("/")
    if not storage.folder:
        claim = f"{parent}/.claim-{entry}.json"
        renewed, now = storage.modified(claim), storage.modified(just_written)
        if renewed is not None and (now is None or now - renewed < EXPIRY):
            return False
        _remove(storage, claim)
        storage.remove(parts)
        return True
    path = storage.folder / parent / f".lock-{entry}"
    with path.open("a", encoding="utf-8") as file:
        try:
            if not lock_file(file) or not _is_at(path, file):
                return False  # a file system without locks, or a builder that has ended in between
        except BlockingIOError:
            return False
        storage.remove(parts)
        path.unlink(missing_ok=True)
    return True


@contextlib.contextmanager
def _file_lock(path: Path, echo: Echo, name: str) -> Iterator[None]:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise SpotmpiError(f"{path} cannot be written: {error.strerror}; check the store's folder") from error
        with file:
            lock_file(file, on_wait=lambda: echo(f"waiting for another process that builds {name}"))
            if _is_at(path, file):  # else whoever had the lock has removed it, and others lock a new one
                yield
                path.unlink(missing_ok=True)
                return


def _is_at(path: Path, file: IO[str]) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    return False


def _take(
    storage: Storage, claim: str, owner: str, echo: Echo, sleep: Callable[[float], None], clock: Callable[[], float]
) -> None:
    """Wait until *claim* is ours; one of an owner that shows no sign of life is taken over."""
    seen, since, announced, lost = b"", clock(), False, 0
    while not storage.write(claim, _text(owner, 0), exclusive=True):
        current = storage.read(claim) or b""
        if current != seen:
            seen, since, lost = current, clock(), 0
        elif current and clock() - since > EXPIRY:  # its owner was lost, or whoever would have removed it
            marker = f"{claim}.{hashlib.sha256(current).hexdigest()[:16]}-{lost}"
            if storage.write(marker, b"", exclusive=True):
                is_same = storage.read(claim) == current  # it is not if this process was stopped before the marker
                storage.remove(claim if is_same else marker)
                continue
            since, lost = clock(), lost + 1
        if not announced:
            announced = True
            echo(f"waiting for another process that builds it: {claim}")
        sleep(_PAUSE)


def _renew(storage: Storage, claim: str, owner: str, ended: threading.Event) -> None:
    number = 0
    while not ended.wait(RENEWAL):
        number += 1
        with contextlib.suppress(SpotmpiError):  # the next renewal may succeed
            if not _is_ours(storage, claim, owner):
                return  # this machine has slept, and another one has taken over
            storage.write(claim, _text(owner, number))


def _remove(storage: Storage, claim: str) -> None:
    """Remove a claim, and then the markers of those that took over one before it."""
    storage.remove(claim)
    parent, _, name = claim.rpartition("/")
    for marker in storage.names(parent, start=f"{name}."):
        storage.remove(f"{parent}/{marker}")


def _is_ours(storage: Storage, claim: str, owner: str) -> bool:
    return owner.encode() in (storage.read(claim) or b"")


def _text(owner: str, number: int) -> bytes:
    return json.dumps({"owner": owner, "renewal": number}).encode()
