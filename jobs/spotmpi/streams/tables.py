"""Parquet, CSV and JSON Lines files as sources: their rows as arrays by column. Read by pyarrow through fsspec."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import lzma
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from spotmpi.agent.protocol import counted
from spotmpi.streams import columns, text_files
from spotmpi.streams.errors import StreamError
from spotmpi.streams.order import Part, Settings, Slice
from spotmpi.streams.storage import ENTRY, file_system, read_whole, remedy_of_damage

PARQUET, CSV, JSON = "Parquet", "CSV", "JSON Lines"
_MAX_BLOCK = 2**31 - 1  # bytes that pyarrow reads at a time
_SMALL = 5 << 20  # bytes that fsspec reads from a storage at a time anyway
_TAIL = 1 << 12  # bytes at the end of a file, of which some are no white space
_EXACT = 2**53  # from here on not every whole number is a float
_NOT_SPACE = re.compile(r"\S")
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
_MAYBE_LEADING_ZERO = r"[,\"\s][+-]?0\d"  # in a CSV file
_LEADING_ZERO = r"^\s*[+-]?0\d+\s*$"
_WHOLE = r"^\s*[+-]?\d+\s*$"
_MIN_KEPT = 4  # tables: batches of a rank are not neighbours, and those of one worker are seldom
_kept: OrderedDict[tuple[str, str, str, int, str], Any] = OrderedDict()  # what this worker read last
_lock = threading.Lock()


def describe(settings: Settings, part: Part, kind: str) -> tuple[tuple[int, ...], Any]:
    """The numbers of rows of a file that are read together, and the schema of its columns."""
    groups = _group_lengths(settings, part, kind)
    if kind == PARQUET:
        with _undamaged(part.name):
            return groups, _parquet_schema(settings.source, part.name, part.version)
    return groups, columns.schema_of(_table(settings, part, 0, kind), part.name)


def read_columns(settings: Settings, slices: Sequence[Slice], kind: str) -> dict[str, Any]:
    """The rows of *slices* as arrays by column."""
    import pyarrow

    form = slices[0].part.columns
    pieces, places = _gather(slices) if settings.shuffle else ([(each.part, _numbers([each])) for each in slices], None)
    tables = [table for part, rows in pieces for table in _tables(settings, part, rows, kind)]
    table = pyarrow.concat_tables(tables, promote_options="permissive")
    return columns.arrays(table if places is None else table.take(places), form)


def read_all(settings: Settings, parts: Sequence[Part], kind: str) -> Any:
    """All rows of *parts* as a table of pyarrow."""
    import pyarrow

    tables = [
        _table(settings, part, index, kind)
        for part in [each for each in parts if each.rows] or parts
        for index, _ in enumerate(_group_lengths(settings, part, kind))
    ]
    if not tables:  # Parquet files without a row group
        return describe(settings, parts[0], kind)[1].empty_table()
    return pyarrow.concat_tables(tables, promote_options="permissive")


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
    place = (settings.source, part.name, part.version, index)
    key = (*place, part.columns)
    with _lock:
        table = _kept.pop(key, None)
    if table is None:
        table = _read_group(*place) if kind == PARQUET else _read_whole(settings.source, part, kind)
        table = columns.conform(table, part.columns, part.name)  # whole: pyarrow's casts of slices lose rows in objects
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
            if statistics is not None and statistics.has_null_count:
                nulls = statistics.null_count
            else:
                nulls = file.read_row_group(group, columns=[column]).column(0).null_count
            if nulls:
                return True
        return False

    schema = [field.with_type(columns.plain_type(field.type)) for field in file.schema_arrow]
    columns.require_distinct([field.name for field in schema], name)
    exact = (columns.is_exact(field.type) and field.nullable for field in schema)
    fields = [
        field.with_nullable(has_nulls(field.name) if counts else True).remove_metadata()
        for field, counts in zip(schema, exact, strict=True)
    ]
    return pyarrow.schema(fields)


def _read_group(source: str, name: str, version: str, index: int) -> Any:
    """One row group of a Parquet file, as a table."""
    import pyarrow

    file = _parquet(source, name, version)
    with _undamaged(name):
        table = file.read_row_group(index)
        count = file.metadata.row_group(index).num_rows
        if len(table) != count:  # as pyarrow reads lists of which it has written one to a page
            raise pyarrow.ArrowInvalid(f"row group {index} has {len(table)} of its {counted(count, 'row')}")
        return _decoded(table)


def _decoded(table: Any) -> Any:
    """A table with values in place of dictionaries, extensions and views, which pyarrow can take and make arrays of."""
    for index, field in enumerate(table.schema):
        kind = columns.plain_type(field.type)
        if kind != field.type:
            table = table.set_column(index, field.name, table.column(index).cast(kind))
    return table


def _read_whole(source: str, part: Part, kind: str) -> Any:
    """A CSV or JSON Lines file, as a table."""
    name = part.name
    _require_pyarrow(name)
    import pyarrow

    content = read_whole(file_system(source)[0], name)
    try:
        content = text_files.decompressed(name, content)
    except (OSError, lzma.LZMAError) as error:
        raise StreamError(f"{name} cannot be decompressed: {error}; {remedy_of_damage(name)}") from error
    text_files.require_utf8(name, content)
    try:
        if kind == CSV:
            return _read_csv(name, content, columns.text_columns(part.columns))
        return _read_json(name, content)
    except pyarrow.ArrowInvalid as error:
        raise _unreadable(name, kind, error) from error


def _read_csv(name: str, content: bytes, text: dict[str, Any]) -> Any:
    """The rows of a file, in one block if it is not too large: types are inferred from a block.

    The columns *text*, whose types are given, are text in other files.
    """
    import pyarrow.csv

    if content and b"\n" not in content and b"\r" not in content:  # names alone: pyarrow wants the end of their line
        content += b"\n"
    quoted = b'"' in content  # else no value has a line break, for which pyarrow takes half as long again

    def read(kinds: dict[str, Any], only: list[str] | None = None, threads: bool = True) -> Any:
        return pyarrow.csv.read_csv(
            pyarrow.BufferReader(content),
            read_options=pyarrow.csv.ReadOptions(block_size=_block_size(content), use_threads=threads),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=quoted),
            convert_options=pyarrow.csv.ConvertOptions(column_types=kinds, include_columns=only),
        )

    def texts(names: list[str]) -> Any:
        return read(dict.fromkeys(names, pyarrow.string()), names)

    def numbers(column: str) -> Iterator[Decimal]:
        for field in texts([column]).column(0).to_pylist():
            if field and _NUMBER.fullmatch(field.strip()):
                yield Decimal(field.strip())

    try:
        table = read({})
    except pyarrow.ArrowInvalid:
        table = read({}, threads=False)  # the error then has the number of the row
    columns.require_distinct(table.column_names, name)
    _require_fields(name, content, table)
    found = _codes(table, texts) if _may_have_codes(content) else []
    kinds = {**dict.fromkeys(found, columns.code_type()), **text}
    return _with_whole_numbers(name, read(kinds) if kinds else table, numbers, lambda more: read({**kinds, **more}))


def _require_fields(name: str, content: bytes, table: Any) -> None:
    """Raise StreamError for what pyarrow reads as one field: lines with another separator, rows after an open quote."""
    import pyarrow
    from pyarrow import compute

    title, text = table.column_names[0], table.column(0)
    counts = {each: title.count(each) for each in ";\t|" if each in title}
    is_one = table.num_columns == 1 and text.type == pyarrow.string() and len(text)
    for each, count in counts.items() if is_one else ():
        if compute.all(compute.equal(compute.count_substring(text, each), count)).as_py():
            remedy = "write it with commas, or parse what `open()` of the source gives"
            raise StreamError(f"{name} has fields that {each!r} separates, not commas: {remedy}")
    is_text = table.schema.types[-1] == pyarrow.string() and len(table)
    last = table.column(-1)[-1].as_py() if is_text else None
    end = content[-_TAIL:].rstrip()
    if isinstance(last, str) and {"\n", "\r"}.intersection(last) and end and not end.endswith(b'"'):
        raise _unreadable(name, CSV, ValueError(f"a quote in its last row, {len(table)} below the names, has no end"))


def _may_have_codes(content: bytes) -> bool:
    """Whether a field may be a number with leading zeros, by RE2, which takes a fifth of the time of `re`."""
    from pyarrow import compute

    return _any(compute.match_substring_regex(text_files.as_array(content), _MAYBE_LEADING_ZERO))


def _codes(table: Any, texts: Callable[[list[str]], Any]) -> list[str]:
    """The columns of whole numbers of which some have leading zeros, such as postal codes: they are text."""
    from pyarrow import compute, types

    numeric = [field.name for field in table.schema if types.is_integer(field.type) or types.is_floating(field.type)]
    if not numeric:
        return []
    fields = texts(numeric)
    return [
        name
        for name in numeric
        if _any(compute.match_substring_regex(fields[name], _LEADING_ZERO))
        and not _any(compute.and_(compute.is_valid(table[name]), _no_match(fields[name])))
    ]


def _no_match(column: Any) -> Any:
    from pyarrow import compute

    return compute.invert(compute.match_substring_regex(column, _WHOLE))


def _any(column: Any) -> bool:
    from pyarrow import compute

    return bool(compute.any(column).as_py())


def _read_json(name: str, content: bytes) -> Any:
    """The lines of a file, in one block: a line may be long, and a key may appear late."""
    import pyarrow.json

    if not content:
        return pyarrow.table({})
    # A null as the first row ends the process (apache/arrow#47409).
    null = re.match(rb"(\xef\xbb\xbf)?\s*null", content)
    rows = content[: null.end() - 4] + b"{}" + content[null.end() :] if null else content

    def read_once(kinds: dict[str, Any]) -> Any:
        return pyarrow.json.read_json(
            pyarrow.BufferReader(rows),
            read_options=pyarrow.json.ReadOptions(block_size=_block_size(rows)),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=pyarrow.schema(kinds) if kinds else None),
        )

    def read(kinds: dict[str, Any]) -> Any:
        table = read_once(kinds)
        try:
            table.validate()
        except pyarrow.ArrowInvalid:  # a list that begins with null, of a type that is inferred (apache/arrow#51305)
            form = table.schema
            table = read_once({field.name: _with_booleans(field.type) for field in form})
            for index, field in enumerate(form):
                if field.type != table.schema.field(index).type:
                    values = pyarrow.array(table.column(index).to_pylist(), field.type)
                    table = table.set_column(index, field, values)
        return table

    def numbers(column: str) -> Iterator[Decimal]:
        text, decoder, end = content.decode("utf-8-sig").rstrip(), json.JSONDecoder(parse_float=_decimal), 0
        while end < len(text):
            line, end = decoder.raw_decode(text, _NOT_SPACE.search(text, end).start())  # type: ignore[union-attr]
            yield from _numbers_in(line.get(column) if line else None)

    return _with_whole_numbers(name, read({}), numbers, read)


def _with_booleans(kind: Any) -> Any:
    """A type of JSON with truth values in place of nulls, so that it is known."""
    import pyarrow
    from pyarrow import types

    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(_with_booleans(field.type)) for field in kind])
    if types.is_list(kind):
        return pyarrow.list_(_with_booleans(kind.value_type))
    return pyarrow.bool_() if types.is_null(kind) else kind


def _block_size(content: bytes) -> int:
    return max(1, min(len(content), _MAX_BLOCK))


def _with_whole_numbers(
    name: str, table: Any, numbers: Callable[[str], Iterator[Decimal]], read: Callable[[dict[str, Any]], Any]
) -> Any:
    """A table whose whole numbers are exact: pyarrow reads those that are beyond int64, or beside fractions, as floats.

    *numbers* has the numbers of a column as their digits are in the file; *read* reads it with given types of columns.
    """
    import pyarrow

    rounded = [
        column
        for column, values in zip(table.column_names, table.columns, strict=True)
        if _has_large_floats(values) and any(int(float(number)) != int(number) for number in numbers(column))
    ]
    if not rounded:
        return table
    try:
        return read(dict.fromkeys(rounded, pyarrow.uint64()))
    except pyarrow.ArrowInvalid as error:
        remedy = "write them as text (in CSV with a letter before them)"
        raise StreamError(
            f"{name} has whole numbers in the column {rounded[0]!r} (or whole parts of fractions) that its type of "
            f"floats would round: {remedy}"
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


def _decimal(text: str) -> Decimal | float:
    """A fraction of JSON with its digits; a float where it has an exponent, as only floats are written."""
    return float(text) if "e" in text.lower() else Decimal(text)


def _numbers_in(value: Any) -> Iterator[Decimal]:
    """The numbers with all their digits in a value of JSON."""
    if type(value) in (int, Decimal):
        yield Decimal(value)
    elif isinstance(value, (list, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _numbers_in(each)


@functools.lru_cache(maxsize=4)
def _parquet(source: str, name: str, version: str) -> Any:
    """An open Parquet file: its footer is read once for all row groups.

    A small one of an entry is read whole, since the checksums of its pages leave out the footer.
    """
    _require_pyarrow(name)
    import pyarrow.parquet

    system, _ = file_system(source)
    with _undamaged(name):
        file = system.open(name)
        if ENTRY.search(name) and file.seek(0, os.SEEK_END) <= _SMALL:
            file.close()
            file = pyarrow.BufferReader(read_whole(system, name))
        return pyarrow.parquet.ParquetFile(file, page_checksum_verification=True)


def close_files() -> None:
    """Close the Parquet files that are kept open: on NFS the folder of an open file cannot be removed."""
    _parquet.cache_clear()


@contextlib.contextmanager
def _undamaged(name: str) -> Iterator[None]:
    """Say of which Parquet file pyarrow finds the content damaged, for which no storage is asked again.

    It raises an OSError for that as well, without the number of one, which those of storages have.
    """
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError, UnicodeDecodeError) as error:
        raise _unreadable(name, PARQUET, error) from error
    except OSError as error:
        if type(error) is OSError and error.errno is None:
            raise _unreadable(name, PARQUET, error) from error
        raise


def _unreadable(name: str, kind: str, error: Exception) -> StreamError:
    reason = "".join(each if each.isprintable() else "?" for each in str(error).partition("\n")[0].rstrip("."))
    return StreamError(f"{name} cannot be read as {kind}: {reason}; {remedy_of_damage(name)}")


def _require_pyarrow(name: str) -> None:
    try:
        importlib.import_module("pyarrow")
    except ModuleNotFoundError:
        remedy = "install spotmpi[streams], or add pyarrow to the image"
        raise StreamError(f"{name} cannot be read without pyarrow: {remedy}") from None
