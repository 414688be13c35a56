"""Columns of tables as arrays: exact, writable, and of the same types in all batches of a source.

Numpy has no nulls in whole numbers and truth values, so a column of these with a null in any file is one of objects.
"""

from __future__ import annotations

import base64
import functools
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from spotmpi.streams.errors import StreamError


def schema_of(table: Any, name: str) -> Any:
    """The types of the columns in the file *name*; those that are nullable have nulls."""
    import pyarrow

    fields = [
        field.with_nullable(bool(column.null_count)).remove_metadata()
        for field, column in zip(table.schema, table.columns, strict=True)
    ]
    require_distinct([field.name for field in fields], name)
    return pyarrow.schema(fields)


def require_distinct(names: list[str], file: str) -> None:
    """Raise StreamError for two columns of a name: a batch would have one of them."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise StreamError(f"{file} has two columns named {twice!r}: rename one")


def unify(schemas: Mapping[str, Any]) -> str:
    """What has to be done to columns so that they are the same whichever rows a batch has; empty if nothing has.

    *schemas* are those of all files of a source, by their names. Codes in one file make whole numbers of others codes.

    Raises:
        StreamError: two files have no common type for a column.
    """
    import pyarrow

    files: dict[Any, str] = {}
    for name, schema in schemas.items():
        files.setdefault(schema, name)
    codes = {field.name for schema in files for field in schema if field.type == code_type()}
    whole = pyarrow.schema([])
    for schema, name in files.items():
        try:
            whole = pyarrow.unify_schemas([whole, _with_codes(schema, codes)], promote_options="permissive")
        except pyarrow.ArrowException as error:
            other = next(other for each, other in files.items() if not _fit(_with_codes(each, codes), schema))
            remedy = "give each column one type in all files"
            raise StreamError(f"{other}, {name} cannot be read together: {error}; {remedy}") from error
    fields, by_name = [], [{field.name: field for field in schema} for schema in files]
    for field in whole:
        known = [each[field.name] for each in by_name if field.name in each]
        nulls = len(known) < len(files) or any(each.nullable for each in known)
        if {each.type for each in known} != {field.type} or len(known) < len(files) or (nulls and is_exact(field.type)):
            fields.append(field.with_nullable(nulls))
    return base64.b64encode(pyarrow.schema(fields).serialize()).decode() if fields else ""


def code_type() -> Any:
    """The arrow type of whole numbers with leading zeros in CSV: that of text elsewhere is another one."""
    import pyarrow

    return pyarrow.large_string()


def _with_codes(schema: Any, names: Collection[str]) -> Any:
    """A schema in which the whole numbers of these *names* are codes."""
    import pyarrow

    def is_code(field: Any) -> bool:
        return field.name in names and pyarrow.types.is_integer(field.type)

    return pyarrow.schema([field.with_type(code_type()) if is_code(field) else field for field in schema])


def text_columns(columns: str) -> dict[str, Any]:
    """The types of the *columns* that `unify` has found to be text in some files, and something else in others."""
    import pyarrow

    return {field.name: field.type for field in _fields(columns) if field.type in (pyarrow.string(), code_type())}


def _fit(first: Any, second: Any) -> bool:
    import pyarrow

    try:
        pyarrow.unify_schemas([first, second], promote_options="permissive")
    except pyarrow.ArrowException:
        return False
    return True


def conform(table: Any, columns: str, name: str) -> Any:
    """The rows of a file with the *columns* that `unify` gave."""
    import pyarrow

    for field in _fields(columns):
        index = table.schema.get_field_index(field.name)
        if index < 0:
            table = table.append_column(field.name, pyarrow.nulls(len(table), field.type))
        elif table.column(index).type != field.type:
            try:
                table = table.set_column(index, field.name, _cast(table.column(index), field.type))
            except pyarrow.ArrowException as error:
                remedy = f"other files have {field.type} in the column {field.name!r}"
                raise StreamError(f"{name} cannot be read together with the others: {error}; {remedy}") from error
    return table


def _cast(column: Any, kind: Any) -> Any:
    """A column of another type; of lists that have nulls alone, within others, pyarrow's cast loses some."""
    import pyarrow

    cast = column.cast(kind)
    try:
        cast.validate()
    except pyarrow.ArrowInvalid:
        return pyarrow.chunked_array([pyarrow.array(column.to_pylist(), kind)])
    return cast


def arrays(table: Any, columns: str) -> dict[str, Any]:
    """The columns of a table as arrays, each owned by its caller alone.

    Raises:
        StreamError: values of a column cannot be had in Python, such as nanoseconds within objects.
    """
    nullable = {field.name for field in _fields(columns) if field.nullable and is_exact(field.type)}
    result = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            result[name] = _objects(column) if name in nullable else _array(column)
        except (ValueError, NotImplementedError) as error:  # which pyarrow's errors of values and types are
            remedy = "write another type"
            raise StreamError(f"the column {name!r} of type {column.type} cannot be read: {error}; {remedy}") from error
    return result


@functools.lru_cache(maxsize=4)
def _fields(columns: str) -> tuple[Any, ...]:
    if not columns:
        return ()
    import pyarrow

    return tuple(pyarrow.ipc.read_schema(pyarrow.BufferReader(base64.b64decode(columns))))


def plain_type(kind: Any) -> Any:
    """The type of the same values for which pyarrow has all functions: views and small decimals lack some.

    Of slices of arrays in arrays of a fixed size, it takes rows from other places.
    """
    import pyarrow
    from pyarrow import types

    if isinstance(kind, pyarrow.BaseExtensionType):
        return pyarrow.bool_() if kind.extension_name == "arrow.bool8" else plain_type(kind.storage_type)
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return pyarrow.string() if types.is_string_view(kind) else pyarrow.binary()
    if types.is_decimal32(kind) or types.is_decimal64(kind):
        return pyarrow.decimal128(kind.precision, kind.scale)
    fields = [kind.field(index) for index in range(kind.num_fields)]
    inner = [field.with_type(plain_type(field.type)) for field in fields]
    if types.is_fixed_size_list(kind) and not types.is_fixed_size_list(inner[0].type):
        return pyarrow.list_(inner[0], kind.list_size)
    if inner == fields and not types.is_fixed_size_list(kind):
        return kind
    if types.is_struct(kind):
        return pyarrow.struct(inner)
    if types.is_map(kind):
        return pyarrow.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    return pyarrow.large_list(inner[0]) if types.is_large_list(kind) else pyarrow.list_(inner[0])


def is_exact(kind: Any) -> bool:
    """Whether values of an arrow type are whole numbers or truth values, of which numpy has no null."""
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_boolean(kind))


def _array(column: Any) -> Any:
    """A column as an array; one of objects has them as JSON's: numpy's would depend on the other rows of a batch."""
    import numpy

    if _has_objects(column.type) or (is_exact(column.type) and column.null_count):
        return _objects(column)
    if not _is_list(column.type):
        array = column.to_numpy()
        return array if array.flags.writeable and array.flags.owndata else array.copy()
    array = numpy.empty(len(column), object)
    for index, values in enumerate(_lists(column)):
        array[index] = values
    return array


def _lists(column: Any) -> list[Any]:
    """The lists of a column as arrays; one of whole numbers with a null is one of objects.

    Lists of a fixed size that are null have values, which are null.
    """
    import numpy
    import pyarrow.compute

    kind, is_fixed = column.type.value_type, pyarrow.types.is_fixed_size_list(column.type)
    has_nulls = pyarrow.compute.list_flatten(column).null_count or (is_fixed and column.null_count)
    if not is_exact(kind) or not has_nulls:
        return [None if each is None else each.copy() for each in column.to_numpy()]
    plain = kind.to_pandas_dtype()
    return [
        each and numpy.array(each, object if None in each else plain) if each != [] else numpy.array([], plain)
        for each in column.to_pylist()
    ]


def _objects(column: Any) -> Any:
    import numpy

    array = numpy.empty(len(column), object)
    for index, value in enumerate(column.to_pylist()):
        array[index] = value
    return array


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _has_objects(kind: Any) -> bool:
    """Whether values of an arrow type are objects, or lists that are nested."""
    from pyarrow import types

    return bool(types.is_nested(kind.value_type) if _is_list(kind) else types.is_nested(kind))
