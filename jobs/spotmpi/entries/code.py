"""The code that takes part in a call of a function: itself, and what it uses of the modules that are shipped with it.

Comments, docstrings, blank lines and functions that are not used make no difference. What is installed counts by its
version, or by the lock of an image.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import linecache
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.entries.manifest import Code, digest_of

_UNKNOWN = ("eval", "exec", "globals", "__import__")  # whoever uses these may use any code
_NO_SOURCE = "has no source that can be read: define it by `def` or `class` in a module, such as sets.py"
_MISSING = object()
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_noted: dict[str, tuple[Any, int, int]] = {}  # by module: its spec, which a reload replaces, size and time of its file


def identify(
    function: Callable[..., Any], packages: bool = True, imported: Mapping[str, tuple[Any, int, int]] | None = None
) -> Code:
    """The code of *function*; with *packages* the versions of the installed ones that it uses.

    *imported* has for modules their spec, and size and time of their file, as they were when it was imported.

    Raises:
        InputError: a global that it uses cannot be hashed, or it uses code that is not known before it runs.
        SpotmpiError: a file was changed after it was imported.
    """
    for module, state in (imported or {}).items():
        _noted.setdefault(module, state)
    reader = _Reader(packages, function.__module__)
    reader.use(function, function_name(function))
    reader.use_package("pyarrow")  # which reads and writes the files of parts
    python = {"python": f"{sys.version_info[0]}.{sys.version_info[1]}"}
    found = {**python, **dict(sorted(reader.packages.items()))}
    sources, values = dict(sorted(reader.sources.items())), dict(sorted(reader.values.items()))
    return Code(digest_of([sources, values, found]), sources, values, found)


def files_of(function: Callable[..., Any]) -> list[Path]:
    """The files and packages that workers need for *function*: what it uses of modules that are not installed."""
    reader = _Reader(packages=False, own=function.__module__)
    reader.use(function, function_name(function))
    found = (shipped_file(module) for module in sorted(reader.modules))
    return list(dict.fromkeys(path for path in found if path))


def shipped_file(module: str) -> Path | None:
    """The file or package of a module, to ship; None where it is installed, as are those of an image."""
    top = module.partition(".")[0]
    loaded = sys.modules.get(top)
    folders = list(getattr(loaded, "__path__", ()))
    path = folders[0] if folders else getattr(loaded, "__file__", None)
    if path is None or top == "spotmpi" or top in sys.stdlib_module_names or "site-packages" in path:
        return None
    return Path(path).absolute()


def function_name(function: Callable[..., Any]) -> str:
    """The name of a function with that of its module; a script's module is called as if it were imported."""
    module, name = getattr(function, "__module__", "") or "", getattr(function, "__qualname__", repr(function))
    if module == "__main__":
        module = Path(getattr(sys.modules["__main__"], "__file__", None) or "__main__").stem
    return f"{module}.{name}"


def token(value: object, name: str) -> str:
    """What identifies *value* in any process.

    Raises:
        InputError: that is not possible; *name* is what the value is called.
    """
    if isinstance(value, _PLAIN):
        return f"{type(value).__name__}:{value!r}"
    from dask.tokenize import TokenizationError, tokenize

    try:
        return str(tokenize(value, ensure_deterministic=True))
    except (TokenizationError, TypeError, AttributeError, ValueError, RecursionError) as error:
        remedy = "cannot be hashed, so that a change of it would not be noticed: use numbers, text, arrays or functions"
        raise input_error(name, value, remedy) from error


class _Reader:
    """Collects the code that a function uses, beginning with `use`."""

    def __init__(self, packages: bool, own: str) -> None:
        self._counts_packages, self._own = packages, own
        self.sources: dict[str, str] = {}
        self.values: dict[str, str] = {}
        self.packages: dict[str, str] = {}
        self.modules: set[str] = set()
        self._seen: dict[int, Any] = {}  # the functions and classes that were taken in, which keeps their ids theirs

    def use(self, value: Any, name: str, chain: tuple[str, ...] = ()) -> None:
        """Take in *value*, which the code calls *name*, or what the attributes *chain* lead to from there."""
        while isinstance(value, types.ModuleType) and chain and self._takes(value.__name__):
            name, attribute, chain = f"{value.__name__}.{chain[0]}", chain[0], chain[1:]
            value = _attribute(value, attribute)
            if value is _MISSING:
                return  # code that is never reached, or an error of its own
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, types.ModuleType):
            self._use_module(value)
        elif isinstance(value, functools.partial):
            self.use(value.func, name)
            self.use((value.args, value.keywords), name)
        elif isinstance(value, types.MethodType):
            self.use(value.__func__, name)
            self.use(value.__self__, name)
        elif isinstance(value, type | types.FunctionType):
            self._use_definition(value, name)
        elif callable(value) and not self._takes(_module_of(value)):
            self.use_package(_module_of(value))
        else:
            self._use_value(value, name)

    def _use_module(self, module: types.ModuleType) -> None:
        name = module.__name__
        if not self._takes(name):
            self.use_package(name)
        elif name not in self.sources:  # used as a value: any of its functions may be called
            _require_unchanged(name)
            self._take(name, name, ast.parse(inspect.getsource(module)), vars(module))

    def _use_definition(self, value: Any, called: str) -> None:
        module = value.__module__
        if not self._takes(module):
            self.use_package(module)
            return
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        name = called if "<" in value.__qualname__ else function_name(value)
        while name in self.sources:
            name += "+"
        scope = dict(vars(sys.modules[module]) if isinstance(value, type) else value.__globals__)
        if isinstance(value, types.FunctionType):
            for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                with contextlib.suppress(ValueError):  # it is not assigned yet
                    scope[variable] = cell.cell_contents
        self._take(name, module, self._definition(value, name, scope), scope)

    def _definition(self, value: Any, name: str, scope: Mapping[str, Any]) -> ast.AST:
        """The definition of a function or class, without the decorators of spotmpi itself."""
        try:
            _require_unchanged(value.__module__)
            statement = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
        except (OSError, TypeError, SyntaxError, IndexError) as error:
            raise input_error("code", name, _NO_SOURCE) from error
        own = value.__name__ if isinstance(value, type) else value.__code__.co_name
        if own == "<lambda>":
            functions = [node for node in ast.walk(statement) if isinstance(node, ast.Lambda)]
            if len(functions) != 1:
                raise input_error("code", name, "is one of several on its lines: give each a line, or use `def`")
            return functions[0]
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        if not isinstance(statement, kinds) or statement.name != own:
            raise input_error("code", name, _NO_SOURCE)  # the source of something else, as of `python -c`
        statement.decorator_list = [each for each in statement.decorator_list if not _is_own(each, scope)]
        return statement

    def _take(self, name: str, module: str, tree: ast.AST, scope: Mapping[str, Any]) -> None:
        self.modules.add(module)
        tree = _without_docstrings(tree)
        self.sources[name] = ast.unparse(tree)
        imported = dict(_imports(tree, getattr(sys.modules.get(module), "__package__", None) or ""))
        for variable, chain in _names(tree, {*imported}):
            value = imported.get(variable, scope.get(variable, _MISSING))
            if value is not _MISSING:
                self.use(value, f"{name.partition('.')[0]}.{variable}", chain)
            elif variable in _UNKNOWN:
                remedy = f"uses {variable}, by which the code that takes part is not known: call functions by name"
                raise input_error("code", name, remedy)

    def _use_value(self, value: Any, name: str) -> None:
        kind = type(value)
        if _has_code(value):
            for number, each in enumerate(_members(value)):
                self.use(each, f"{name}[{number}]")
            return
        if self._takes(kind.__module__):
            self._use_definition(kind, name)
        self.values[name] = token(value, name)

    def use_package(self, module: str) -> None:
        """Take in the version of what is installed."""
        top = module.partition(".")[0]
        if not self._counts_packages or top in sys.stdlib_module_names or top in ("", "spotmpi", *self.packages):
            return
        self.packages[top] = _version(top)

    def _takes(self, module: str) -> bool:
        """Whether the code of a module counts: it is shipped, or it is that of the function itself."""
        return module == self._own or _is_shipped(module)


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


def _members(value: Any) -> list[Any]:
    """The members of a collection, and of those in it; of a set in an order that is the same in each process."""
    if isinstance(value, dict):
        return [each for pair in value.items() for part in pair for each in _members(part)]
    if isinstance(value, list | tuple):
        return [each for member in value for each in _members(member)]
    if isinstance(value, set | frozenset):
        return sorted(value, key=function_name)
    return [value]


def _has_code(value: Any) -> bool:
    """Whether a value is a collection with functions, classes or modules in it."""
    is_collection = isinstance(value, dict | list | tuple | set | frozenset)
    return is_collection and any(callable(each) or isinstance(each, types.ModuleType) for each in _members(value))


@functools.cache
def _version(package: str) -> str:
    """The version of an installed package, by the name that it is imported by."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        found = importlib.metadata.packages_distributions().get(package, [])
        return ", ".join(importlib.metadata.version(each) for each in sorted({*found})) or "unknown"


def _is_shipped(module: str) -> bool:
    return module == "__main__" or shipped_file(module) is not None


def _module_of(value: Any) -> str:
    module = getattr(value, "__module__", None)
    return module if isinstance(module, str) else type(value).__module__


def _attribute(module: types.ModuleType, name: str) -> Any:
    if not hasattr(module, name) and hasattr(module, "__path__"):
        try:
            return importlib.import_module(f"{module.__name__}.{name}")
        except ImportError:
            return _MISSING
    return getattr(module, name, _MISSING)


def _is_own(decorator: ast.expr, scope: Mapping[str, Any]) -> bool:
    """Whether a decorator is one of spotmpi, whose options, such as a number of workers, are no code."""
    node: ast.expr = decorator.func if isinstance(decorator, ast.Call) else decorator
    chain: list[str] = []
    while isinstance(node, ast.Attribute):
        chain.insert(0, node.attr)
        node = node.value
    value = scope.get(node.id) if isinstance(node, ast.Name) else None
    for name in chain:
        value = getattr(value, name, None)
    return _module_of(value).partition(".")[0] == "spotmpi"


def _without_docstrings(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            body = node.body
            if body and isinstance(body[0], ast.Expr) and isinstance(getattr(body[0].value, "value", None), str):
                node.body = body[1:] or [ast.Pass()]
    return ast.fix_missing_locations(tree)


def _names(tree: ast.AST, imported: set[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The globals that code reads, and those names that it has *imported*, each with attributes that follow."""
    names = {*_globals(_compiled(tree)), *imported}
    inner: set[int] = set()
    found: set[tuple[str, tuple[str, ...]]] = set()
    for node in ast.walk(tree):  # an attribute comes before what it is of
        chain: list[str] = []
        top: ast.AST = node
        while isinstance(top, ast.Attribute):
            chain.insert(0, top.attr)
            top = top.value
        if id(node) in inner or not isinstance(top, ast.Name) or top.id not in names:
            continue
        if isinstance(node, ast.Attribute):
            inner.update(id(each) for each in ast.walk(node))
        found.add((top.id, tuple(chain)))
    yield from sorted(found)


def _compiled(tree: ast.AST) -> types.CodeType:
    if isinstance(tree, ast.expr):
        return compile(ast.Expression(tree), "", "eval")
    body = tree if isinstance(tree, ast.Module) else ast.Module([tree], [])  # type: ignore[list-item]
    return compile(body, "", "exec")


def _globals(code: types.CodeType) -> Iterator[str]:
    """The names that code and the functions in it look up outside of themselves."""
    import dis

    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals(constant)


def _imports(tree: ast.AST, package: str) -> Iterator[tuple[str, Any]]:
    """What the code itself imports, by the name that it gives to it; modules that are not there are its own error."""
    for node in ast.walk(tree):
        try:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    module = _loaded(alias.name)
                    top = alias.name.partition(".")[0]
                    yield (alias.asname, module) if alias.asname else (top, sys.modules.get(top, module))
            elif isinstance(node, ast.ImportFrom):
                name = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                module = _loaded(name)
                for alias in node.names:
                    value = _attribute(module, alias.name) if _is_shipped(name) else module
                    yield alias.asname or alias.name, value
        except (ImportError, ValueError):
            continue


def _loaded(name: str) -> types.ModuleType:
    """A module; one that is installed and not imported yet is not imported for this, but stands there empty."""
    top = name.partition(".")[0]
    if top not in sys.modules:
        spec = importlib.util.find_spec(top)
        if spec is not None and (top in sys.stdlib_module_names or "site-packages" in str(spec.origin)):
            return types.ModuleType(top)
    return importlib.import_module(name)
