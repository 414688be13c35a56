"""Whether a module lacks a function, before a run that would call it starts. Standard library only; imports no module.

Only what is certain counts: of a module that is not here, or that gives itself names while it runs, ranks and workers
say what is wrong.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_LISTED = 10  # functions in a message
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def problem(name: str, files: Sequence[Path], folder: str | None, is_here: bool) -> str | None:
    """Why ``module:function`` cannot be called, with the remedy; None where it can, or where that is not certain.

    The run has *files* and what is in *folder*; *is_here* says that it has the packages of this interpreter, too.
    """
    module, _, attribute = name.partition(":")
    top, *below = module.split(".")
    if top == "spotmpi" or top in sys.stdlib_module_names:
        return None
    places = [path.parent for path in files if path.name in (top, f"{top}.py")]
    text = _text(_candidates([*places, *([Path(folder)] if folder else [])], top, below))
    if text is None and is_here and top not in sys.modules:
        spec = importlib.util.find_spec(top)
        if spec is None:
            return f"{sys.executable} has no module {top}, nor have `code` and `files`: name its file in `files`"
        text = _text(_candidates([Path(each).parent for each in _locations(spec)], top, below))
    names = None if text is None else _names(text)
    if names is None or attribute in names:
        return None
    functions = [each for each, is_function in names.items() if is_function and not each.startswith("_")]
    listed = ", ".join(functions[:_LISTED]) + (", ..." if len(functions) > _LISTED else "")
    return f"the module {module} has no {attribute}, but {listed or 'no function at all'}; correct the name"


def _candidates(folders: Iterable[Path], top: str, below: Sequence[str]) -> Iterator[Path]:
    """The files that may be a module, in the order in which Python looks for them."""
    for folder in folders:
        path = folder.joinpath(top, *below)
        yield path / "__init__.py"
        yield path.with_name(f"{path.name}.py")


def _locations(spec: importlib.machinery.ModuleSpec) -> list[str]:
    """The folder of a package, or the file of a module."""
    return list(spec.submodule_search_locations or ()) or [spec.origin or ""]


def _text(paths: Iterable[Path]) -> bytes | None:
    """What the first of the files that there are has; None without one."""
    for path in paths:
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return b"*"  # which nobody can say anything about
    return None


def _names(text: bytes) -> dict[str, bool] | None:
    """The names that a module has when it has run, and whether they are defined there; None if that is not certain."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    if any(map(_is_dynamic, ast.walk(tree))):
        return None
    names = {name: False for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    nodes: list[ast.AST] = [tree]
    for node in nodes:  # which grows
        if isinstance(node, _FUNCTIONS):
            names[node.name] = True
            continue
        if isinstance(node, ast.alias):
            names.setdefault(node.asname or node.name.partition(".")[0], False)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.setdefault(node.id, False)
        nodes += ast.iter_child_nodes(node)
    return names


def _is_dynamic(node: ast.AST) -> bool:
    """Whether it may give a module a name that does not stand there."""
    if isinstance(node, ast.Name):
        return node.id in ("globals", "locals", "exec", "__getattr__")
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "vars" and not node.args
    if isinstance(node, ast.Attribute):
        return node.attr in ("__dict__", "modules")
    return getattr(node, "name", "") in ("*", "__getattr__")  # of an import, or a function of the module
