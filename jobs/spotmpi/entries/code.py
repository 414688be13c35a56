"""The code that takes part in a call of a function: itself, and what it uses of the modules that are shipped with it.

Comments, docstrings, blank lines and functions that are not used make no difference. What is installed counts by its
version, or by the lock of an image.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import io
import linecache
import pickle
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, MappingView
from pathlib import Path
from typing import Any

from spotmpi.agent.store import size_and_digest
from spotmpi.core.errors import InputError, SpotmpiError, input_error
from spotmpi.entries.definitions import (
    definition,
    free_variables,
    methods,
    module_tree,
    names_read,
    registered,
    values_by_name,
    without_docstrings,
)
from spotmpi.entries.manifest import Code, digest_of
from spotmpi.entries.shipped import (
    MISSING,
    attribute_of,
    imports_in,
    is_shipped,
    main_module,
    shipped_file,
    with_imports,
)
from spotmpi.entries.unknown import require_known, require_known_attributes, require_known_name
from spotmpi.entries.values import (
    PLAIN,
    CodePickler,
    fields_of,
    has_no_name,
    is_data,
    is_imported,
    members_of,
    module_of,
    state_of,
    token,
)

_NO_SOURCE = "has no source that can be read: define it by `def` or `class` in a module, such as sets.py"
_COLLECTIONS = (dict, list, tuple, set, frozenset)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_ALIASES = (types.GenericAlias, types.UnionType)
_Imported = Mapping[str, tuple[Any, int, int]]
_noted: dict[str, tuple[Any, int, int]] = {}  # by module: its spec, which a reload replaces, size and time of its file


def identify(
    function: Callable[..., Any],
    arguments: Mapping[str, Any] | None = None,
    packages: bool = True,
    imported: _Imported | None = None,
) -> Code:
    """The code of *function* and that of its *arguments*; with *packages* the versions of the installed ones in use.

    *imported* has for modules their spec, and size and time of their file, as they were when it was imported.

    Raises:
        InputError: a global that it uses cannot be hashed, or it uses code that is not known before it runs.
        SpotmpiError: a file was changed after it was imported.
    """
    for module, state in (imported or {}).items():
        _noted.setdefault(module, state)
    reader = _Reader(packages, function.__module__)
    reader.use_call(function, arguments or {})
    reader.use_package("pyarrow")  # which reads and writes the files of parts
    python = {"python": f"{sys.version_info[0]}.{sys.version_info[1]}"}
    found = {**python, **dict(sorted(reader.packages.items()))}
    sources, values = dict(sorted(reader.sources.items())), dict(sorted(reader.values.items()))
    return Code(digest_of([sources, values, found]), sources, values, found)


def files_of(function: Callable[..., Any], arguments: Mapping[str, Any] | None = None) -> list[Path]:
    """The files and packages that workers need for a call: what it uses of modules that are not installed."""
    reader = _Reader(packages=False, own=function.__module__)
    reader.use_call(function, arguments or {})
    return with_imports(path for module in sorted(reader.modules) if (path := shipped_file(module)))


def has_code(value: Any, function: Callable[..., Any]) -> bool:
    """Whether an argument of *function* has code in it that counts, such as a function or an object of its module."""
    return _Reader(packages=False, own=function.__module__).has_code(value)


def function_name(function: Callable[..., Any]) -> str:
    """The name of a function with that of its module; a script's module is called as if it were imported."""
    module, name = getattr(function, "__module__", "") or "", getattr(function, "__qualname__", repr(function))
    return f"{_module_name(module)}.{name}"


def _module_name(module: str) -> str:
    name = main_module() if module == "__main__" else module
    script = getattr(sys.modules["__main__"], "__file__", None) if name == "__main__" else None
    return Path(script).stem if script else name


class _Reader:
    """Collects the code that a function uses, beginning with `use`."""

    def __init__(self, packages: bool, own: str) -> None:
        self._counts_packages, self._own = packages, own
        self.sources: dict[str, str] = {}
        self.values: dict[str, str] = {}
        self.packages: dict[str, str] = {}
        self.modules: set[str] = set()
        self._seen: dict[int, Any] = {}  # the functions and classes that were taken in, which keeps their ids theirs
        self._named: dict[str, Any] = {}  # what each name in `values` is that of

    def use_call(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        """Take in a function, and the code that its arguments have."""
        self.use(function, function_name(function))
        for name, value in arguments.items():
            if self.has_code(value):
                self.use(value, f"argument {name}")

    def use(self, value: Any, name: str, chain: tuple[str, ...] = ()) -> None:
        """Take in *value*, which the code calls *name*, or what the attributes *chain* lead to from there."""
        while isinstance(value, types.ModuleType) and chain and chain[0] != "__dict__" and self._takes(value.__name__):
            name, attribute, chain = f"{value.__name__}.{chain[0]}", chain[0], chain[1:]
            value = attribute_of(value, attribute)
            if value is MISSING:
                return  # code that is never reached, or an error of its own
        require_known(value, name)
        if isinstance(value, types.ModuleType):
            found: Any = value
            for each in chain:  # such as os.path.expandvars
                found = getattr(found, each, None) if isinstance(found, types.ModuleType) else None
                require_known(found, name)
                self._use_replaced(found, f"{name}.{each}")
            self._use_module(value, name)
        elif isinstance(value, functools.partial):
            self.use(value.func, name)
            self.use((value.args, value.keywords), name)
            if attributes := {each: of for each, of in vars(value).items() if not each.startswith("__")}:
                self.use(attributes, f"{name} attributes")
        elif isinstance(value, types.MethodType):
            self.use(value.__func__, name)
            self.use(value.__self__, name)
        elif isinstance(value, type | types.FunctionType):
            self._use_definition(value, name)
        elif isinstance(value, _ALIASES) or type(value).__module__ == "typing":
            self._use_type(value, name)
        elif callable(value) and hasattr(value, "__wrapped__") and not self._takes(type(value).__module__):
            self.use(value.__wrapped__, name)
        elif callable(value) and is_imported(value) and not self._is_object(value):
            self._use_installed(value, module_of(value), name)
            if self._takes(module_of(value)):
                self._use_compiled(module_of(value))
        else:
            self._use_value(value, name)

    def _use_replaced(self, value: Any, name: str) -> None:
        """Take in a function or class of a shipped module that one has put into a package, or into the builtins."""
        if isinstance(value, type | types.FunctionType) and self._takes(module_of(value)):
            self.use(value, name)

    def _use_type(self, value: Any, name: str) -> None:
        """Take in what an annotation, a generic class with its parameters, or another name of a type is made of."""
        origin = typing.get_origin(value)
        if isinstance(value, typing.NewType):
            origin = value.__supertype__
        elif type(value).__name__ == "TypeAliasType":  # from Python 3.12 on
            if id(value) in self._seen:  # it names itself
                return
            self._seen[id(value)] = value
            origin = value.__value__
        self.use(origin, name)
        for number, each in enumerate(typing.get_args(value)):
            self.use(getattr(each, "__forward_arg__", each), f"{name}[{number}]")

    def _use_module(self, module: types.ModuleType, called: str) -> None:
        name = module.__name__
        if not self._takes(name):
            if called.rpartition(".")[2] != name:  # else its source says it
                self._use_installed(module, name, called)
            self.use_package(name)
        elif name not in self.sources:  # used as a value: any of its functions may be called, and what it imports
            _require_unchanged(name)
            try:
                tree = module_tree(module)
            except OSError:
                self._use_compiled(name)
                return
            self._take(name, name, tree, vars(module))
            below = [(each, value) for each, value in vars(module).items() if f"{name}.{each}" in sys.modules]
            for variable, value in [*imports_in(tree, module.__package__ or ""), *below]:
                if is_data(value) or self.has_code(value):
                    self.use(value, f"{name}.{variable}")

    def _use_compiled(self, module: str) -> None:
        """Take in a shipped module that was compiled, as from C, by the content of its file."""
        self.modules.add(module)
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is None:
            raise input_error("code", module, _NO_SOURCE)
        self.values[module] = size_and_digest(file)[1]

    def _use_installed(self, value: Any, module: str, called: str) -> None:
        """Take in what is installed: its name, since *called* may be bound to something else later, and the version."""
        if module.partition(".")[0] != "spotmpi" and (called := self._new_name(called, value)):
            names = (getattr(value, each, None) for each in ("__qualname__", "__name__"))
            name = next((str(each) for each in names if each), type(value).__qualname__)
            self.values[called] = name if name.startswith(module) else f"{module}.{name}"
        self.use_package(module)

    def _new_name(self, name: str, value: Any) -> str:
        """A name for *value* in `values` that nothing else has; empty if it has one that begins so."""
        while name in self._named:
            if self._named[name] is value:
                return ""
            name += "+"
        self._named[name] = value
        return name

    def _use_definition(self, value: Any, called: str) -> None:
        """Take in a function or class, and what it uses; of what is installed the name and version alone."""
        is_class = isinstance(value, type)
        module = value.__module__ if is_class else value.__globals__.get("__name__", "")
        if not is_class and not module and not value.__module__:  # as of `exec` with globals of its own
            raise input_error("code", called, _NO_SOURCE)
        is_taken = self._takes(module)
        if module == "types" and vars(types).get(value.__name__) is not value:  # by `new_class` or `make_dataclass`
            raise input_error("code", called, _NO_SOURCE)
        if not is_taken:
            self._use_installed(value, module, called)
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if not is_taken:
            for each in () if is_class else free_variables(value).values():
                self._use_code_in(each, called)
            return
        is_nested = "<" in (value.__qualname__ if is_class else value.__code__.co_qualname)
        name = called if is_nested else function_name(value)
        while name in self.sources:
            name += "+"
        scope = vars(sys.modules[module]) if is_class else value.__globals__
        free = self._use_methods(value, name) if is_class else free_variables(value)
        if not is_class and is_nested:  # what its defaults are is known by their values alone
            self._use_value((value.__defaults__, value.__kwdefaults__), f"{name} defaults")
        try:
            _require_unchanged(module)
            tree = definition(value)
        except OSError as error:
            fields = fields_of(value)
            if fields is None:
                raise input_error("code", name, _NO_SOURCE) from error
            self.modules.add(module)
            self.values[self._new_name(name, value)] = token(fields, name)
            return
        if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            tree.decorator_list = [each for each in tree.decorator_list if not _is_own(each, scope)]
        for attribute, each, expression in values_by_name(value, tree):
            if not _shows(expression, each, scope):
                self._use_attribute(each, f"{name}.{attribute}", expression is not None)
        if others := registered(value):  # which `isinstance` tells
            self._use_value(sorted(map(function_name, others)), f"{name}.register")
        self._take(name, module, tree, scope, free)

    def _use_attribute(self, value: Any, name: str, is_written: bool) -> None:
        """Take in a default or attribute; what cannot be hashed only where the source *is_written* that gives it."""
        try:
            token(value, name)
        except InputError:
            is_made = is_written or hasattr(type(value), "__get__") or name.rpartition(".")[2].startswith("_")
            if is_made and not self.has_code(value):
                return
        self.use(value, name)

    def _use_methods(self, kind: type, name: str) -> dict[str, Any]:
        """Take in functions that were assigned to a class later; the variables of functions around its own methods."""
        free: dict[str, Any] = {}
        for function in methods(kind):
            if function.__code__.co_qualname.startswith(f"{kind.__qualname__}."):
                free.update(free_variables(function))
            elif not function.__qualname__.startswith(f"{kind.__qualname__}."):
                self.use(function, f"{name}.{function.__name__}")
        return free

    def _take(
        self, name: str, module: str, tree: ast.AST, scope: Mapping[str, Any], free: Mapping[str, Any] | None = None
    ) -> None:
        """Take in a source, and what its globals and the variables *free* of the functions around it are."""
        self.modules.add(module)
        tree = without_docstrings(tree)
        self.sources[name] = ast.unparse(tree)
        own = [*(free or {}).items(), *imports_in(tree, getattr(sys.modules.get(module), "__package__", None) or "")]
        for variable, chain in names_read(tree, {each for each, _ in own}):
            require_known_name(variable, name)
            called = f"{_module_name(module)}.{variable}"
            found = [(f"{name}.{variable}", value) for each, value in own if each == variable]
            found += [(called, scope[variable])] if variable in scope else []  # one branch or method may mean another
            for place, value in found:
                self.use(value, place, chain)
            if not found:
                require_known(getattr(builtins, variable, None), name)
                self._use_replaced(getattr(builtins, variable, None), f"{name}.{variable}")
        require_known_attributes(tree, {**scope, **dict(own)}, name)

    def _use_value(self, value: Any, name: str) -> None:
        name = self._new_name(name, value)
        if not name:
            return
        parts = [*self._parts(value, {})]
        if len(parts) == 1 and parts[0] is value:
            pickled, code = self._pickled(value)
            for number, each in enumerate(code):
                self.use(each, f"{name}[{number}]")
            is_mark = type(value) is object  # which is compared, and has no content
            self.values[name] = "object" if is_mark else pickled if code else token(value, name)
        elif self.has_code(value):
            for number, each in enumerate(parts):
                self.use(each, f"{name}[{number}]")
        else:
            self.values[name] = token(value, name)

    def has_code(self, value: Any) -> bool:
        """Whether a value has functions, classes or modules in it."""
        parts = self._parts(value, {})
        return any(
            callable(each) or isinstance(each, types.ModuleType) or self._pickled(each)[1]
            for each in parts
            if not isinstance(each, PLAIN)
        )

    def _use_code_in(self, value: Any, name: str) -> None:
        """Take in the code that a decorator of a package holds, and nothing else of it."""
        for each in self._parts(value, {}):
            if isinstance(each, _FUNCTIONS):
                parts: tuple[Any, ...] = (each,)
                if isinstance(each, functools.partial):
                    parts = each.func, each.args, each.keywords
                elif isinstance(each, types.MethodType):
                    parts = each.__func__, each.__self__
                for part in parts:
                    if isinstance(part, types.FunctionType):
                        self._use_definition(part, name)
                    else:
                        self._use_code_in(part, name)
            elif hasattr(each, "__wrapped__"):
                self._use_code_in(each.__wrapped__, name)
            elif not isinstance(each, PLAIN):
                for found in self._pickled(each)[1]:
                    self.use(found, name)

    def _parts(self, value: Any, known: dict[int, int]) -> Iterator[Any]:
        """A collection's or shipped object's type and size, then its members, and those in them, in a certain order.

        *known* has the objects that were met, by their ids.
        """
        if id(value) in known:
            yield f"object {known[id(value)]}"
            return
        members: Any
        if self._is_object(value) and (state := state_of(value)) is not None:
            known[id(value)] = len(known)
            members = (type(value), *state)
        elif isinstance(value, dict | types.MappingProxyType):
            factory = getattr(value, "default_factory", None)  # of a defaultdict
            members = [*(part for pair in value.items() for part in pair), *([] if factory is None else [factory])]
        elif isinstance(value, set | frozenset):
            members = members_of(value)
        elif isinstance(value, (*_COLLECTIONS, MappingView)):
            members = value
        else:
            yield value
            return
        members = [*members]
        yield f"{type(value).__name__} of {len(members)}"  # where each begins and ends
        for each in members:
            yield from self._parts(each, known)

    def _is_object(self, value: Any) -> bool:
        """Whether a value is an object of a shipped class."""
        is_other = type(value) in PLAIN or isinstance(value, (type, types.ModuleType, *_FUNCTIONS))
        return not is_other and self._takes(type(value).__module__)

    def _pickled(self, value: Any) -> tuple[str, list[Any]]:
        """A digest of an object of a package, and the shipped code in it, such as a function that it calls."""
        if isinstance(value, PLAIN) or type(value) is object or has_no_name(value):
            return "", []
        file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
        pickler = CodePickler(file, 5, buffer_callback=buffers.append)
        pickler.takes = self._takes
        try:
            pickler.dump(value)
        except Exception:  # objects that cannot be pickled raise anything; `token` says so
            return "", []
        if not pickler.code:
            return "", []
        whole = hashlib.sha256(file.getvalue())
        for each in buffers:
            whole.update(each.raw())
        return whole.hexdigest(), pickler.code

    def use_package(self, module: str) -> None:
        """Take in the version of what is installed."""
        top = module.partition(".")[0]
        if not self._counts_packages or top in sys.stdlib_module_names or top in ("", "spotmpi", *self.packages):
            return
        self.packages[top] = _version(top)

    def _takes(self, module: str) -> bool:
        """Whether the code of a module counts: it is shipped, or it is that of the function itself."""
        return module == self._own or is_shipped(module)


def _require_unchanged(module: str) -> None:
    """Raise SpotmpiError where a file is not what was imported: workers would execute what this process does not know.

    What the file was is known since the module was first looked at.
    """
    loaded = sys.modules[module]
    file = getattr(loaded, "__file__", None)
    if file is None:
        return  # a notebook
    linecache.checkcache(file)
    status = Path(file).stat()
    now = (loaded.__spec__, status.st_size, status.st_mtime_ns)
    if _noted.get(module, now)[0] is not now[0]:
        del _noted[module]
    if _noted.setdefault(module, now)[1:] != now[1:]:
        remedy = f"start Python again, or call importlib.reload({module})"
        raise SpotmpiError(f"{file} was changed after it was imported: {remedy}")


@functools.cache
def _version(package: str) -> str:
    """The version of an installed package, by the name that it is imported by."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        found = importlib.metadata.packages_distributions().get(package, [])
        return ", ".join(importlib.metadata.version(each) for each in sorted({*found})) or "unknown"


def _shows(expression: ast.expr | None, value: Any, scope: Mapping[str, Any]) -> bool:
    """Whether the source of an expression says what *value* is: a literal, or a global, that nobody has replaced."""
    if expression is None:
        return False
    if isinstance(expression, ast.Name | ast.Attribute):
        return _named(expression, scope) is value
    try:
        return token(ast.literal_eval(expression), "") == token(value, "")
    except (ValueError, TypeError, InputError):
        return False


def _is_own(decorator: ast.expr, scope: Mapping[str, Any]) -> bool:
    """Whether a decorator is one of spotmpi, whose options, such as a number of workers, are not code."""
    value = _named(decorator.func if isinstance(decorator, ast.Call) else decorator, scope)
    return module_of(value).partition(".")[0] == "spotmpi"


def _named(node: ast.expr, scope: Mapping[str, Any]) -> Any:
    """What a name, or the attributes of one, is in *scope*; `MISSING` without it, and for other expressions."""
    if isinstance(node, ast.Attribute):
        return getattr(_named(node.value, scope), node.attr, MISSING)
    return scope.get(node.id, MISSING) if isinstance(node, ast.Name) else MISSING
