"""Files that a driver uploads to the workers of a pool, also to those that come later."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from distributed.diagnostics.plugin import WorkerPlugin

from spotmpi.programs.pool.call import load_function

folder = ""  # the working folder of this worker, from which functions import
_times: dict[str, float] = {}  # of the uploads that this worker has, by name


class UploadedFiles(WorkerPlugin):
    """The content of a file or folder by path, relative to the workers' folder; *name* is the first part of the paths.

    Modules among them are imported anew by the next call that needs them. Of several uploads of a name the one with the
    greatest *time* counts, in whatever order they arrive.
    """

    def __init__(self, name: str, contents: dict[str, bytes], time: float) -> None:
        self.name = f"spotmpi-files-{name}"
        self._first, self._contents, self._time = name, contents, time

    def setup(self, worker: Any) -> None:
        """Write the files to this worker's folder, and forget modules that came from earlier ones."""
        if _times.get(self._first, 0.0) > self._time:
            return
        _times[self._first] = self._time
        for name, content in self._contents.items():
            _write(Path(folder, name), content)
        name = self._first.partition(".")[0]
        for module in list(sys.modules):
            if module.partition(".")[0] == name and name != "spotmpi":
                del sys.modules[module]
        importlib.invalidate_caches()
        load_function.cache_clear()


def read(path: Path) -> dict[str, bytes]:
    """The contents of a file, or of a folder's files, by the path that they get on the workers.

    Raises:
        OSError: it cannot be read.
    """
    if not path.is_dir():
        return {path.name: path.read_bytes()}
    files = (file for file in sorted(path.rglob("*")) if file.is_file() and "__pycache__" not in file.parts)
    return {str(Path(path.name, file.relative_to(path))): file.read_bytes() for file in files}


def _write(path: Path, content: bytes) -> None:
    """Write a file and remove its bytecode: one of another version may have the same size and second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        cached.unlink(missing_ok=True)
