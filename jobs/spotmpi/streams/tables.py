"""Parquet, CSV and JSON Lines files as sources: their rows as arrays by column. Read by pyarrow through fsspec."""

from __future__ import annotations

import functools
import importlib
import json
import lzma
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from spotmpi.streams import columns
from spotmpi.streams.errors import StreamError
from spotmpi.streams.order import Part, Settings, Slice
from spotmpi.streams.storage import file_system

PARQUET, CSV, JSON = "Parquet", "CSV", "JSON Lines"
_MAX_BLOCK = 2**31 - 1  # bytes that pyarrow reads at a time
_EXACT = 2**53  # from here on not every whole number is a float
_NOT_SPACE = re.compile(r"\S")
_WHOLE_NUMBER = re.compile(r"[+-]?\d+")
_MIN_KEPT = 4  # tables: batches of a rank are not neighbours, and those of one worker are seldom
_kept: OrderedDict[tuple[str, str, str, int], Any] = OrderedDict()  # what this worker read last
_lock = threading.Lock()
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".xz": "xz"}  # of CSV and JSON Lines, by suffix


def describe(settings: Settings, part: Part, kind: str) -> tuple[tuple[int, ...], Any]:
    """The numbers of rows of a file that are read together, and the schema of its columns."""
    groups = _group_lengths(settings, part, kind)
    if kind == PARQUET:
        return groups, _parquet_schema(settings.source, part.name, part.version)
    return groups, columns.schema_of(_table(settings, part, 0, kind), part.name)


def read_columns(settings: Settings, slices: Sequence[Slice], kind: str) -> dict[str, Any]:
    """The rows of *slices* as arrays by column."""
    import pyarrow

    form = slices[0].part.columns
    pieces, places = _gather(slices) if settings.shuffle else ([(each.part, _numbers([each])) for each in slices], None)
    tables = [
        columns.conform(table, form, part.name)
        for part, rows in pieces
        for table in _tables(settings, part, rows, kind)
    ]
    table = pyarrow.concat_tables(tables, promote_options="permissive")
    return columns.arrays(table if places is None else table.take(places), form)


def _numbers(slices: Sequence[Slice]) -> Any:
    """The numbers of the rows of slices, as an array."""
    import numpy

    starts, stops = (numpy.array([each[at] for each in slices]) for at in (1, 2))
    lengths = stops - starts
    return numpy.repeat(stops - numpy.cumsum(lengths), lengths) + numpy.arange(lengths.sum())


def _gather(slices: Sequence[Slice]) -> tuple[list[tuple[Part, Any]], Any]:
    """The rows of *slices* by part, each once and ascending; and the places there of the rows as *slices* have them."""
    import numpy

    parts = {part: index for index, part in enumerate(dict.fromkeys(each.part for each in slices))}
    owners = numpy.repeat([parts[each.part] for each in slices], [each.stop - each.start for each in slices])
    distinct, places = numpy.unique((owners << 40) + _numbers(slices), return_inverse=True)
    owners, rows = distinct >> 40, distinct & (1 << 40) - 1
    return [(part, rows[owners == index]) for part, index in parts.items()], places


def _group_lengths(settings: Settings, part: Part, kind: str) -> tuple[int, ...]:
    """The numbers of rows that are read together: those of the row groups of Parquet, else all."""
    if kind == PARQUET:
        return _groups(settings.source, part.name, part.version)
    return (len(_table(settings, part, 0, kind)),)


def _tables(settings: Settings, part: Part, rows: Any, kind: str) -> list[Any]:
    """The *rows* of a part, which ascend, as a table for each row group."""
    import numpy

    groups = _group_lengths(settings, part, kind)
    begins = numpy.cumsum((0, *groups))
    places = numpy.searchsorted(rows, begins)
    tables = []
    for index in numpy.flatnonzero(numpy.diff(places)):
        inside = rows[places[index] : places[index + 1]] - begins[index]
        table = _table(settings, part, int(index), kind)
        first, last = int(inside[0]), int(inside[-1])
        tables.append(table.slice(first, len(inside)) if last - first < len(inside) else table.take(inside))
    return tables


def _table(settings: Settings, part: Part, index: int, kind: str) -> Any:
    """One row group of a part, or its only table; as many as two blocks have are kept where rows are shuffled."""
    key = (settings.source, part.name, part.version, index)
    with _lock:
        table = _kept.pop(key, None)
    if table is None:
        table = _read_group(*key) if kind == PARQUET else _read_whole(settings.source, part.name, kind)
    enough = 2 * settings.shuffle_block if settings.shuffle else 0
    with _lock:
        _kept[key] = table
        rows = sum(map(len, _kept.values()))
        while len(_kept) > _MIN_KEPT and (rows := rows - len(next(iter(_kept.values())))) >= enough:
            _kept.popitem(last=False)
    return table


@functools.lru_cache(maxsize=64)
def _groups(source: str, name: str, version: str) -> tuple[int, ...]:
    """The number of rows of each row group of a Parquet file."""
    metadata = _parquet(source, name, version).metadata
    return tuple(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))


def _parquet_schema(source: str, name: str, version: str) -> Any:
    """The columns of a Parquet file, as `columns.schema_of`: nulls are looked up in its statistics, if it has them."""
    import pyarrow

    file = _parquet(source, name, version)
    metadata = file.metadata
    paths = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}

    def has_nulls(column: str) -> bool:
        for group in range(metadata.num_row_groups):
            statistics = metadata.row_group(group).column(paths[column]).statistics
            known = statistics is not None and statistics.has_null_count
            if statistics.null_count if known else file.read_row_group(group, columns=[column]).column(0).null_count:
                return True
        return False

    schema = _decoded(file.schema_arrow.empty_table()).schema.remove_metadata()
    columns.require_distinct(schema.names, name)
    exact = (columns.is_exact(field.type) and field.nullable for field in schema)
    fields = [
        field.with_nullable(has_nulls(field.name) if counts else True).remove_metadata()
        for field, counts in zip(schema, exact, strict=True)
    ]
    return pyarrow.schema(fields)


def _read_group(source: str, name: str, version: str, index: int) -> Any:
    """One row group of a Parquet file, as a table."""
    import pyarrow

    try:
        return _decoded(_parquet(source, name, version).read_row_group(index))
    except pyarrow.ArrowInvalid as error:
        raise StreamError(f"{name} cannot be read as Parquet: {error}") from error


def _decoded(table: Any) -> Any:
    """A table with values in place of dictionaries, of which pyarrow makes arrays without nulls."""
    from pyarrow import types

    for index, field in enumerate(table.schema):
        if types.is_dictionary(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(field.type.value_type))
    return table


def _read_whole(source: str, name: str, kind: str) -> Any:
    """A CSV or JSON Lines file, as a table."""
    _require_pyarrow(name)
    import pyarrow

    with file_system(source)[0].open(name) as file:
        content = file.read()
    try:
        content = _decompressed(name, content)
    except (OSError, lzma.LZMAError) as error:
        raise StreamError(f"{name} cannot be decompressed: {error}") from error
    try:
        return _read_csv(name, content) if kind == CSV else _read_json(name, content)
    except pyarrow.ArrowInvalid as error:
        raise StreamError(f"{name} cannot be read as {kind}: {error}") from error


def _decompressed(name: str, content: bytes) -> bytes:
    import pyarrow

    codec = next((codec for suffix, codec in COMPRESSIONS.items() if name.lower().endswith(suffix)), None)
    if codec is None or codec == "xz":
        return lzma.decompress(content) if codec else content
    return bytes(pyarrow.CompressedInputStream(pyarrow.BufferReader(content), codec).read())


def _read_csv(name: str, content: bytes) -> Any:
    """The rows of a file, in one block if it is not too large: types are inferred from a block."""
    import pyarrow.csv

    def read(kinds: dict[str, Any], only: list[str] | None = None) -> Any:
        return pyarrow.csv.read_csv(
            pyarrow.BufferReader(content),
            read_options=pyarrow.csv.ReadOptions(block_size=_block_size(content)),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(column_types=kinds, include_columns=only),
        )

    def numbers(column: str) -> Iterator[int]:
        for text in read({column: pyarrow.string()}, [column]).column(0).to_pylist():
            if text and _WHOLE_NUMBER.fullmatch(text.strip()):
                yield int(text)

    return _with_whole_numbers(name, read({}), numbers, read)


def _read_json(name: str, content: bytes) -> Any:
    """The lines of a file, in one block: a line may be long, and a key may appear late."""
    import pyarrow.json

    if not content:
        return pyarrow.table({})

    def read(kinds: dict[str, Any]) -> Any:
        return pyarrow.json.read_json(
            pyarrow.BufferReader(content),
            read_options=pyarrow.json.ReadOptions(block_size=_block_size(content)),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=pyarrow.schema(kinds) if kinds else None),
        )

    def numbers(column: str) -> Iterator[int]:
        text, decoder, end = content.decode("utf-8-sig").rstrip(), json.JSONDecoder(), 0
        while end < len(text):
            line, end = decoder.raw_decode(text, _NOT_SPACE.search(text, end).start())  # type: ignore[union-attr]
            yield from _integers(line.get(column))

    return _with_whole_numbers(name, read({}), numbers, read)


def _block_size(content: bytes) -> int:
    return max(1, min(len(content), _MAX_BLOCK))


def _with_whole_numbers(
    name: str, table: Any, numbers: Callable[[str], Iterator[int]], read: Callable[[dict[str, Any]], Any]
) -> Any:
    """A table whose whole numbers are exact: pyarrow reads those that are beyond int64, or beside fractions, as floats.

    *numbers* has the whole numbers of a column, as they are in the file; *read* reads it with given types of columns.
    """
    import pyarrow

    rounded = [
        column
        for column, values in zip(table.column_names, table.columns, strict=True)
        if _has_large_floats(values) and any(int(float(number)) != number for number in numbers(column))
    ]
    if not rounded:
        return table
    try:
        return read(dict.fromkeys(rounded, pyarrow.uint64()))
    except pyarrow.ArrowInvalid as error:
        remedy = "write them as text (in CSV with a letter before them)"
        raise StreamError(
            f"{name} has whole numbers in the column {rounded[0]!r} that its type of floats would round: {remedy}"
        ) from error


def _has_large_floats(column: Any) -> bool:
    """Whether floats of a column may be rounded whole numbers, those in its lists and objects included."""
    import pyarrow
    from pyarrow import compute, types

    if types.is_struct(column.type):
        return any(_has_large_floats(compute.struct_field(column, field.name)) for field in column.type)
    if types.is_list(column.type):
        return _has_large_floats(compute.list_flatten(column))
    if not types.is_floating(column.type):
        return False
    finite = compute.if_else(compute.is_finite(column), column, pyarrow.scalar(0.0))
    return bool((compute.max(compute.abs(finite)).as_py() or 0.0) >= _EXACT)


def _integers(value: Any) -> Iterator[int]:
    """The whole numbers in a value of JSON."""
    if type(value) is int:
        yield value
    elif isinstance(value, (list, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _integers(each)


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
