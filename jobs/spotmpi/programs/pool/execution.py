"""The call that a worker executes, in a file that outlives its process: so that its death is blamed on the right call.

The scheduler cannot tell, since the message that a call has finished is lost with a process that ends right after it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from distributed.diagnostics.plugin import WorkerPlugin

_SIZE = 512  # bytes of a key; longer ones are cut


class ExecutionFile(WorkerPlugin):
    """Keeps the key of the call that is executed in the file *path*, which it begins anew.

    Attributes:
        former: the key that an earlier process of this worker left: empty if it executed none, None without a file.
    """

    name = "spotmpi-execution"

    def __init__(self, path: Path) -> None:
        self.former = path.read_bytes().rstrip(b"\0").decode(errors="replace") if path.exists() else None
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        """Note that a call begins or ends; Dask calls it before it executes one."""
        if finish == "executing":
            os.pwrite(self._file, cut(key).encode().ljust(_SIZE, b"\0"), 0)
        elif start == "executing":
            os.pwrite(self._file, bytes(_SIZE), 0)


def cut(key: Any) -> str:
    """A key as the file has it."""
    return str(key).encode(errors="replace")[:_SIZE].decode(errors="replace")
