"""The modules that are shipped with a call since they are not installed, and what code imports of them."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from spotmpi.agent import store as files_of_folder
from spotmpi.agent.files import is_file, is_folder
from spotmpi.core.errors import InputError, input_error
from spotmpi.entries.definitions import imported_names
from spotmpi.entries.values import module_of
from spotmpi.streams import sources
from spotmpi.streams.dataset import is_installed
from spotmpi.streams.errors import StreamError

MISSING = object()  # in place of an attribute that a module does not have


def with_imports(paths: Iterable[Path]) -> list[Path]:
    """The files and packages *paths* with those that they import and that are not installed, used or not."""
    found = dict.fromkeys(paths)
    queue = [*found]
    for path in queue:  # which grows
        below = files_of_folder.files(str(path)) if is_folder(path) else ()
        files = sorted(path / name for name in below if name.endswith(".py")) if is_folder(path) else [path]
        names = sorted(
            {name for file in files for name in imported_names(file)} - {"spotmpi"} - sys.stdlib_module_names
        )
        more = (shipped_file(name) if name in sys.modules else _sibling_module(path, name) for name in names)
        new = [each for each in more if each and each not in found]
        found.update(dict.fromkeys(new))
        queue += new
    return [*found]


def _sibling_module(path: Path, name: str) -> Path | None:
    """The module or package in the folder of another one, which is in the path of modules for it."""
    module, package = path.with_name(f"{name}.py"), path.with_name(name)
    return module if is_file(module) else package if is_file(package / "__init__.py") else None


def shipped_file(module: str) -> Path | None:
    """The file or package of a module, to ship; None where it is installed, as are those of an image."""
    top = (main_module() if module == "__main__" else module).partition(".")[0]
    loaded = sys.modules.get(top)
    # Not by getattr: a module with a __getattr__ of its own may answer any name.
    folders = list(getattr(loaded, "__dict__", {}).get("__path__", ()))
    path = folders[0] if folders else getattr(loaded, "__file__", None)
    if path is None or top == "spotmpi" or top in sys.stdlib_module_names or is_installed(path):
        return None
    return Path(path).absolute()


def main_module() -> str:
    """The name of the module in a package that ``python -m`` executes; ``__main__`` for a script or a notebook."""
    name = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "")
    return name if "." in name else "__main__"


def is_shipped(module: str) -> bool:
    """Whether a module is one that is shipped, or the script or notebook itself."""
    return module == "__main__" or shipped_file(module) is not None


def attribute_of(module: types.ModuleType, name: str) -> Any:
    """The attribute of a module, or its submodule of that name, imported for this; `MISSING` without either."""
    if not hasattr(module, name) and "__path__" in vars(module):
        try:
            return _loaded(f"{module.__name__}.{name}")
        except ImportError:
            return MISSING
    return getattr(module, name, MISSING)


def imports_in(tree: ast.AST, package: str) -> Iterator[tuple[str, Any]]:
    """What the code itself imports, by the name that it gives to it; modules that are not there are its own error.

    Raises:
        InputError: a module that is shipped is there, and cannot be imported on this machine; but not where the code
            itself catches that.
    """
    tries = [each for each in ast.walk(tree) if isinstance(each, ast.Try) and each.handlers]
    guarded = {each for node in tries for statement in node.body for each in ast.walk(statement)}
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
                    for each in _public_names(module) if alias.name == "*" else (alias.name,):
                        value = attribute_of(module, each) if is_shipped(name) else _replaced(module, each)
                        yield alias.asname or each, value
        except InputError:
            if node not in guarded:
                raise
        except (ImportError, ValueError):
            continue


def _replaced(module: types.ModuleType, name: str) -> Any:
    """What a shipped module has put into an installed one under that name; else the module, which counts as a whole."""
    value = vars(module).get(name)
    is_code = isinstance(value, type | types.FunctionType)
    return value if is_code and is_shipped(module_of(value)) else module


def _public_names(module: types.ModuleType) -> list[str]:
    """The names that ``from module import *`` gives."""
    return list(getattr(module, "__all__", [each for each in vars(module) if not each.startswith("_")]))


def _loaded(name: str) -> types.ModuleType:
    """A module; one that is installed and not imported yet is not imported for this, but stands there empty."""
    top = name.partition(".")[0]
    loaded = sys.modules.get(top)
    spec = importlib.util.find_spec(top) if loaded is None else None
    if top in sys.stdlib_module_names or is_installed(spec.origin if spec else getattr(loaded, "__file__", None)):
        return importlib.import_module(name) if loaded else types.ModuleType(top)
    try:
        return sources.imported(name)
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):
            raise
        reason = f"{error}; install it here"
    except StreamError as error:
        reason = str(error)
    raise input_error("code", name, f"takes part in the key, and cannot be imported on this machine: {reason}")
