"""The call that a worker executes, in a file that outlives its process: so that its death is blamed on the right call.

The scheduler cannot tell, since the message that a call has finished is lost with a process that ends right after it.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

from distributed import Worker
from distributed.core import Status
from distributed.diagnostics.plugin import WorkerPlugin

from spotmpi.programs.pool.settings import pinned_worker

_SIZE = 512  # bytes of a key; longer ones are cut
_NONE = bytes(_SIZE)


class ExecutionFile(WorkerPlugin):
    """Keeps the key of the call that is executed in the file *path*, which it begins anew.

    Attributes:
        former: the key that an earlier process of this worker left: empty if it executed none, None without a file.
    """

    name = "spotmpi-execution"

    def __init__(self, path: Path) -> None:
        self.former = path.read_bytes().rstrip(b"\0").decode(errors="replace") if path.exists() else None
        with path.open("w+b") as file:
            file.write(_NONE)  # not a hole: a page that a full disk has no room for would end the process by SIGBUS
            file.flush()
            self._key = mmap.mmap(file.fileno(), _SIZE)  # two writes took a tenth of the rate of calls of 1 ms

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        """Note that a call begins or ends; Dask calls it before it executes one."""
        if finish == "executing":
            self._key[:] = shortened(key).encode().ljust(_SIZE, b"\0")
        elif start == "executing":
            self._key[:] = _NONE


class CancelledCalls(WorkerPlugin):
    """Keeps other calls away from a worker that still executes one that was cancelled, which may never end.

    The scheduler takes such a worker for idle. Calls that are pinned to this worker wait for it.
    """

    name = "spotmpi-cancelled-calls"

    def setup(self, worker: Worker) -> None:
        """Begin with this worker."""
        self._worker = worker

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        """Look at the worker after a transition: a call was cancelled, ended after that, or arrived meanwhile."""
        arrived = finish in ("ready", "constrained") and self._worker.status == Status.paused
        if arrived or start == "cancelled" or (start, finish) == ("executing", "released"):
            self._worker.loop.add_callback(self._update)

    def _update(self) -> None:
        worker = self._worker
        if any(task.state == "cancelled" for task in worker.state.executing):
            if worker.status == Status.running:
                worker.status = Status.paused
            constrained = [
                each for each in worker.state.constrained if pinned_worker(each.resource_restrictions or ()) < 0
            ]
            for task in [*worker.state.ready, *constrained]:
                message = {"op": "reschedule", "key": task.key, "stimulus_id": f"spotmpi-occupied-{task.key}"}
                worker.batched_send(message)
        elif worker.status == Status.paused:
            worker.status = Status.running


def shortened(key: Any) -> str:
    """A key as the file has it."""
    return str(key).encode(errors="replace")[:_SIZE].decode(errors="ignore")
