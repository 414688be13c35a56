"""The sources of a stream: their parts, and the rows of a batch. Executed by workers.

Files are read by fsspec, so a source may be on any storage that it knows; pyarrow reads Parquet and CSV.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from spotmpi.streams.errors import SourceError, StreamError
from spotmpi.streams.order import FUNCTION, Part, Settings, Slice

_PARQUET, _CSV = (".parquet", ".pq"), (".csv",)
_CHECKSUMS = ("ETag", "etag", "md5Hash", "checksum", "content_md5")  # keys of fsspec's file systems


def parts_of(settings: Settings) -> list[Part]:
    """The parts of a source in the order of their names: of a function its calls, of files each one.

    Raises:
        StreamError: it does not exist, or it mixes formats.
    """
    if FUNCTION.fullmatch(settings.source):
        function(settings.source)
        return [Part(settings.source, settings.length, 0, "")]
    system, path = _system(settings.source)
    try:
        if system.isdir(path):
            entries = {name: info for name, info in system.find(path, detail=True).items() if not _hidden(name, path)}
        else:
            entries = system.glob(path, detail=True)
        paths = sorted(name for name, info in entries.items() if info["type"] != "directory")
    except OSError as error:
        raise SourceError(f"the source {settings.source} cannot be listed: {error}") from error
    if not paths:
        raise StreamError(f"the source {settings.source} is empty: no file has this name or pattern")
    formats = {_format(name) for name in paths}
    if len(formats) > 1:
        raise StreamError(f"the source {settings.source} mixes formats: name the files of one, such as *.parquet")
    return [_part(settings.source, name) for name in paths]


def read(settings: Settings, slices: Sequence[Slice]) -> Any:
    """The rows of *slices*: of Parquet and CSV arrays by column, of other files a list of (name, bytes).

    A function gives the rows itself.

    Raises:
        StreamError: a file is not what it was when the stream began.
        SourceError: the storage does not answer.
    """
    if FUNCTION.fullmatch(settings.source):
        return function(settings.source)(slices[0].start, **json.loads(settings.arguments or "{}"))
    try:
        return _read_files(settings.source, slices)
    except OSError as error:
        raise SourceError(f"{', '.join(map(str, slices))} cannot be read: {error}") from error


def _read_files(source: str, slices: Sequence[Slice]) -> Any:
    system, _ = _system(source)
    try:
        return _rows(source, system, slices)
    finally:  # checked afterwards, parts have not changed while they were read
        for part in {each.part for each in slices}:
            _check(system, part)


def _rows(source: str, system: Any, slices: Sequence[Slice]) -> Any:
    if _format(slices[0].part.name) == "":
        return [(each.part.name, system.cat_file(each.part.name)) for each in slices]
    import pyarrow

    tables = [table for each in slices for table in _tables(source, each)]
    table = pyarrow.concat_tables(tables, promote_options="permissive")
    return {name: column.to_numpy() for name, column in zip(table.column_names, table.columns, strict=True)}


def function(name: str) -> Callable[..., Any]:
    """The function ``module:function``; StreamError where there is none of this name."""
    module, _, attribute = name.partition(":")
    try:
        result: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        remedy = f"no module {error.name}; ship it with `code` or `files`, or install it in the image"
        raise StreamError(f"{name} cannot be imported: {remedy}") from error
    except AttributeError:
        raise StreamError(f"{name} cannot be imported: the module {module} has no {attribute}") from None
    return result


@functools.lru_cache(maxsize=4)
def _system(source: str) -> tuple[Any, str]:
    """The file system of a source, and the path in it."""
    import fsspec.core

    try:
        system, path = fsspec.core.url_to_fs(source)
    except (ImportError, ValueError) as error:
        raise StreamError(f"the source {source} cannot be opened: {error}") from error
    return system, path


def _part(source: str, name: str) -> Part:
    size, version = _version(_system(source)[0], name)
    rows = 1
    if _format(name) == "parquet":
        rows = sum(_groups(source, name, version))
    elif _format(name) == "csv":
        rows = _csv(source, name, version).num_rows
    return Part(name, rows, size, version)


def _version(system: Any, name: str) -> tuple[int, str]:
    system.invalidate_cache()
    info = system.info(name)
    checksum = next((str(info[key]) for key in _CHECKSUMS if info.get(key)), None)
    return int(info["size"] or 0), checksum or str(info.get("mtime") or info.get("LastModified") or info.get("created"))


def _check(system: Any, part: Part) -> None:
    try:
        size, version = _version(system, part.name)
    except FileNotFoundError:
        raise StreamError(f"{part.name} was removed while the stream reads it: start a new run") from None
    if (size, version) != (part.size, part.version):
        raise StreamError(
            f"{part.name} was changed while the stream reads it: {part.size} bytes of {part.version}, "
            f"now {size} bytes of {version}; start a new run"
        )


def _tables(source: str, rows: Slice) -> list[Any]:
    """The rows of one part, as tables of pyarrow."""
    part = rows.part
    if _format(part.name) == "csv":
        return [_csv(source, part.name, part.version).slice(rows.start, rows.stop - rows.start)]
    tables, first = [], 0
    for index, length in enumerate(_groups(source, part.name, part.version)):
        begin, end = max(rows.start, first), min(rows.stop, first + length)
        if begin < end:
            tables.append(_group(source, part.name, part.version, index).slice(begin - first, end - begin))
        first += length
    return tables


# Batches of a rank are not neighbours, and those of one worker are seldom: it keeps what it read last.
@functools.lru_cache(maxsize=64)
def _groups(source: str, name: str, version: str) -> tuple[int, ...]:
    """The number of rows of each row group of a Parquet file."""
    metadata = _parquet(source, name, version).metadata
    return tuple(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))


@functools.lru_cache(maxsize=4)
def _group(source: str, name: str, version: str, index: int) -> Any:
    """One row group of a Parquet file, as a table."""
    return _parquet(source, name, version).read_row_group(index)


@functools.lru_cache(maxsize=2)
def _csv(source: str, name: str, version: str) -> Any:
    """A CSV file, as a table."""
    _require_pyarrow(name)
    import pyarrow.csv

    with _system(source)[0].open(name) as file:
        try:
            return pyarrow.csv.read_csv(file)
        except pyarrow.ArrowInvalid as error:
            raise StreamError(f"{name} cannot be read as CSV: {error}") from error


@functools.lru_cache(maxsize=4)
def _parquet(source: str, name: str, version: str) -> Any:
    """An open Parquet file: its footer is read once for all row groups."""
    _require_pyarrow(name)
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(_system(source)[0].open(name))
    except pyarrow.ArrowInvalid as error:
        raise StreamError(f"{name} cannot be read as Parquet: {error}") from error


def _require_pyarrow(name: str) -> None:
    try:
        importlib.import_module("pyarrow")
    except ModuleNotFoundError:
        remedy = "install spotmpi[streams], or add pyarrow to the image"
        raise StreamError(f"{name} cannot be read without pyarrow: {remedy}") from None


def _format(name: str) -> str:
    """How a file is read: parquet, csv, or as bytes."""
    lower = name.lower()
    return "parquet" if lower.endswith(_PARQUET) else "csv" if lower.endswith(_CSV) else ""


def _hidden(name: str, folder: str) -> bool:
    relative = name.removeprefix(folder)
    return any(part.startswith((".", "_")) for part in relative.split("/") if part)
