"""Parquet and CSV files as sources: their rows as arrays by column. Read by pyarrow, from any storage of fsspec."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

from spotmpi.streams.errors import StreamError
from spotmpi.streams.order import Slice
from spotmpi.streams.storage import file_system


def count_rows(source: str, name: str, version: str, is_csv: bool) -> int:
    """The number of rows of a file."""
    return int(_csv(source, name, version).num_rows) if is_csv else sum(_groups(source, name, version))


def read_columns(source: str, slices: Sequence[Slice], is_csv: bool) -> dict[str, Any]:
    """The rows of *slices* as arrays by column."""
    import pyarrow

    tables = [table for each in slices for table in (_csv_rows if is_csv else _parquet_rows)(source, each)]
    try:
        table = pyarrow.concat_tables(tables, promote_options="permissive")
    except pyarrow.ArrowException as error:
        names = ", ".join(dict.fromkeys(each.part.name for each in slices))
        raise StreamError(f"{names} cannot be read together: {error}") from error
    return {name: column.to_numpy() for name, column in zip(table.column_names, table.columns, strict=True)}


def _csv_rows(source: str, rows: Slice) -> list[Any]:
    return [_csv(source, rows.part.name, rows.part.version).slice(rows.start, rows.stop - rows.start)]


def _parquet_rows(source: str, rows: Slice) -> list[Any]:
    part = rows.part
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
def _csv(source: str, name: str, version: str) -> Any:
    """A CSV file, as a table."""
    _require_pyarrow(name)
    import pyarrow.csv

    with file_system(source)[0].open(name) as file:
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
        return pyarrow.parquet.ParquetFile(file_system(source)[0].open(name))
    except pyarrow.ArrowInvalid as error:
        raise StreamError(f"{name} cannot be read as Parquet: {error}") from error


def _require_pyarrow(name: str) -> None:
    try:
        importlib.import_module("pyarrow")
    except ModuleNotFoundError:
        remedy = "install spotmpi[streams], or add pyarrow to the image"
        raise StreamError(f"{name} cannot be read without pyarrow: {remedy}") from None
