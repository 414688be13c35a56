"""The newest checkpoints of a run in the memory of rank 0's node, where they survive the processes.

At most two are kept, in files that are written over in turn. While a file is written, the other one is complete.
"""

from __future__ import annotations

import functools
import mmap
import os
import shutil
import sys
import threading
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Optional

from spotmpi.agent import checkpoint_files as files
from spotmpi.agent import hardware
from spotmpi.checkpoint.device import DeviceArray, Transfer, fill, page_lock, transfers
from spotmpi.checkpoint.state import Part

KEPT = 2
_WAITED_FOR = 16_000_000  # bytes: checkpoints of up to so many are complete some milliseconds after they were taken


def begin(work: Callable[..., None], *arguments: Any) -> Optional[threading.Thread]:
    """Do *work* in a thread; here, and None, where none can be started, since the limit of the pod is used up."""
    thread = threading.Thread(target=work, args=arguments, name="checkpoint")
    try:
        thread.start()
    except RuntimeError:
        work(*arguments)
        return None
    return thread


class _Map:
    """A file in memory, whose pages GPUs may write to once it is locked."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory
        self.unlock: Callable[[], object] = lambda: None
        self._is_locked = False

    def lock(self) -> None:
        """Let GPUs write to it."""
        if not self._is_locked:
            self.unlock, self._is_locked = page_lock(self.memory), True


class Memory:
    """The checkpoints of *run* in *folder*, which is in memory: one every *every* (iterations, ``10s`` or so).

    A checkpoint of more than 16 MB is left out while the one before is being completed, which takes 0.09 s for 208 MB
    on 16 cores and 0.2 s on few: of iterations that are faster not each has one, and none of them waits.
    A problem there is printed once, and from then on checkpoints go to the volume alone.
    """

    def __init__(self, folder: str, every: str, run: str, now: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self._run = run
        self._now = now
        self._seconds = float(every[:-1]) if every.endswith("s") else None
        self._iterations = 0 if every.endswith("s") else int(every)
        self._last = now()
        self._maps: Dict[int, _Map] = {}  # by inode: files that are written over keep their pages
        self._writing: Optional[Future[None]] = None
        self._executor = _executor()
        self._size = 0  # of the newest, in bytes
        self._error: Optional[OSError] = None

    def prepare(self) -> None:
        """Remove what earlier processes have not completed, but what the agent is sending: it removes that itself."""
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            for name in os.listdir(self.folder):
                if name.startswith(files.UNFINISHED) and not name.startswith(files.SENT):
                    shutil.rmtree(os.path.join(self.folder, name))
        except OSError as error:
            self._give_up(error)

    def names(self) -> List[str]:
        """The names of the checkpoints, oldest first."""
        try:
            return files.names(self.folder)
        except OSError:
            return []

    def due(self, iteration: int) -> bool:
        """Whether a checkpoint after *iteration* is to be written."""
        if self._error or (self._writing is not None and not self._writing.done() and self._size > _WAITED_FOR):
            return False
        if self._seconds is None:
            return iteration % self._iterations == 0
        return self._now() >= self._last + self._seconds

    def write(self, iteration: int, manifest: Dict[str, Any], state: List[Part]) -> None:
        """Copy the parts of *state* now and complete the checkpoint in the background, after the one before.

        Parts on a GPU have been copied there, and come to the host in the background.
        """
        self.wait()
        if self._error:
            return
        self._last = self._now()
        try:
            temporary = self._free_folder(iteration)
            self._size = sum(len(part) for part in state)
            target = self._mapped(os.path.join(temporary, files.STATE), self._size)
        except OSError as error:
            self._give_up(error)
            return
        end, later = 0, []
        for part in state:
            start, end = end, end + len(part)
            if isinstance(part, DeviceArray):
                later.append((part, start))
            else:
                target.memory[start:end] = part
        if later:
            target.lock()
        work = functools.partial(self._complete, temporary, iteration, manifest, target.memory, transfers(later))
        try:
            self._writing = self._executor.submit(work)
        except RuntimeError:  # as in `begin`
            self._executor = _executor()  # that one would do the work, too, once it can
            work()

    def wait(self) -> None:
        """Wait until the checkpoint that is being written is complete."""
        if self._writing is not None:
            error, self._writing = self._writing.exception(), None
            if error is not None:  # not of the disk; training goes on
                traceback.print_exception(type(error), error, error.__traceback__)

    def _complete(
        self,
        temporary: str,
        iteration: int,
        manifest: Dict[str, Any],
        state: mmap.mmap,
        pending: List[Transfer],
    ) -> None:
        """Fill in what is *pending* on GPUs, piece by piece, and give the checkpoint its name.

        All at once, that slowed down the next batch on its way to the GPU.
        """
        with memoryview(state) as view:
            load = functools.partial(fill, view, pending=pending)
            described = {"bytes": len(state), "pieces": files.piece_digests(view, _threads(), begin, load)}
        try:
            final = os.path.join(self.folder, files.name_of(iteration))
            files.publish(temporary, final, {**manifest, "files": {files.STATE: described}}, durable=False)
        except OSError as error:
            self._give_up(error)

    def _free_folder(self, iteration: int) -> str:
        """The folder for a new checkpoint: that of the oldest one, where there are as many as are kept.

        One that somebody reads by a link of its own is not written over.
        """
        temporary = files.unfinished(self.folder, "%09d" % iteration, self._run)
        names = files.names(self.folder)
        for name in names[:-KEPT]:
            files.remove(os.path.join(self.folder, name))
        if len(names) < KEPT:
            os.mkdir(temporary)
            return temporary
        paths = [os.path.join(self.folder, name) for name in names[-KEPT:]]
        oldest = next((path for path in paths if os.stat(os.path.join(path, files.STATE)).st_nlink == 1), paths[0])
        os.remove(os.path.join(oldest, files.MANIFEST))
        os.rename(oldest, temporary)
        return temporary

    def _mapped(self, path: str, size: int) -> _Map:
        """The file *path* of *size* bytes in memory; its pages are there: a page that is missing would end the process.

        Raises:
            OSError: it does not fit.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            status = os.fstat(descriptor)
            mapped = self._maps.get(status.st_ino)
            if mapped is not None and len(mapped.memory) == size and status.st_nlink == 1:
                return mapped
            if status.st_size:  # of an earlier process, or of another size
                os.close(descriptor)
                os.remove(path)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            _require_room(self.folder, size, KEPT - len(files.names(self.folder)))
            os.posix_fallocate(descriptor, 0, size)
            mapped = _Map(mmap.mmap(descriptor, size))
            self._maps[os.fstat(descriptor).st_ino] = mapped
        finally:
            os.close(descriptor)
        while len(self._maps) > KEPT:
            dropped = self._maps.pop(next(iter(self._maps)))
            dropped.unlock()  # while it is mapped
        return mapped

    def _give_up(self, error: OSError) -> None:
        self._error = error
        text = "no more checkpoints are written to memory (%s): %s; they go to the volume alone"
        print(text % (self.folder, error.strerror or error), file=sys.stderr, flush=True)


def _executor() -> ThreadPoolExecutor:
    """The thread that completes checkpoints; while another one was started for each, training stood still."""
    return ThreadPoolExecutor(1, "checkpoint")


def _threads() -> int:
    """How many compute the digests of a checkpoint: a quarter of the cores, since loaders prepare data on the rest."""
    return max(1, min(8, hardware.usable_cores() // 4))


def _require_room(folder: str, size: int, count: int) -> None:
    """Raise OSError unless *count* files of *size* bytes fit into *folder* and into the memory of this pod."""
    free, limited = hardware.free_bytes(folder, None), hardware.free_bytes(folder, hardware.own_cgroup())
    if size * count > limited:
        needed = "%d checkpoints of %.1f MB do not fit into %.1f MB" % (count, size / 1e6, limited / 1e6)
        remedy = "raise resources.memory" if limited < free else "free memory there, or omit checkpoint.memory"
        raise OSError("%s: %s" % (needed, remedy))
