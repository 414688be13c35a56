"""The folders of checkpoints, on a volume and in memory: each checkpoint is complete or absent.

A checkpoint is a folder ``iteration-<number>`` with ``state.safetensors`` and ``manifest.json``. It is written to a
temporary folder, its manifest last, and renamed; a folder without a manifest is none. The manifest has the SHA-256 of
the state: on a volume one of the file, in memory one of each 16 MiB, which several cores compute at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
from typing import Any, Callable, Dict, List, Optional, Union

FORMAT = 1
MANIFEST = "manifest.json"
STATE = "state.safetensors"
UNFINISHED = ".writing-"
SENT = UNFINISHED + "sent"  # the start of the names of folders with a link to a state that an agent is sending
_COMPLETE = "iteration-"
_PART = 1 << 20  # bytes that are read at once
PIECE = 16 << 20  # bytes of a state in memory that have a digest of their own, so that several threads compute them
Manifest = Dict[str, Any]
Digest = Union[str, List[str]]
Begin = Callable[[Callable[[int], None], int], Optional[threading.Thread]]


class Damaged(Exception):
    """A damaged checkpoint; the text names the file that is missing, or has another size or content."""


def name_of(iteration: int) -> str:
    """The name of the folder of a checkpoint."""
    return "%s%09d" % (_COMPLETE, iteration)


def names(folder: str) -> list[str]:
    """The names of the checkpoints in *folder*, oldest first; OSError where it cannot be listed."""
    return sorted(name for name in os.listdir(folder) if name.startswith(_COMPLETE))


def newest_iteration(folder: str) -> int:
    """The iteration of the newest complete checkpoint in *folder*; -1 where there is none, or no such folder."""
    with contextlib.suppress(OSError):
        for name in reversed(names(folder)):
            digits = name[len(_COMPLETE) :]
            if digits.isdecimal() and os.path.exists(os.path.join(folder, name, MANIFEST)):
                return int(digits)
    return -1


def unfinished(folder: str, what: str, run: str) -> str:
    """The temporary folder in which this process of *run* writes *what*."""
    return os.path.join(folder, "%s%s-%s-%d" % (UNFINISHED, what, run, os.getpid()))


def publish(temporary: str, final: str, manifest: Manifest, durable: bool = True) -> None:
    """Make the checkpoint in *temporary*, whose state is written, complete as *final*.

    With *durable* its manifest and folders are on the disk before this returns. An earlier one of that name is there
    until then, but for the moment between two renames.
    """
    with open(os.path.join(temporary, MANIFEST), "w", encoding="utf-8") as file:
        json.dump({"format": FORMAT, **manifest}, file, indent=1)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    if durable:
        _sync(temporary)
    replaced = temporary + "0"  # which is removed as an unfinished one, if this process is killed before
    with contextlib.suppress(FileNotFoundError):
        os.rename(final, replaced)
    os.rename(temporary, final)
    if durable:
        _sync(os.path.dirname(final))
    shutil.rmtree(replaced, ignore_errors=True)


def read_manifest(path: str) -> Manifest:
    """The manifest of the checkpoint in *path*; `Damaged` where it is missing or none."""
    try:
        with open(os.path.join(path, MANIFEST), encoding="utf-8") as file:
            manifest = json.loads(file.read())
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged("it has no %s" % MANIFEST) from None
    except ValueError as problem:
        raise Damaged("%s is cut off or damaged: %s" % (MANIFEST, problem)) from problem
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise Damaged("%s is not of format %d" % (MANIFEST, FORMAT))
    return manifest


def read_state(path: str, manifest: Manifest) -> bytearray:
    """The state of the checkpoint in *path*, as its *manifest* describes it; `Damaged` where it is not."""
    _, size, digest = _described(manifest)
    file = os.path.join(path, STATE)
    try:
        actual = os.stat(file).st_size
        if actual != size:
            raise Damaged("%s has %d bytes, expected %d" % (STATE, actual, size))
        data = bytearray(size)
        with open(file, "rb") as content:
            content.readinto(data)
    except FileNotFoundError:
        raise Damaged("it has no %s" % STATE) from None
    if (hashlib.sha256(data).hexdigest() if isinstance(digest, str) else piece_digests(data)) != digest:
        raise Damaged("%s does not match its checksum in the manifest" % STATE)
    return data


def piece_digests(
    data: Any,
    threads: int = 1,
    begin: Begin = lambda work, first: None,
    load: Callable[[int, int], None] = lambda first, end: None,
) -> list[str]:
    """The SHA-256 of each `PIECE` of the buffer *data*, computed by this thread and those that *begin* starts.

    *begin* calls its argument in a thread that it returns, or at once and returns None. Before a piece is read, *load*
    fills in its bytes, of which it gets the first one and the end.
    """
    digests = [""] * -(-len(data) // PIECE)

    def compute(first: int) -> None:
        with memoryview(data) as view:
            for number in range(first, len(digests), threads):
                start, end = number * PIECE, min((number + 1) * PIECE, len(data))
                load(start, end)
                with view[start:end] as piece:
                    digests[number] = hashlib.sha256(piece).hexdigest()

    others = [begin(compute, first) for first in range(1, threads)]
    compute(0)
    for thread in others:
        if thread is not None:
            thread.join()
    assert all(digests), "a thread has failed"
    return digests


def receive(read: Callable[[int], bytes], manifest: Manifest, folder: str, run: str, to_volume: bool = False) -> None:
    """Write the checkpoint of *manifest* to *folder*, whose state *read* gives in parts of at most so many bytes.

    *to_volume*, the manifest there has one digest of the whole state, as those that rank 0 writes there.

    Raises:
        Damaged: the parts are not what the manifest describes, or none are left.
    """
    iteration, size, expected = _described(manifest)
    in_pieces = isinstance(expected, list)
    temporary = unfinished(folder, "%09d" % iteration, run)
    shutil.rmtree(temporary, ignore_errors=True)  # of an agent that was killed: in pods the next has its process id
    os.makedirs(temporary)
    try:
        pieces, whole, received = _PieceDigests(), hashlib.sha256(), 0
        with open(os.path.join(temporary, STATE), "wb") as file:
            while received < size:
                part = read(min(size - received, _PART))
                if not part:
                    raise Damaged("%d bytes of %s are missing" % (size - received, STATE))
                file.write(part)
                received += len(part)
                if in_pieces:
                    pieces.update(part)
                if to_volume or not in_pieces:
                    whole.update(part)
            file.flush()
            os.fsync(file.fileno())
        if (pieces.digests() if in_pieces else whole.hexdigest()) != expected:
            raise Damaged("%s does not match its checksum in the manifest" % STATE)
        if to_volume:
            manifest = {**manifest, "files": {STATE: {"bytes": size, "sha256": whole.hexdigest()}}}
        publish(temporary, os.path.join(folder, name_of(iteration)), manifest)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class _PieceDigests:
    """`piece_digests` of what arrives in parts of any size."""

    def __init__(self) -> None:
        self._digests: list[str] = []
        self._piece, self._missing = hashlib.sha256(), PIECE

    def update(self, part: bytes) -> None:
        """Take the next bytes."""
        view = memoryview(part)
        while view:
            taken, view = view[: self._missing], view[self._missing :]
            self._piece.update(taken)
            self._missing -= len(taken)
            if not self._missing:
                self._digests.append(self._piece.hexdigest())
                self._piece, self._missing = hashlib.sha256(), PIECE

    def digests(self) -> list[str]:
        """Those of all bytes so far."""
        return self._digests + ([self._piece.hexdigest()] if self._missing < PIECE else [])


def keep_newest(folder: str, count: int) -> None:
    """Remove all checkpoints of *folder* but the newest *count*."""
    for name in names(folder)[:-count]:
        remove(os.path.join(folder, name))


def size_of(manifest: Manifest) -> int:
    """Bytes of the state that a manifest describes; `Damaged` where it describes none."""
    return _described(manifest)[1]


def remove(path: str) -> None:
    """Remove the checkpoint in *path*, its manifest first: readers never see one that is partly removed."""
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(path, MANIFEST))
        shutil.rmtree(path)


def _described(manifest: Manifest) -> tuple[int, int, Digest]:
    """The iteration that a manifest describes, and the size of its state and its SHA-256, or those of its pieces."""
    try:
        state = manifest["files"][STATE]
        size = int(state["bytes"])
        if size < 0:
            raise ValueError("bytes: %d is not a size" % size)
        digest = [str(each) for each in state["pieces"]] if "pieces" in state else str(state["sha256"])
        return int(manifest["iteration"]), size, digest
    except (KeyError, TypeError, ValueError) as problem:
        raise Damaged("%s lacks %s" % (MANIFEST, problem)) from problem


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
