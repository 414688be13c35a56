"""The checkpoints of one run: on a volume, and where it has some, in the memory of this node.

One at a time is written to the volume while training goes on, from a copy of the state in memory.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import sys
import threading
import time
from types import TracebackType
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple, Type

from spotmpi.agent import checkpoint_files as files
from spotmpi.agent import hardware, protocol
from spotmpi.agent.files import locked, remove_folder
from spotmpi.checkpoint.device import DeviceArray
from spotmpi.checkpoint.memory import Memory, begin
from spotmpi.checkpoint.state import Part, bytes_of, decode, encode

_DAMAGED = "damaged-"
Values = Dict[str, Any]

_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space there"),
    errno.EFBIG: "raise the limit of the size of files (ulimit -f)",
}
_PIECE = 1 << 20  # bytes between two looks whether to go on


class StoredCheckpoint(NamedTuple):
    """A checkpoint that was read: where, what its manifest says, and the state."""

    path: str
    manifest: Values
    state: Any


class WrongIdentity(Exception):
    """A checkpoint belongs to something else than what trains now; the text says what differs."""


class Store:
    """The checkpoints of *run* in *folder*; only rank 0 has one.

    *identity* is what they belong to: only training with the same identity can resume from them.
    """

    def __init__(self, folder: str, keep: int, identity: Values, run: str, memory: Optional[Memory] = None) -> None:
        self.memory = memory
        self._folder = folder
        self._keep = keep
        self._identity = identity
        self._run = run
        self._background = Background()

    def prepare(self) -> None:
        """Check that checkpoints can be written, and remove incomplete ones that earlier attempts of this run left.

        Incomplete ones of other runs stay: such a run may be writing into the same folder at this moment.

        Raises:
            OSError: none can be written to the volume.
        """
        os.makedirs(self._folder, exist_ok=True)
        pattern = re.compile(r"%s(\d+|probe)-%s-\d+" % (re.escape(files.UNFINISHED), re.escape(self._run)))
        for name in [name for name in os.listdir(self._folder) if pattern.fullmatch(name)]:
            _remove_unfinished(os.path.join(self._folder, name))
        probe = files.unfinished(self._folder, "probe", self._run)
        os.mkdir(probe)
        os.rmdir(probe)
        if self.memory:
            self.memory.prepare()

    def newest(self, check: Callable[[Values], object] = lambda manifest: None) -> Optional[StoredCheckpoint]:
        """The newest complete checkpoint, be it in memory or on the volume.

        Damaged ones, also those whose manifest *check* says so of, are removed from memory and renamed on the volume,
        each with a line on stderr.

        Raises:
            WrongIdentity: it belongs to something else.
            OSError: one cannot be read: it may be complete, and an earlier one would undo work.
        """
        for path, in_memory in self._paths():
            try:
                return self._read(path, check)
            except files.Damaged as problem:
                if in_memory:
                    files.remove(path)
                    print_message(
                        "checkpoint %s in memory is damaged and was removed: %s" % (os.path.basename(path), problem)
                    )
                    continue
                name = os.path.basename(path)
                renamed = "%s%s-%d" % (_DAMAGED, name, time.time())
                os.rename(path, os.path.join(self._folder, renamed))
                print_message("checkpoint %s is damaged and was renamed to %s: %s" % (name, renamed, problem))
        return None

    def write(self, iteration: int, values: Values, state: Any, reason: str) -> str:
        """Write a checkpoint to the volume and remove those beyond the number to keep; its folder.

        Raises:
            OSError: it could not be written; earlier ones are then untouched.
            TypeError: the state has a value that no checkpoint can hold.
        """
        self._background.make_way(iteration)
        with locked(os.environ.get(protocol.ENV_PID_FILE)):  # the agent waits for it before it kills this rank
            return self._write(iteration, values, encode(state), reason)

    def write_later(self, iteration: int, values: Values, state: Any, ended: Callable[[Written], None]) -> None:
        """Begin to write a checkpoint to the volume, from a copy of the state; a thread calls *ended* at its end.

        One that is still under way goes on, and this one is left out. Where memory does not suffice for a copy, it has
        been written when this returns.

        Raises:
            TypeError: the state has a value that no checkpoint can hold.
        """
        under_way = self._background.under_way()
        if under_way is not None:
            reason = "that of iteration %d is still being written, after %.1f s" % under_way
            ended(Written(iteration, "", 0.0, OSError(reason)))
            return
        parts = encode(state)
        copy = copied(parts)
        # What is lost with this rank is in memory too, for which no attempt waits; else the agent waits for it.
        lock = None if self.memory and self.memory.names() else os.environ.get(protocol.ENV_PID_FILE)

        def write(pieces: Iterable[Part]) -> None:
            start = time.perf_counter()
            with locked(lock):
                try:
                    path, problem = self._write(iteration, values, pieces, "timer"), None
                except OSError as error:
                    path, problem = "", error
                except Dropped:
                    return
                ended(Written(iteration, path, time.perf_counter() - start, problem))

        if copy is None:
            write(parts)
        else:
            self._background.start(iteration, copy, write)

    def _write(self, iteration: int, values: Values, parts: Iterable[Part], reason: str) -> str:
        final = os.path.join(self._folder, files.name_of(iteration))
        if os.path.isfile(os.path.join(final, files.MANIFEST)) and _has_state(final, parts):
            return final
        temporary = files.unfinished(self._folder, "%09d" % iteration, self._run)
        try:
            size, digest = _write_state(temporary, parts)
            files.publish(temporary, final, self._manifest(iteration, values, reason, size, digest))
        except (OSError, Dropped) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, OSError) and error.errno:
                raise OSError(error.errno, error.strerror, self._folder) from error
            raise
        files.keep_newest(self._folder, self._keep)
        return final

    def remember(self, iteration: int, values: Values, state: Any) -> None:
        """Write a checkpoint to memory; the rest of it happens in the background."""
        assert self.memory is not None, "somebody asked whether it is due"
        manifest = self._manifest(iteration, values, "memory", 0, "")
        self.memory.write(iteration, manifest, encode(state))

    def _manifest(self, iteration: int, values: Values, reason: str, size: int, digest: str) -> Values:
        return {
            "iteration": iteration,
            **values,
            "identity": self._identity,
            "reason": reason,
            "time": time.time(),
            "files": {files.STATE: {"bytes": size, "sha256": digest}},
        }

    def _paths(self) -> Iterator[tuple[str, bool]]:
        """The folder of each checkpoint and whether it is in memory, the newest first."""
        found = [(name, False) for name in files.names(self._folder)]
        memory = self.memory.folder if self.memory else ""
        found += [(name, True) for name in (self.memory.names() if self.memory else ())]
        for name, in_memory in sorted(found, reverse=True):
            yield os.path.join(memory if in_memory else self._folder, name), in_memory

    def _read(self, path: str, check: Callable[[Values], object]) -> StoredCheckpoint:
        manifest = files.read_manifest(path)
        check(manifest)
        data = files.read_state(path, manifest)
        own, stored = self._identity, manifest.get("identity")
        if not isinstance(stored, dict):
            raise files.Damaged("%s lacks 'identity'" % files.MANIFEST)
        differing = [
            "%s %s (not %s)" % (name, stored.get(name), own[name]) for name in own if own[name] != stored.get(name)
        ]
        if differing:
            raise WrongIdentity("checkpoint %s belongs to %s" % (path, ", ".join(differing)))
        return StoredCheckpoint(path, manifest, decode(data))


class Unloadable(ValueError):
    """The files of a model are missing, damaged or no checkpoint, which another attempt of a run cannot change."""


def read(folder: Optional[str] = None) -> Any:
    """The state in the folder of a checkpoint or of a model that was kept, as it was saved.

    By default that of the model that the spec names with `init`; None where it names none.

    Raises:
        ValueError: its files are missing or damaged, or no checkpoint. In a run that nobody handles it, this ends the
            run, without another attempt.
        OSError: the storage does not answer.
    """
    folder = folder or os.environ.get(protocol.ENV_INIT)
    if not folder:
        return None
    try:
        return decode(files.read_state(folder, files.read_manifest(folder)))
    except (files.Damaged, PermissionError, LookupError, ValueError, TypeError, AttributeError) as problem:
        remedy = "`spotmpi models verify` says whether the model is damaged; keep it again, or name another one"
        error = Unloadable("the model in %s cannot be loaded: %s; %s" % (folder, problem, remedy))
        _end_run_with(error)
        raise error from problem


def _end_run_with(problem: Unloadable) -> None:
    """Let *problem* end the run for good if nobody handles it."""
    if protocol.ENV_RUN not in os.environ:
        return
    show = sys.excepthook

    def end(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        show(kind, error, trace)
        if error is problem:
            print(protocol.encode(protocol.FATAL, reason=str(error)), flush=True)
            sys.stderr.flush()
            os._exit(protocol.NOT_RETRYABLE)  # without waiting for other ranks in a collective

    sys.excepthook = end


class Written(NamedTuple):
    """The end of a checkpoint to the volume: its folder, or the problem that prevented it, and how long it took."""

    iteration: int
    path: str
    seconds: float
    problem: Optional[OSError] = None

    @property
    def failure(self) -> str:
        """The problem for people: where, what and a remedy."""
        error = self.problem or OSError()
        reason = "%s: %s" % (error.filename, error.strerror) if error.strerror else str(error)
        remedy = _REMEDIES.get(error.errno or 0, "")
        return "checkpoint of iteration %d not written: %s%s; earlier ones are untouched" % (
            self.iteration,
            reason,
            remedy and "; " + remedy,
        )


class Dropped(Exception):
    """Another checkpoint is to be written instead."""


class Background:
    """A thread that writes a checkpoint, if there is one."""

    def __init__(self) -> None:
        self._thread: Optional[threading.Thread] = None
        self._dropped = threading.Event()
        self._iteration = 0
        self._since = 0.0

    def under_way(self) -> Optional[Tuple[int, float]]:
        """The iteration of the checkpoint that is being written, and the seconds so far."""
        if self._thread is None or not self._thread.is_alive():
            return None
        return self._iteration, time.monotonic() - self._since

    def start(self, iteration: int, copy: List[Part], write: Callable[[Iterator[memoryview]], None]) -> None:
        """Let *write* write the pieces of *copy*; the one before has ended."""
        self._iteration, self._since, self._dropped = iteration, time.monotonic(), threading.Event()
        self._thread = begin(write, _pieces(copy, self._dropped))

    def make_way(self, iteration: int) -> None:
        """Drop the checkpoint under way, for another one of *iteration*; one of the same iteration is finished."""
        if self._thread is None:
            return
        if self._iteration == iteration:
            self._thread.join()
        else:
            self._dropped.set()  # a call that waits for the volume goes on, and nobody waits for it


def copied(parts: List[Part]) -> Optional[List[Part]]:
    """A copy of all *parts*, in order; None where memory does not suffice for it. Those on a GPU are copies already."""
    if sum(map(len, parts)) > _available_memory():
        return None
    return [part if isinstance(part, DeviceArray) else memoryview(bytes(part)) for part in parts]


def store_of_rank(environ: Mapping[str, str], folder: str, keep: int, identity: Values) -> Store:
    """The checkpoints of this rank's run in *folder*, and in memory where *environ* says so."""
    run = environ.get(protocol.ENV_RUN, "by-hand")
    path, every = environ.get(protocol.ENV_CHECKPOINT_MEMORY_PATH), environ.get(protocol.ENV_CHECKPOINT_MEMORY)
    return Store(folder, keep, identity, run, Memory(path, every, run) if path and every else None)


def _has_state(path: str, parts: Iterable[Part]) -> bool:
    """Whether the checkpoint in *path* has the state of *parts*, as is assumed of those that are written later."""
    if not isinstance(parts, list):
        return True
    digest = hashlib.sha256()
    for part in parts:
        digest.update(bytes_of(part))
    try:
        return bool(files.read_manifest(path)["files"][files.STATE].get("sha256") == digest.hexdigest())
    except (files.Damaged, LookupError, TypeError, AttributeError):
        return False


def _write_state(folder: str, parts: Iterable[Part]) -> tuple[int, str]:
    """Write the *parts* of a state to a file in a new *folder*; its size and SHA-256."""
    os.mkdir(folder)
    digest = hashlib.sha256()
    with open(os.path.join(folder, files.STATE), "wb") as file:
        for part in parts:
            data = bytes_of(part)
            file.write(data)
            digest.update(data)
        file.flush()
        os.fsync(file.fileno())
        return file.tell(), digest.hexdigest()


def _remove_unfinished(path: str) -> None:
    try:
        remove_folder(path)
    except FileNotFoundError:
        return  # its writer has just renamed or removed it
    print_message("incomplete checkpoint %s removed" % os.path.basename(path))


def print_message(text: str) -> None:
    """Print a line to stderr at once, as some are a thread's."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _pieces(copy: List[Part], dropped: threading.Event) -> Iterator[memoryview]:
    """The pieces of *copy*; `Dropped` once nobody wants them any more."""
    for part in copy:
        view = bytes_of(part)
        for start in range(0, len(view), _PIECE):
            if dropped.is_set():
                raise Dropped
            yield view[start : start + _PIECE]
    if dropped.is_set():
        raise Dropped


def _available_memory() -> float:
    """Bytes that this process may still use, by the limit of its cgroup and by what the machine has."""
    allowed, free = hardware.available_memory(hardware.own_cgroup()), None
    with contextlib.suppress(OSError), open("/proc/meminfo", encoding="utf-8") as file:
        free = re.search(r"^MemAvailable:\s*(\d+) kB$", file.read(), re.MULTILINE)
    unlimited = float("inf")
    return min(unlimited if allowed is None else allowed, 1024 * int(free.group(1)) if free else unlimited)
