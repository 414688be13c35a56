"""What identifies a value in any process, and the code that it holds."""

from __future__ import annotations

import copyreg
import enum
import functools
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any

from spotmpi.core.errors import input_error

PLAIN = (type(None), bool, int, float, complex, str, bytes)  # what has no code in it


def token(value: object, name: str) -> str:
    """What identifies *value* in any process.

    Raises:
        InputError: that is not possible; *name* is what the value is called.
    """
    if isinstance(value, PLAIN):
        return f"{type(value).__name__}:{value!r}"
    from dask.tokenize import TokenizationError, tokenize

    try:
        return str(tokenize(_in_order(value), ensure_deterministic=True))
    except (TokenizationError, TypeError, AttributeError, ValueError, RecursionError) as error:
        remedy = "cannot be hashed, so that a change of it would not be noticed: use numbers, text, arrays or functions"
        raise input_error(name, value, remedy) from error


def _in_order(value: Any) -> Any:
    """*value* with pairs in place of its dictionaries: by their order a function may, for one, order columns."""
    if type(value) is dict:
        return "dict", [(each, _in_order(value[each])) for each in value]
    return type(value)(map(_in_order, value)) if type(value) in (list, tuple) else value


def is_data(value: Any) -> bool:
    """Whether a value is a number, text or bytes, or a collection of such."""
    if isinstance(value, dict):
        return all(is_data(each) for pair in value.items() for each in pair)
    return isinstance(value, PLAIN) or (isinstance(value, (list, tuple, set, frozenset)) and all(map(is_data, value)))


class CodePickler(pickle.Pickler):
    """Pickles an object with numbers in place of the code in it that *takes* names the module of."""

    takes: Callable[[str], bool]

    @functools.cached_property
    def code(self) -> list[Any]:
        """The functions, classes and modules, by these numbers."""
        return []

    def persistent_id(self, each: Any) -> int | None:
        """The number of code; None for other objects."""
        is_code = isinstance(each, type | types.FunctionType) and self.takes(module_of(each))
        if not is_code and not isinstance(each, types.ModuleType):
            return None
        self.code.append(each)
        return len(self.code)


def fields_of(value: Any) -> Any:
    """What tells a class apart that a call has made, such as of `namedtuple`; None for others."""
    if isinstance(value, type) and issubclass(value, enum.Enum):
        return [(member.name, member.value) for member in value]
    if hasattr(value, "_field_defaults"):
        return [value._fields, value._field_defaults]
    return None


def state_of(value: Any) -> list[Any] | None:
    """What an object holds, as Dask or `pickle` would take it; None where that is not possible."""
    if hasattr(value, "__dask_tokenize__"):
        return [value.__dask_tokenize__()]
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:  # objects that cannot be pickled raise anything; `token` says so
        return None
    if isinstance(reduced, str):
        return [reduced]
    _, arguments, state, members, items = (*reduced, None, None, None)[:5]
    return [arguments, state, [*(members or ())], [*(items or ())]]


def is_imported(value: Any) -> bool:
    """Whether pickle names an object, such as a function in C, in place of what it holds."""
    if isinstance(value, types.BuiltinFunctionType):
        return value.__self__ is None or isinstance(value.__self__, types.ModuleType | type)
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        name = reduce(value) if reduce else value.__reduce_ex__(4)
        if not isinstance(name, str):
            return False
        found: Any = sys.modules[pickle.whichmodule(value, name)]  # type: ignore[attr-defined]
        for each in name.split("."):
            found = getattr(found, each)
        return found is value  # which a function of numpy is not that `numpy.frompyfunc` has made
    except Exception:  # objects that cannot be pickled raise anything
        return False


def module_of(value: Any) -> str:
    """The name of the module of a function or class, or of that of an object."""
    module = getattr(value, "__module__", None)
    return module if isinstance(module, str) else type(value).__module__
