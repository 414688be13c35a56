"""Files that a driver uploads to the workers of a pool, also to those that come later."""

from __future__ import annotations

import importlib.machinery
import pickle
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from distributed.diagnostics.plugin import WorkerPlugin

from spotmpi.agent import store as files_of_folder
from spotmpi.agent.files import is_file, is_folder
from spotmpi.programs.pool.call import load_function

folder = ""  # the working folder of this worker, from which functions import
_numbers: dict[str, int] = {}  # of the uploads that this worker has, by their plugin's name


class File(NamedTuple):
    """A file that is uploaded."""

    content: bytes
    executable: bool = False  # by its owner


class UploadedFiles(WorkerPlugin):
    """A file or folder that `pack` has packed, under a *key* of its name.

    Modules among its files are imported anew by the next call that needs them. Of several uploads of a key the one with
    the greatest *number* counts, in whatever order they arrive. The scheduler numbers them: drivers have clocks of
    their own, which may be set.
    """

    def __init__(self, key: str, packed: bytes, number: int) -> None:
        self.name = f"spotmpi-files-{key}"
        self._packed, self._number = packed, number

    def setup(self, worker: Any) -> None:
        """Write the files to this worker's folder, and forget modules that came from earlier ones."""
        if _numbers.get(self.name, 0) > self._number:
            return
        _numbers[self.name] = self._number
        _, files = pickle.loads(self._packed)
        for name, file in files.items():
            _write(Path(folder, name), file)
        names = _modules(files) - {"spotmpi", "__main__", *sys.builtin_module_names}
        for module in list(sys.modules):
            if module.partition(".")[0] in names:
                del sys.modules[module]
        importlib.invalidate_caches()
        load_function.cache_clear()


def read(path: Path) -> dict[str, File]:
    """A file, or the files of a folder, by the path that they get on the workers.

    Raises:
        OSError: it cannot be read.
    """
    if not is_folder(path):
        return {path.name: _read(path)}
    names = (name for name in sorted(files_of_folder.files(str(path))) if "__pycache__" not in Path(name).parts)
    return {str(Path(path.name, name)): _read(path / name) for name in names if is_file(path / name)}


def pack(name: str, files: dict[str, File]) -> tuple[str, bytes]:
    """The key of a name and what is uploaded: Dask sends no text with the surrogates of a name that is not UTF-8."""
    return ascii(name), pickle.dumps((name, files))


def _modules(names: Iterable[str]) -> set[str]:
    """The modules among uploaded files, by their first names: data may be called as a module is, such as torch.pt."""
    suffixes = tuple(importlib.machinery.all_suffixes())
    parts = [Path(name).parts for name in names if name.endswith(suffixes)]
    return {first if rest else first.partition(".")[0] for first, *rest in parts}


def _read(path: Path) -> File:
    return File(path.read_bytes(), bool(path.stat().st_mode & stat.S_IXUSR))


def _write(path: Path, file: File) -> None:
    """Write a file and remove its bytecode: one of another version may have the same size and second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.content)
    executable = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
    mode = stat.S_IMODE(path.stat().st_mode)
    path.chmod(mode | executable if file.executable else mode & ~executable)
    for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        cached.unlink(missing_ok=True)
