"""Bringing a data set from shared storage to this node, before its ranks start."""

from __future__ import annotations

import concurrent.futures
import os
import shutil
import threading

from . import memory, system_errors
from .outcomes import Outcome

COPIERS = 16  # files copied at once; shared storage answers late, not slowly


class Staging:
    """One copy of a data set, made in the background; with a *plan* of None there is nothing to do."""

    def __init__(self, plan: dict[str, str] | None) -> None:
        self.failure: Outcome | None = None  # of the attempt, where the copy could not be made
        self._copied, self._size = 0, 0  # bytes
        self._counting = threading.Lock()
        self._thread = threading.Thread(target=self._run, args=(plan,), daemon=True)
        if plan is not None:
            self._thread.start()

    @property
    def error(self) -> str | None:
        """Why the copy could not be made, or None."""
        return self.failure and self.failure.reason

    @property
    def busy(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    def __str__(self) -> str:
        tenths = 10 * self._copied // max(self._size, 1)
        return "%d0 %% of %.1f GB of data are copied" % (tenths, self._size / 1e9)

    def _run(self, plan: dict[str, str]) -> None:
        try:
            self._copy(plan["from"], plan["to"], plan["stage"])
        except OSError as error:
            reason = "data %s cannot be staged: %s" % (plan["from"], error)
            self.failure = system_errors.outcome(error)._replace(reason=reason)

    def _copy(self, source: str, target: str, stage: str) -> None:
        files = _files(source)
        self._size = sum(size for _, size in files)
        os.makedirs(target, exist_ok=True)
        room = _room(target, stage == "memory")
        if self._size > room:
            where = "memory that this pod may use" if stage == "memory" else "disk of this node"
            raise OSError("its %.1f GB are more than the %.1f GB of %s" % (self._size / 1e9, room / 1e9, where))
        for folder in sorted({os.path.dirname(name) for name, _ in files}):
            os.makedirs(os.path.join(target, folder), exist_ok=True)
        with concurrent.futures.ThreadPoolExecutor(COPIERS) as pool:
            for _ in pool.map(lambda file: self._file(source, target, *file), files):
                pass

    def _file(self, source: str, target: str, name: str, size: int) -> None:
        shutil.copyfile(os.path.join(source, name), os.path.join(target, name))
        with self._counting:
            self._copied += size


def _files(source: str) -> list[tuple[str, int]]:
    """Path below *source* and size of every file; OSError where the folder cannot be read."""
    found = []

    def fail(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(source, onerror=fail, followlinks=True):
        for name in names:
            path = os.path.join(folder, name)
            found.append((os.path.relpath(path, source), os.path.getsize(path)))
    return found


def _room(target: str, in_memory: bool) -> int:
    """Bytes that fit into *target*; what is in memory counts towards the limit of this pod, too."""
    room = shutil.disk_usage(target).free
    left = memory.left() if in_memory else None
    return room if left is None else min(room, left)
