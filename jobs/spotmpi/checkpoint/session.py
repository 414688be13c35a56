"""`save` and `load` for any program: when, where and by which rank checkpoints are written, by its environment."""

from __future__ import annotations

import operator
import os
import signal
import sys
import threading
import time
from typing import Any, Callable, Mapping, NamedTuple, Optional, Union

from spotmpi.agent import protocol
from spotmpi.agent.files import write_atomically
from spotmpi.checkpoint.state import encode
from spotmpi.checkpoint.store import Store, Values, Written, WrongIdentity, print_message, store_of_rank

State = Union[Mapping[str, Any], Callable[[], Mapping[str, Any]]]
Broadcast = Callable[[Any], Any]


class Loaded(NamedTuple):
    """A checkpoint: the number of iterations that were finished, and the state as it was saved."""

    iteration: int
    state: Any


class Session:
    """The checkpoints of this process, which is rank 0, as *environ* describes them."""

    def __init__(self, environ: Mapping[str, str], identity: str, now: Callable[[], float] = time.monotonic) -> None:
        self.identity = identity
        self._now = now
        self._world: Values = {"world_size": world_size(environ)}
        self._every = float(environ.get(protocol.ENV_CHECKPOINT_EVERY) or protocol.CHECKPOINT_EVERY)
        self._due = now() + self._every
        self._noticed = False
        self._is_checked = False  # whether a state of this program can be saved
        folder = environ.get(protocol.ENV_CHECKPOINT_PATH)
        if not folder:
            print_message("no checkpoints: %s is not set, as it is under `spotmpi run`" % protocol.ENV_CHECKPOINT_PATH)
            self._store: Optional[Store] = None
            return
        keep = int(environ.get(protocol.ENV_CHECKPOINT_KEEP) or protocol.CHECKPOINT_KEEP)
        self._store = store_of_rank(environ, folder, keep, {"identity": identity})
        self._store.prepare()
        self._take_notice(environ.get(protocol.ENV_PID_FILE))

    def load(self) -> Optional[Loaded]:
        """The newest complete checkpoint."""
        found = self._store.newest() if self._store else None
        if found is None:
            return None
        _report(protocol.RESUMED, iteration=found.manifest["iteration"], path=found.path)
        return Loaded(found.manifest["iteration"], found.state)

    def save(self, iteration: int, state: State, now: bool) -> None:
        """Write what is due after *iteration*; the first state is checked at once, not when the first one is due."""
        try:
            iteration = operator.index(iteration)  # of numpy and tensors, too
        except TypeError:
            wrong = "the first argument is the number of iterations, and is of type %s: save(iteration, state)"
            raise TypeError(wrong % type(iteration).__name__) from None
        if not self._is_checked:
            encode(state() if callable(state) else state)
            self._is_checked = True
        store = self._store
        if store is None:
            return
        reason = "notice" if self._noticed else "end" if now else None
        to_volume, to_memory = self._now() >= self._due, store.memory is not None and store.memory.due(iteration)
        if reason is None and not (to_volume or to_memory):
            return
        values = state() if callable(state) else state
        if to_volume or reason:
            self._due = self._now() + self._every
        if reason is not None:
            self._noticed, start = False, time.perf_counter()
            try:
                path, problem = store.write(iteration, self._world, values, reason), None
            except OSError as error:
                path, problem = "", error
            _ended(Written(iteration, path, time.perf_counter() - start, problem), reason)
            return
        if to_memory:
            store.remember(iteration, self._world, values)
        if to_volume:
            store.write_later(iteration, self._world, values, _ended)

    def _take_notice(self, pid_file: Optional[str]) -> None:
        """Let the next `save` after SIGUSR1, which agents send before an end, write; a program's own handler stays."""
        in_main = threading.current_thread() is threading.main_thread()
        if pid_file and in_main and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, lambda number, frame: setattr(self, "_noticed", True))
            write_atomically(pid_file, "%d\n" % os.getpid())


_session: Optional[Session] = None


def save(iteration: int, state: State, identity: str = "", now: bool = False) -> None:
    """Save *state* after *iteration* finished iterations, if a checkpoint is due; call it after each, on every rank.

    Rank 0 writes: to memory every ``checkpoint.memory``, to the run volume every ``checkpoint.every``, before the run
    is interrupted, and with *now*, as after the last iteration. *state* has dicts, lists, numbers, text, bytes, arrays
    of numpy and tensors, or is a function that returns such a dict and is called the first time and if it is needed.

    Raises:
        TypeError: the state has a value of another type; the text names its place. Or *iteration* is no whole number.
    """
    if _rank(os.environ) == 0:
        _own_session(identity).save(iteration, state, now)


def load(identity: str = "", broadcast: Optional[Broadcast] = None) -> Optional[Loaded]:
    """The newest complete checkpoint, in memory or on the run volume, on every rank; None where there is none.

    All ranks call it at once, after ``torch.distributed.init_process_group`` or the import of ``mpi4py.MPI``: rank 0
    reads it and sends it to the others. *broadcast*, which returns the object that rank 0 passed, replaces that.
    *identity* is any text that the program saves with its checkpoints too, such as the name of the model.

    Raises:
        WrongIdentity: the checkpoint belongs to another identity.
        OSError: a checkpoint cannot be read for the moment.
        RuntimeError: there are several ranks, and no way to send it to them.
    """
    broadcast = broadcast or _broadcast(os.environ)
    found: Optional[Loaded] = None
    error: Optional[Exception] = None
    if _rank(os.environ) == 0:
        try:
            found = _own_session(identity).load()
        except (WrongIdentity, OSError) as problem:
            error = problem
    found, error = broadcast((found, error))
    if error is not None:  # on each rank: the others would wait for ever for one that ends
        raise error
    return found


def world_size(environ: Mapping[str, str]) -> int:
    """The number of ranks, from the variables of mpirun or torchrun."""
    return int(environ.get("OMPI_COMM_WORLD_SIZE") or environ.get("WORLD_SIZE") or 1)


def _rank(environ: Mapping[str, str]) -> int:
    return int(environ.get("OMPI_COMM_WORLD_RANK") or environ.get("RANK") or 0)


def _own_session(identity: str) -> Session:
    global _session
    if _session is None:
        _session = Session(os.environ, identity)
    if _session.identity != identity:
        raise ValueError("identity %r of this call is not %r, that of the first one" % (identity, _session.identity))
    return _session


def _broadcast(environ: Mapping[str, str]) -> Broadcast:
    """How rank 0 sends an object to the others, by what the program has initialized."""
    torch, mpi = sys.modules.get("torch.distributed"), sys.modules.get("mpi4py.MPI")
    if world_size(environ) == 1:
        return lambda value: value
    if torch is not None and torch.is_available() and torch.is_initialized():

        def by_torch(value: Any) -> Any:
            box = [value]
            torch.broadcast_object_list(box, src=0)
            return box[0]

        return by_torch
    if mpi is not None and mpi.Is_initialized():
        return lambda value: mpi.COMM_WORLD.bcast(value)
    raise RuntimeError(
        "several ranks load a checkpoint: call init_process_group or import mpi4py.MPI before, or pass broadcast"
    )


def _ended(checkpoint: Written, reason: str = "timer") -> None:
    """Report a checkpoint to the volume, or say why there is none."""
    iteration, path, seconds, problem = checkpoint
    if problem is None:
        _report(protocol.CHECKPOINT, iteration=iteration, path=path, seconds=seconds, reason=reason)
    else:
        print_message(checkpoint.failure)


def _report(kind: str, **values: Any) -> None:
    sys.stdout.write(protocol.encode(kind, **values) + "\n")
    sys.stdout.flush()
