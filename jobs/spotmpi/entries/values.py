"""What identifies a value in any process, and the code that it holds."""

from __future__ import annotations

import collections
import contextlib
import copyreg
import dataclasses
import enum
import functools
import hashlib
import io
import pickle
import types
from collections.abc import Callable
from typing import Any

from spotmpi.core.errors import InputError, input_error

_DICTS = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict, types.MappingProxyType)
_SHOWN = 3  # members of a set that a message names
PLAIN = (type(None), bool, int, float, complex, str, bytes)  # what has no code in it


def token(value: object, name: str) -> str:
    """What identifies *value* in any process.

    Raises:
        InputError: that is not possible; *name* is what the value is called.
    """
    from dask.tokenize import TokenizationError

    try:
        return _token(value)
    except _HiddenSet as error:
        remedy = f"holds {error}, whose order differs from process to process: use a sorted list in its place"
        raise input_error(name, value, remedy) from error
    except (TokenizationError, TypeError, AttributeError, ValueError, RecursionError) as error:
        remedy = "cannot be hashed, so that a change of it would not be noticed: use numbers, text, arrays or functions"
        raise input_error(name, value, remedy) from error


def _token(value: Any) -> str:
    if isinstance(value, PLAIN):
        return f"{type(value).__name__}:{value!r}"
    from dask.tokenize import tokenize

    ordered = _in_order(value)
    _require_order(ordered)
    return str(tokenize(ordered, ensure_deterministic=True))


class _HiddenSet(Exception):
    """A set where Dask takes its members as they lie in memory, as of the text."""


def _require_order(value: Any) -> None:
    """Raise `_HiddenSet` for a set in what Dask pickles, such as an array of objects, a data frame or an object.

    Of lists, dictionaries and dataclasses it takes the members one by one, and those of a set by their text.
    """
    if isinstance(value, PLAIN):
        return
    if isinstance(value, dict):
        for pair in value.items():
            _require_order(pair)
    elif isinstance(value, (list, tuple, set)):
        for each in value:
            _require_order(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _require_order(getattr(value, field.name, None))
    elif not isinstance(value, type | types.FunctionType):
        with contextlib.suppress(pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError):
            _SetFinder(type(value).__name__).dump(value)  # what cannot be pickled Dask refuses by itself


class _SetFinder(pickle.Pickler):
    """Pickles an object of the type *of*, and raises `_HiddenSet` at the first set with several members."""

    def __init__(self, of: str) -> None:
        super().__init__(io.BytesIO())
        self._of = of

    def persistent_id(self, each: Any) -> Any:
        if isinstance(each, set | frozenset) and len(each) > 1:
            members = ", ".join(sorted(map(repr, each))[:_SHOWN])
            raise _HiddenSet(f"the {type(each).__name__} of {members}{', ...' * (len(each) > _SHOWN)} in {self._of}")
        return "hashes itself" if hasattr(type(each), "__dask_tokenize__") else None


def _in_order(value: Any) -> Any:
    """*value* with lists in place of its collections, which dask or pickle takes as they lie in memory.

    Dictionaries keep their order, by which a function may, for one, order columns. Sets have none: what they have in
    memory differs from process to process.
    """
    if has_no_name(value):
        raise TypeError("no module has it")
    kind = type(value)
    if kind in _DICTS:
        pairs = [(_in_order(each), _in_order(value[each])) for each in value]
        return (
            (kind.__name__, pairs) if kind is dict else (kind.__name__, pairs, getattr(value, "default_factory", None))
        )
    if kind in (set, frozenset):
        return kind.__name__, sorted(map(_token, value))
    if kind is collections.deque:
        return kind.__name__, [*map(_in_order, value)], value.maxlen
    if kind is slice and not all(isinstance(each, PLAIN) for each in (value.start, value.stop, value.step)):
        return kind.__name__, _in_order([value.start, value.stop, value.step])  # whose text Dask takes
    if kind is types.SimpleNamespace:
        return kind.__name__, _in_order(vars(value))
    if kind.__module__ == "__main__" and (digest := _digest(value)):  # which Dask takes with its code, by cloudpickle
        return kind.__qualname__, digest
    return kind(map(_in_order, value)) if kind in (list, tuple) else value


class _OrderedPickler(pickle.Pickler):
    """Pickles an object with the members of its sets in a certain order, and code by its name."""

    def persistent_id(self, each: Any) -> Any:
        if type(each) in (set, frozenset):
            return type(each).__name__, members_of(each)
        if isinstance(each, type | types.FunctionType | types.ModuleType):
            return _name_of(each)
        return None


def _digest(value: Any) -> str | None:
    """What identifies an object apart from its code; None where it cannot be pickled."""
    file = io.BytesIO()
    try:
        _OrderedPickler(file, 5).dump(value)
    except Exception:  # objects that cannot be pickled raise anything
        return None
    return hashlib.sha256(file.getvalue()).hexdigest()


def _name_of(code: Any) -> str:
    return f"{module_of(code)}.{getattr(code, '__qualname__', code.__name__)}"


def members_of(value: set[Any] | frozenset[Any]) -> list[Any]:
    """The members of a set in an order that is the same in any process."""

    def place(member: Any) -> str:
        if isinstance(member, type | types.FunctionType | types.ModuleType):
            return _name_of(member)
        try:
            return token(member, "")
        except InputError:
            return _digest(member) or repr(member)

    return sorted(value, key=place)


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

    def persistent_id(self, each: Any) -> Any:
        """The number of code, and the members of a set; None for other objects."""
        if type(each) in (set, frozenset):
            return type(each).__name__, members_of(each)
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
    if hasattr(type(value), "__dask_tokenize__"):  # of its class: some objects have any attribute
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
    name = _pickled_name(value)
    return name is not None and _is_qualified(name)


def has_no_name(value: Any) -> bool:
    """Whether pickle would look for a name that no module has, such as "add (vectorized)" of `numpy.frompyfunc`.

    It would ask all modules, of which some import others, for minutes, when they are asked for any name.
    """
    name = _pickled_name(value) if type(value).__name__ == "ufunc" else None
    return name is not None and not _is_qualified(name)


def _is_qualified(name: str) -> bool:
    return all(map(str.isidentifier, name.split(".")))


def _pickled_name(value: Any) -> str | None:
    """The name that pickle writes in place of what an object holds; None where it writes that."""
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        name = reduce(value) if reduce else value.__reduce_ex__(4)
    except Exception:  # objects that cannot be pickled raise anything
        return None
    return name if isinstance(name, str) else None


def module_of(value: Any) -> str:
    """The name of the module of a function or class, or of that of an object."""
    module = getattr(value, "__module__", None)
    return module if isinstance(module, str) else type(value).__module__
