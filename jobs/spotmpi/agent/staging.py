"""Copies a data set from shared storage to this node, before its ranks start."""

from __future__ import annotations

import concurrent.futures
import os
import shutil
import threading

from . import hardware
from .outcomes import Outcome, outcome_of_error
from .plan import StagingPlan

COPY_THREADS = 16  # shared storage has high latency, not low throughput


class Staging:
    """Copies a data set in the background; with a *plan* of None there is nothing to do.

    Files that are kept in memory count towards the limit of *cgroup*.
    """

    def __init__(self, plan: StagingPlan | None, cgroup: str) -> None:
        self._cgroup = cgroup
        self.failure: Outcome | None = None  # of the attempt, where the copy failed
        self._copied, self._size = 0, 0  # bytes
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, args=(plan,), daemon=True)
        if plan is not None:
            self._thread.start()

    @property
    def error(self) -> str | None:
        """Why the copy failed, or None."""
        return self.failure and self.failure.reason

    @property
    def busy(self) -> bool:
        """Whether the copy is in progress."""
        return self._thread.is_alive()

    def __str__(self) -> str:
        tenths = 10 * self._copied // max(self._size, 1)
        return "%d0 %% of %.1f GB of data copied" % (tenths, self._size / 1e9)

    def _run(self, plan: StagingPlan) -> None:
        try:
            self._copy(plan["from"], plan["to"], plan["stage"])
        except OSError as error:
            reason = "data %s cannot be staged: %s" % (plan["from"], error)
            self.failure = outcome_of_error(error)._replace(reason=reason)

    def _copy(self, source: str, target: str, stage: str) -> None:
        files = _files(source)
        self._size = sum(size for _, size in files)
        os.makedirs(target, exist_ok=True)
        free = hardware.free_bytes(target, self._cgroup if stage == "memory" else None)
        if self._size > free:
            place = "in the memory of this pod" if stage == "memory" else "on the disk of this node"
            raise OSError("it has %.1f GB, %.1f GB are free %s" % (self._size / 1e9, free / 1e9, place))
        for folder in sorted({os.path.dirname(name) for name, _ in files}):
            os.makedirs(os.path.join(target, folder), exist_ok=True)
        with concurrent.futures.ThreadPoolExecutor(COPY_THREADS) as pool:
            for _ in pool.map(lambda file: self._copy_file(source, target, *file), files):
                pass

    def _copy_file(self, source: str, target: str, name: str, size: int) -> None:
        shutil.copyfile(os.path.join(source, name), os.path.join(target, name))
        with self._lock:
            self._copied += size


def _files(source: str) -> list[tuple[str, int]]:
    """Path below *source* and size of every file; OSError where the folder cannot be read."""
    files = []

    def fail(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(source, onerror=fail, followlinks=True):
        for name in names:
            path = os.path.join(folder, name)
            files.append((os.path.relpath(path, source), os.path.getsize(path)))
    return files
