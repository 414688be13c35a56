"""The results of a prediction by batch number, each complete or absent, so that a replay replaces its equal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spotmpi.streams.errors import StreamError
from spotmpi.streams.order import FILES, FORMATS, PARQUET
from spotmpi.streams.sources import function

Write = Callable[[Any, int], Any]


class ResultFiles:
    """A folder with one file for each batch, or with one folder of files."""

    def __init__(self, folder: Path, suffix: str) -> None:
        self._folder, self._suffix = folder, suffix
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, number: int) -> Path:
        """The file or folder of a batch; names are in the order of batches."""
        name = f"results-{number:08d}"
        return self._folder / (name if self._suffix == FILES else f"{name}.{self._suffix}")

    def missing(self, numbers: Sequence[int]) -> list[int]:
        """Those of *numbers* that have no result yet."""
        return [number for number in numbers if not self.path(number).exists()]

    def write(self, results: Any, number: int) -> None:
        """Write the results of a batch: a dictionary of columns, or a list of rows; of files, contents by name."""
        path = self.path(number)
        partial = path.with_suffix(".partial")
        if self._suffix == FILES:
            _write_files(partial, results)
            shutil.rmtree(path, ignore_errors=True)
        elif self._suffix == PARQUET:
            _write_parquet(partial, results)
        else:
            partial.write_text("".join(json.dumps(row, default=_plain) + "\n" for row in _rows(results)))
        partial.replace(path)


def writer(write: str, folder: Path) -> ResultFiles | Write:
    """What writes results: files in *folder*, or the user's function."""
    if write in FORMATS:
        return ResultFiles(folder, write)
    return function(write)


def _write_files(folder: Path, contents: Any) -> None:
    if not isinstance(contents, dict):
        raise StreamError(f'write = "files" needs a dictionary of bytes or text by name, not {type(contents).__name__}')
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in contents.items():
        if Path(name).name != name:
            raise StreamError(f"a result named {name!r} is not a plain file name")
        (folder / name).write_bytes(content.encode(errors="surrogateescape") if isinstance(content, str) else content)


def _write_parquet(path: Path, results: Any) -> None:
    table = table_of(results)
    import pyarrow.parquet

    pyarrow.parquet.write_table(table, path)


def table_of(results: Any) -> Any:
    """A table of pyarrow: of columns by name, of rows as dictionaries, or of a table of any library."""
    try:
        import pyarrow
    except ModuleNotFoundError:
        remedy = 'install spotmpi[streams], add pyarrow to the image, or use write = "jsonl"'
        raise StreamError(f"results cannot be written as Parquet without pyarrow: {remedy}") from None
    if isinstance(results, (dict, pyarrow.RecordBatch)) or hasattr(results, "__arrow_c_stream__"):
        return pyarrow.table(results)
    rows = list(results)
    names = dict.fromkeys(name for row in rows for name in row)  # `Table.from_pylist` has those of the first row
    return pyarrow.table({name: [row.get(name) for row in rows] for name in names})


def _rows(results: Any) -> list[Any]:
    if isinstance(results, dict):
        return [dict(zip(results, values, strict=True)) for values in zip(*results.values(), strict=True)]
    return list(results)


def _plain(value: Any) -> Any:
    """A number or array of numpy, a tensor or a time, as JSON knows it."""
    if getattr(getattr(value, "dtype", None), "kind", "") == "M":  # whose nanoseconds would be a number
        value = value.astype(str)
    for method in ("tolist", "isoformat"):
        if hasattr(value, method):
            return getattr(value, method)()
    remedy = 'yield numbers, text, times, and lists and dictionaries of them, or use write = "parquet"'
    raise StreamError(f"JSON cannot hold a {type(value).__name__}: {remedy}")
