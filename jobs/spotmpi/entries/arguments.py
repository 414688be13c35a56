"""Arguments of data sets in JSON, from which the same are made again, by names in modules and by their fields.

Nothing of what a manifest names is called: objects get their fields as they were. Whether that gives the same argument
is decided by the key of the data set.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import decimal
import enum
import functools
import importlib
import json
import math
import pathlib
import types
from collections.abc import Mapping
from typing import Any

from spotmpi.entries.code import function_name
from spotmpi.entries.values import is_imported

_KIND, _VALUE = "kind", "value"
_LARGEST = 100_000  # characters of an argument
_TEXTS = (float, complex, datetime.date, datetime.datetime, datetime.time, decimal.Decimal, type(pathlib.Path()))
_BY_TEXT: dict[str, Any] = {each.__name__: getattr(each, "fromisoformat", each) for each in _TEXTS}
_COLLECTIONS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def values_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """In JSON those of *arguments* of which all is known, and that are not large."""
    found = {}
    for name, value in arguments.items():
        with contextlib.suppress(AttributeError, ImportError, TypeError, ValueError, RecursionError):
            if len(json.dumps(content := _encoded(value))) <= _LARGEST:
                found[name] = content
    return found


def _encoded(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        return value
    if kind is list:
        return [_encoded(each) for each in value]
    if kind.__name__ in _COLLECTIONS and kind is _COLLECTIONS[kind.__name__]:
        return _tagged(kind.__name__, [_encoded(each) for each in value])
    if kind is dict:
        return _tagged("dict", [[_encoded(key), _encoded(each)] for key, each in value.items()])
    if kind is bytes:
        return _tagged("bytes", base64.b64encode(value).decode())
    if kind in _TEXTS:
        return _tagged(kind.__name__, value.isoformat() if hasattr(value, "isoformat") else str(value))
    if kind.__module__ == "numpy" and hasattr(value, "dtype") and value.dtype.kind in "biufUSM":
        return _tagged("numpy", [value.dtype.str, value.shape, _encoded(value.tobytes())])
    return _encoded_by_name(value)


def _encoded_by_name(value: Any) -> Any:
    """What a module has, or an object of a class that one has, with its fields."""
    if isinstance(value, type | types.FunctionType) or is_imported(value):
        return _tagged("name", _name(value))
    if isinstance(value, enum.Enum):
        return _tagged("member", [_name(type(value)), value.name])
    if isinstance(value, functools.partial):
        return _tagged("partial", [_encoded(each) for each in (value.func, value.args, value.keywords)])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _tagged("namedtuple", [_name(type(value)), [_encoded(each) for each in value]])
    fields = vars(value) if hasattr(value, "__dict__") else {}
    if dataclasses.is_dataclass(value):
        fields = {**{each.name: getattr(value, each.name) for each in dataclasses.fields(value)}, **fields}
    elif any(getattr(type(value), name) is not getattr(object, name) for name in ("__reduce_ex__", "__reduce__")):
        raise TypeError(f"{type(value).__name__} has more than its fields")
    return _tagged("object", [_name(type(value)), {name: _encoded(each) for name, each in fields.items()}])


def decoded(value: Any) -> Any:
    """A value of `values_of`; AttributeError, ImportError, LookupError or TypeError where its modules lack it."""
    if isinstance(value, list):
        return [decoded(each) for each in value]
    if not isinstance(value, dict):
        return value
    kind, content = value[_KIND], value[_VALUE]
    if kind in _COLLECTIONS:
        return _COLLECTIONS[kind](decoded(each) for each in content)
    if kind == "dict":
        return {decoded(key): decoded(each) for key, each in content}
    if kind == "bytes":
        return base64.b64decode(content)
    if kind in _BY_TEXT:
        return _BY_TEXT[kind](content)
    if kind == "numpy":
        return _array(*content)
    if kind == "name":
        return _named(content)
    if kind == "member":
        return _named(content[0])[content[1]]
    if kind == "partial":
        function, arguments, keywords = map(decoded, content)
        return functools.partial(function, *arguments, **keywords)
    if kind == "namedtuple":
        return tuple.__new__(_named(content[0]), decoded(content[1]))
    name, fields = content
    made = object.__new__(_named(name))
    for field, each in fields.items():
        object.__setattr__(made, field, decoded(each))
    return made


def _array(dtype: str, shape: list[int], content: Any) -> Any:
    import numpy

    array = numpy.frombuffer(decoded(content), numpy.dtype(dtype)).reshape(shape)
    return array.copy() if shape else array[()]


def _tagged(kind: str, value: Any) -> dict[str, Any]:
    return {_KIND: kind, _VALUE: value}


def _name(value: Any) -> str:
    """The name of a function or class, by which it is found again; that of a script is found in its module."""
    name = f"{function_name(value).removesuffix(f'.{value.__qualname__}')}:{value.__qualname__}"
    if value.__module__ != "__main__" and _named(name) is not value:
        raise TypeError(f"{name} is another one")
    return name


def _named(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for each in path.split("."):
        found = getattr(found, each)
    return found
