"""Where the results of a prediction go: a sink knows which batches it has, and takes each whole or not at all.

A rank writes the results of its own batches, so that a worker that prepares or postprocesses one twice changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from spotmpi.agent import record
from spotmpi.streams.errors import StreamError
from spotmpi.streams.order import FILES
from spotmpi.streams.results import FileWithoutRows

Results = Sequence[tuple[int, Any]]  # what `spotmpi.streams.results.encode` gave for batches, by number
_EMPTY = ".empty"  # in a folder of files: a JSON list of those that the results have without a byte
_PARTIAL = re.compile(r"\.results-(\d+)\..*part")


class Sink(Protocol):
    """A place for results.

    Attributes:
        most: how many batches one `write` takes with advantage.
    """

    most: int

    def missing(self, numbers: Sequence[int]) -> list[int]:
        """Those of *numbers* whose results it does not have yet."""
        ...

    def write(self, results: Results) -> None:
        """Take the results of batches."""
        ...


class FunctionSink:
    """A function of the user, called with results and number, and perhaps again after an interruption."""

    most = 1

    def __init__(self, function: Callable[[Any, int], Any]) -> None:
        self._function = function

    def missing(self, numbers: Sequence[int]) -> list[int]:
        """All of them: nothing is known of the function's results."""
        return list(numbers)

    def write(self, results: Results) -> None:
        """Call the function for each batch."""
        for number, values in results:
            self._function(values, number)


class ResultFiles:
    """A folder with one file for each batch, or with one folder of files.

    The name of one without rows, or without rows and types in Parquet, begins with ``_``, so that readers of the
    folder, which take the columns of the first file for those of all, pass it over.
    """

    most = 1

    def __init__(self, folder: Path, suffix: str) -> None:
        self._folder, self._suffix = folder, suffix
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, number: int) -> Path:
        """The file or folder of a batch; names are in the order of batches."""
        return self._folder / self._name(number)

    def _name(self, number: int) -> str:
        name = f"results-{number:08d}"
        return name if self._suffix == FILES else f"{name}.{self._suffix}"

    def missing(self, numbers: Sequence[int]) -> list[int]:
        """Those of *numbers* that have no result yet; what an interrupted process left of them is removed.

        Empty files count as missing: that is what a machine that lost its power has of those that it wrote last. So do
        those in a folder of files that its own list of empty ones does not name.
        """
        existing = {path.name: path for path in self._folder.iterdir()}
        named = ((number, self._name(number)) for number in numbers)
        places = ((number, existing.get(name) or existing.get(f"_{name}")) for number, name in named)
        missing = [number for number, path in places if path is None or _has_empty_file(path)]
        own = set(missing)
        for name, path in existing.items():
            partial = _PARTIAL.fullmatch(name)
            if partial and int(partial[1]) in own:
                _remove(path)
        return missing

    def write(self, results: Results) -> None:
        """Write the results of batches: bytes, or of files bytes by name.

        Raises:
            StreamError: the disk is full.
        """
        for number, content in results:
            path = self._folder / f"{'_' * isinstance(content, FileWithoutRows)}{self._name(number)}"
            # Another process may write the same results, as where the node of an earlier attempt is still up.
            partial = self._folder / f".results-{number:08d}.{os.urandom(4).hex()}.part"
            try:
                if self._suffix == FILES:
                    partial.mkdir()
                    for name, each in content.items():
                        (partial / name).write_bytes(each)
                    if empty := [name for name, each in content.items() if not each]:
                        (partial / _EMPTY).write_text(json.dumps(empty), encoding="utf-8")
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    partial.write_bytes(content)
                partial.replace(path)
            except BaseException as error:
                _remove(partial)
                if isinstance(error, OSError) and error.errno in record.DISK_FULL:
                    raise StreamError(record.disk_full_reason(error, str(path))) from None
                raise


def _has_empty_file(path: Path) -> bool:
    if not stat.S_ISDIR(path.stat().st_mode):
        return path.stat().st_size == 0
    empty = {each.name for each in path.iterdir() if each.stat().st_size == 0}
    return bool(empty) and not empty <= _recorded_empty(path)


def _recorded_empty(folder: Path) -> set[str]:
    try:
        return set(json.loads((folder / _EMPTY).read_text(encoding="utf-8")))
    except (FileNotFoundError, TypeError, ValueError):  # as a machine that lost its power leaves it
        return set()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)
