"""What a key cannot have: code that is known only when it runs, and what the environment of a process gives."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import runpy
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from spotmpi.agent.files import is_file
from spotmpi.core.errors import InputError, input_error
from spotmpi.entries.shipped import MISSING
from spotmpi.streams.dataset import is_installed

_UNKNOWN = (  # by which any code can be used
    eval,
    exec,
    globals,
    __import__,
    importlib.__import__,
    importlib.import_module,
    importlib.util.spec_from_file_location,
    inspect.getmodule,
    pkgutil.resolve_name,
    runpy.run_module,
    runpy.run_path,
    sys.modules,
)
_UNKNOWN_ATTRIBUTES = ("__globals__", "__subclasses__", "f_globals")
_ENVIRONMENT = (os.environ, os.environb, os.getenv, os.getenvb, os.path.expandvars)
_HOME = "expanduser"  # of os.path, and of paths
_BESIDE_CODE = ("__file__", "__path__", "__spec__", "__loader__")  # by which a module finds files beside it
# What is compiled sees no other day when a part is built again (`streams.second_build`).
_CLOCKS = {"numpy": ("datetime64",), "pandas": ("Timestamp", "to_datetime")}
_RESOURCES = ("importlib.resources", "importlib_resources")


def require_known(value: Any, name: str) -> None:
    """Raise InputError for what makes code unknown, or gives other results in another environment."""
    if any(value is each for each in _UNKNOWN):
        raise _unknown_code("sys.modules" if value is sys.modules else value.__name__, name)
    if any(value is each for each in _ENVIRONMENT):
        remedy = "reads variables of the environment, which are not part of the key: give their values as arguments"
        raise input_error("code", name, remedy)
    if value is os.path.expanduser:
        raise _home_folder(name)
    is_resource = isinstance(value, types.FunctionType) and str(value.__module__).startswith(_RESOURCES)
    if is_resource or value is pkgutil.get_data or _is_in_package(value):
        raise _package_data(name)


def require_known_name(variable: str, name: str) -> None:
    """`require_known` of a global by which its module finds files beside it, as *name* reads it."""
    if variable in _BESIDE_CODE:
        raise _package_data(f"{name}.{variable}")


def _is_in_package(value: Any) -> bool:
    """Whether a value is the path of a file or folder in a package that is not installed: workers get all of it."""
    if not isinstance(value, str | PurePath) or "\0" in str(value) or not Path(value).is_absolute():
        return False
    path = Path(value)
    with contextlib.suppress(OSError):  # the name is too long, or a folder cannot be read
        return any(is_file(each / "__init__.py") for each in (path, *path.parents)) and not is_installed(str(path))
    return False


def require_known_attributes(tree: ast.AST, scope: Mapping[str, Any], name: str) -> None:
    """`require_known` of the attributes in a source, also of those that ``getattr(module, "name")`` gives."""
    for node, attribute in _attributes(tree):
        if attribute in _UNKNOWN_ATTRIBUTES:
            raise _unknown_code(attribute, name)
        require_known_name(attribute, name)
        owner = _found(node, scope)
        if attribute == _HOME or (attribute == "home" and isinstance(owner, type) and issubclass(owner, PurePath)):
            raise _home_folder(name)
        if isinstance(owner, types.ModuleType):
            require_known(vars(owner).get(attribute), name)
    for part in ast.walk(tree):
        if isinstance(part, ast.Call) and _reads_clock(part, scope):
            remedy = "reads the clock, which is not part of the key: give the day as an argument"
            raise input_error("code", name, f"{ast.unparse(part)} {remedy}")


def _reads_clock(node: ast.Call, scope: Mapping[str, Any]) -> bool:
    """Whether a call is one such as ``numpy.datetime64("today")``."""
    first = node.args[0] if node.args else None
    if not isinstance(first, ast.Constant) or str(first.value).lower() not in ("now", "today"):
        return False
    called = _found(node.func, scope)
    package = str(getattr(called, "__module__", "")).partition(".")[0]
    return getattr(called, "__name__", "") in _CLOCKS.get(package, ())


def _found(node: ast.expr, scope: Mapping[str, Any]) -> Any:
    """What a name in *scope*, or an attribute of a module there, is; nothing is executed or loaded for it."""
    if isinstance(node, ast.Name):
        return scope.get(node.id, MISSING)
    if not isinstance(node, ast.Attribute):
        return MISSING
    owner = _found(node.value, scope)
    return vars(owner).get(node.attr, MISSING) if isinstance(owner, types.ModuleType) else MISSING


def _attributes(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """The attributes in a source, each with what it is one of."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.value, node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and len(node.args) > 1:
            text = node.args[1]
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield node.args[0], text.value


def _unknown_code(called: str, name: str) -> InputError:
    remedy = f"uses {called}, by which the code that takes part is not known: call functions by name"
    return input_error("code", name, remedy)


def _package_data(name: str) -> InputError:
    remedy = "finds files beside the code, which are not part of the key: read them where the module is imported"
    return input_error("code", name, f"{remedy}, or make them a source")


def _home_folder(name: str) -> InputError:
    return input_error("code", name, "reads the home folder, which is not part of the key: give paths as arguments")
