"""Parquet, CSV and JSON Lines files as sources: their rows as arrays by column. Read by pyarrow through fsspec."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

from spotmpi.streams.errors import StreamError
from spotmpi.streams.order import Slice
from spotmpi.streams.storage import file_system

PARQUET, CSV, JSON = "Parquet", "CSV", "JSON Lines"
_MAX_BLOCK = 2**31 - 1  # bytes that pyarrow reads at a time


def count_rows(source: str, name: str, version: str, kind: str) -> int:
    """The number of rows of a file."""
    if kind == PARQUET:
        return sum(_groups(source, name, version))
    return int(_whole(source, name, version, kind).num_rows)


def read_columns(source: str, slices: Sequence[Slice], kind: str) -> dict[str, Any]:
    """The rows of *slices* as arrays by column."""
    import pyarrow

    tables = [table for each in slices for table in _tables(source, each, kind)]
    try:
        table = pyarrow.concat_tables(tables, promote_options="permissive")
    except pyarrow.ArrowException as error:
        names = ", ".join(dict.fromkeys(each.part.name for each in slices))
        raise StreamError(f"{names} cannot be read together: {error}") from error
    return {name: _array(column) for name, column in zip(table.column_names, table.columns, strict=True)}


def _array(column: Any) -> Any:
    """A column as an array; one of objects has them as JSON's: numpy's would depend on the other rows of a batch."""
    if not _has_objects(column.type):
        return column.to_numpy()
    import numpy

    array = numpy.empty(len(column), object)
    for index, value in enumerate(column.to_pylist()):
        array[index] = value
    return array


def _has_objects(kind: Any) -> bool:
    """Whether values of an arrow type are objects, or lists that are nested."""
    from pyarrow import types

    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(types.is_nested(kind.value_type) if is_list else types.is_nested(kind))


def _tables(source: str, rows: Slice, kind: str) -> list[Any]:
    part = rows.part
    if kind != PARQUET:
        return [_whole(source, part.name, part.version, kind).slice(rows.start, rows.stop - rows.start)]
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
    import pyarrow

    try:
        return _parquet(source, name, version).read_row_group(index)
    except pyarrow.ArrowInvalid as error:
        raise StreamError(f"{name} cannot be read as Parquet: {error}") from error


@functools.lru_cache(maxsize=2)
def _whole(source: str, name: str, version: str, kind: str) -> Any:
    """A CSV or JSON Lines file, as a table."""
    _require_pyarrow(name)
    import pyarrow

    with file_system(source)[0].open(name) as file:
        try:
            return _read_csv(file) if kind == CSV else _read_json(file)
        except pyarrow.ArrowInvalid as error:
            raise StreamError(f"{name} cannot be read as {kind}: {error}") from error


def _read_csv(file: Any) -> Any:
    import pyarrow.csv

    return pyarrow.csv.read_csv(file)


def _read_json(file: Any) -> Any:
    """The lines of a file, in one block: a line may be long, and a key may appear late."""
    import pyarrow.json

    content = file.read()
    if not content:
        return pyarrow.table({})
    options = pyarrow.json.ReadOptions(block_size=min(len(content), _MAX_BLOCK))
    return pyarrow.json.read_json(pyarrow.BufferReader(content), read_options=options)


@functools.lru_cache(maxsize=4)
def _parquet(source: str, name: str, version: str) -> Any:
    """An open Parquet file: its footer is read once for all row groups."""
    _require_pyarrow(name)
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(file_system(source)[0].open(name))
    except pyarrow.ArrowInvalid as error:
        raise StreamError(f"{name} cannot be read as Parquet: {error}") from error


def _require_pyarrow(name: str) -> None:
    try:
        importlib.import_module("pyarrow")
    except ModuleNotFoundError:
        remedy = "install spotmpi[streams], or add pyarrow to the image"
        raise StreamError(f"{name} cannot be read without pyarrow: {remedy}") from None
