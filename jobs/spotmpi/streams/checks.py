"""What is wrong with the functions and files of a stream, before a run that would use them starts.

Only what is certain counts: of a module that is not here or gives itself names while it runs, or a file that cannot be
read here or is no text, ranks and workers say what is wrong. No module is imported for it.
"""

from __future__ import annotations

import ast
import bz2
import gzip
import importlib.util
import lzma
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

_LISTED = 10  # functions in a message
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_MAX_FILES = 100  # of which the rows are looked for; the first file of almost every source has one
_MAX_PIECE = 1 << 20  # bytes: a file may have no line end at all
_OPEN: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def function_problem(name: str, files: Sequence[Path], folder: str | None, is_here: bool) -> str | None:
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


def lacks_rows(paths: Iterable[Path]) -> bool:
    """Whether it is certain that none of some files has a row."""
    checked = False
    for number, path in enumerate(paths):
        if number == _MAX_FILES or _may_have_rows(path):
            return False
        checked = True
    return checked


def _may_have_rows(path: Path) -> bool:
    opened = _OPEN.get(path.suffix.lower())
    form = path.with_suffix("").suffix.lower() if opened else path.suffix.lower()
    try:
        with (opened or open)(path, "rb") as file:
            if form == ".csv":
                return sum(1 for _, line in zip(range(2), _lines(file), strict=False)) > 1
            if form in (".jsonl", ".ndjson"):
                return any(True for _ in _lines(file))
            if form in (".parquet", ".pq"):
                return _parquet_has_rows(file)
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error):
        pass  # the reason is better told by whoever reads it whole
    return True


def _parquet_has_rows(file: IO[bytes]) -> bool:
    """Whether a file of Parquet has rows, by its footer; as if it had where PyArrow is not installed here.

    Raises:
        ValueError, OSError: it is none that can be read here.
    """
    try:
        from pyarrow import parquet
    except ImportError:
        return True
    return bool(parquet.read_metadata(file).num_rows)


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines that are more than space, in pieces of bounded size; a carriage return may end one, too."""
    pieces = iter(lambda: file.readline(_MAX_PIECE), b"")
    return (line for piece in pieces for line in piece.splitlines() if line.strip())
