"""What is written of the results of a batch: bytes, files or messages. Pure."""

from __future__ import annotations

import json
import math
import os
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from spotmpi.streams import columns
from spotmpi.streams.errors import StreamError
from spotmpi.streams.order import FILES, FORMATS, PARQUET
from spotmpi.streams.topics import is_topic

_LONGEST = 255  # bytes of a file name


class Message(NamedTuple):
    """A message for a topic of Kafka."""

    key: bytes | None
    value: bytes | None


class FileWithoutRows(bytes):
    """A file that gets a name which hides it from readers of its folder.

    That is one of Parquet with no columns or some without a type, since those of others do not fit it, and one of JSON
    Lines, in which many readers want a row. It has some byte, unlike what a machine that lost its power may have.
    """


def encode(write: str, name: str, number: int, results: Any) -> Any:
    """What is written of the *results* that the function *name* gave for batch *number*.

    That is bytes for Parquet and JSON Lines, bytes by name for files, and messages for a topic; a function gets the
    results as they are.

    Raises:
        StreamError: there are none, or they are of a kind that *write* cannot hold.
    """
    if results is None:
        raise StreamError(f"{name} gave nothing for batch {number}: give the results of each batch, such as []")
    try:
        return _encode(write, results)
    except StreamError as error:
        raise StreamError(f"{name}, batch {number}: {error}") from None
    except Exception as error:
        kind = "a topic" if is_topic(write) else f'write = "{write}"'
        remedy = "give columns by name, or a list of dictionaries"
        raise StreamError(
            f"{name}, batch {number}: {kind} cannot hold this {type(results).__name__}: "
            f"{type(error).__name__}: {error}; {remedy}"
        ) from None


def _encode(write: str, results: Any) -> Any:
    if write == FILES:
        return _files(results)
    if write == PARQUET:
        return _parquet(results)
    if is_topic(write):
        return [_message(row) for row in _rows(results)]
    if write in FORMATS:
        return "".join(_json(row) + "\n" for row in _rows(results)).encode() or FileWithoutRows(b"\n")
    return results


def _files(contents: Any) -> dict[str, bytes]:
    if not isinstance(contents, dict):
        raise StreamError(f'write = "files" needs a dictionary of bytes or text by name, not {type(contents).__name__}')
    for name in contents:
        if (
            not isinstance(name, str)
            or not name
            or Path(name).name != name
            or "\0" in name
            or len(os.fsencode(name)) > _LONGEST
        ):
            raise StreamError(f"a result named {name!r:.100} is not a plain file name of at most {_LONGEST} bytes")
        if name.startswith((".", "_")):
            raise StreamError(f"a result named {name!r} would be hidden: let its name begin with neither . nor _")
    return {name: _bytes(content, "surrogateescape") for name, content in contents.items()}


def _parquet(results: Any) -> bytes:
    table = table_of(results)
    import pyarrow.parquet
    import pyarrow.types

    file = BytesIO()
    pyarrow.parquet.write_table(table, file, write_page_checksum=True)
    has_types = table.num_columns and not any(map(pyarrow.types.is_null, table.schema.types))
    return file.getvalue() if table.num_rows or has_types else FileWithoutRows(file.getvalue())


def table_of(results: Any) -> Any:
    """A table of pyarrow: of columns by name, of rows as dictionaries, or of a table of any library.

    Raises:
        StreamError: it is none of these, or a column cannot be one of Parquet.
    """
    try:
        import pyarrow
    except ModuleNotFoundError:
        remedy = 'install spotmpi[streams], add pyarrow to the image, or use write = "jsonl"'
        raise StreamError(f"results cannot be written as Parquet without pyarrow: {remedy}") from None
    try:
        if isinstance(results, dict):
            _require_columns(results)
            return pyarrow.table({name: _column(values) for name, values in results.items()})
        if isinstance(results, pyarrow.RecordBatch) or hasattr(results, "__arrow_c_stream__"):
            table = pyarrow.table(results)
            columns.require_distinct(table.column_names, "the result")
            return table
        rows = list(results)
        names = dict.fromkeys(name for row in rows for name in {**row})  # `Table.from_pylist` has the first row's
        if rows and not names:
            raise StreamError("rows without a key cannot be written as Parquet; give each its keys, or leave them out")
        return pyarrow.table({name: [row.get(name) for row in rows] for name in names})
    except (TypeError, AttributeError, OverflowError, pyarrow.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        remedy = "give columns by name, each an array or a list of one type, rows as a list of dictionaries, or a table"
        raise StreamError(f"{type(results).__name__} cannot be written as Parquet: {reason}; {remedy}") from error


def _require_columns(results: dict[str, Any]) -> None:
    """Raise StreamError for text as a column, which would be one of its characters."""
    for name, values in results.items():
        if isinstance(values, (str, bytes)):
            raise StreamError(f"the column {name!r} is {values!r:.50}: give a list with a value for each row")


def _column(values: Any) -> Any:
    """A column as pyarrow takes it: a tensor as an array, and one of more than one dimension as lists."""
    import numpy
    import pyarrow

    array = numpy.asarray(values) if type(values).__module__ == "torch" else values
    if not isinstance(array, numpy.ndarray) or array.ndim < 2:
        return array
    column = pyarrow.array(array.reshape(-1))
    for dimension in range(array.ndim - 1, 0, -1):
        places = numpy.arange(int(numpy.prod(array.shape[:dimension])) + 1) * array.shape[dimension]
        column = pyarrow.ListArray.from_arrays(pyarrow.array(places, pyarrow.int32()), column)
    return column


def _message(row: Any) -> Message:
    """A row as a message: bytes and text as they are, `key` and `value` of a dictionary of these, else JSON."""
    if isinstance(row, (bytes, str)):
        return Message(None, _bytes(row))
    if isinstance(row, dict) and "value" in row and set(row) <= {"key", "value"}:
        key, value = row.get("key"), row["value"]
        if all(each is None or isinstance(each, (bytes, str)) for each in (key, value)):
            return Message(*(None if each is None else _bytes(each) for each in (key, value)))
    return Message(None, _json(row).encode())


def _bytes(content: bytes | str, errors: str = "strict") -> bytes:
    return content.encode(errors=errors) if isinstance(content, str) else bytes(content)


def _rows(results: Any) -> list[Any]:
    if hasattr(results, "columns"):  # a table, of which `list` has the columns, or their names
        rows: list[Any] = table_of(results).to_pylist()
        return rows
    if isinstance(results, dict):
        _require_columns(results)
        return [dict(zip(results, values, strict=True)) for values in zip(*results.values(), strict=True)]
    if isinstance(results, (str, bytes)):
        raise StreamError(f"the result is {results!r:.50}: give a list with a value for each row")
    return list(results)


def _json(row: Any) -> str:
    try:
        return json.dumps(row, default=_plain, allow_nan=False)
    except ValueError as error:
        if "float" not in str(error):
            raise
    return json.dumps(_finite(row), default=_plain, allow_nan=False)


def _finite(value: Any) -> Any:
    """*value* with null in place of NaN, which JSON does not know; readers of tables make NaN of it."""
    if isinstance(value, float):
        if math.isinf(value):
            raise StreamError('JSON has no infinite numbers: replace them, or use write = "parquet"')
        return None if math.isnan(value) else value
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return value if value is None or isinstance(value, (str, int)) else _finite(_plain(value))


def _plain(value: Any) -> Any:
    """A number or array of numpy, a tensor or a time, as JSON knows it."""
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind == "M":  # whose nanoseconds would be a number
        return _times(value.astype(str).tolist())
    if kind != "m" and hasattr(value, "tolist"):  # of spans, too
        return value.tolist()
    if hasattr(value, "isoformat"):
        return _times(value.isoformat())
    remedy = 'yield numbers, text, times, and lists and dictionaries of them, or use write = "parquet"'
    raise StreamError(f"JSON cannot hold a {type(value).__name__}: {remedy}")


def _times(texts: Any) -> Any:
    """Times as text; null where there is none."""
    return [*map(_times, texts)] if isinstance(texts, list) else None if texts == "NaT" else texts
