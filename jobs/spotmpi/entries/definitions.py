"""The source of functions and classes as syntax trees, the names that it reads, and the functions in a class."""

from __future__ import annotations

import abc
import ast
import contextlib
import copy
import dis
import functools
import inspect
import linecache
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

_NO_TYPES = (ast.Yield, ast.YieldFrom, ast.Await, ast.NamedExpr)  # which an annotation may not have
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def definition(value: Any) -> ast.AST:
    """The definition of a function or class: of a decorated function that of the function which is called.

    Raises:
        OSError: it has no source, or that of something else, as with `python -c`.
    """
    if isinstance(value, types.FunctionType) and value.__code__.co_name == "<lambda>":
        return _lambda(value.__code__)
    try:
        if isinstance(value, type) and (found := _class_of_several(value)):
            return found
        text = inspect.getsource(value if isinstance(value, type) else value.__code__)
        statement = ast.parse(textwrap.dedent(text)).body[0]
    except (TypeError, SyntaxError, IndexError) as error:
        raise OSError(str(error)) from error
    name = value.__name__ if isinstance(value, type) else value.__code__.co_name
    if not isinstance(statement, _DEFINITIONS) or statement.name != name:
        raise OSError(f"the source of {name} is that of something else")
    return statement


def module_tree(module: types.ModuleType) -> ast.Module:
    """The source of a module; an empty one of an empty file, and of a folder without ``__init__.py``.

    Raises:
        OSError: it has none, such as one that was compiled from C.
    """
    file = getattr(module, "__file__", None)
    if file is None and hasattr(module, "__path__"):
        return ast.Module([], [])
    try:
        return ast.parse("" if file and Path(file).stat().st_size == 0 else inspect.getsource(module))
    except (TypeError, SyntaxError) as error:
        raise OSError(str(error)) from error


def _class_of_several(kind: type) -> ast.ClassDef | None:
    """Of several classes of one name in a file, as in branches of an ``if``, that with the methods of *kind*.

    `inspect` takes the first one before Python 3.13. Without methods that is what counts, and the values that differ.
    """
    text = "".join(linecache.getlines(inspect.getsourcefile(kind) or ""))  # `inspect.findsource` parses it each time
    if text.count(f"class {kind.__name__}") < 2:
        return None
    found = [each for each in ast.walk(_parsed(text)) if isinstance(each, ast.ClassDef)]
    found = [each for each in found if each.name == kind.__name__]
    own = [each.__code__ for each in methods(kind) if each.__code__.co_qualname.startswith(f"{kind.__qualname__}.")]
    if len(found) < 2 or not own:
        return None
    around = [
        each for each in found if all(each.lineno <= code.co_firstlineno <= (each.end_lineno or 0) for code in own)
    ]
    return copy.deepcopy(max(around, key=lambda each: each.lineno)) if around else None


_parsed = functools.lru_cache(maxsize=64)(ast.parse)


def _lambda(code: types.CodeType) -> ast.Lambda:
    """The lambda of *code*: of those that begin in its line the innermost one around all of its instructions."""
    try:
        tree = ast.parse("".join(inspect.findsource(code)[0]))
    except (TypeError, SyntaxError) as error:
        raise OSError(str(error)) from error
    found = [each for each in ast.walk(tree) if isinstance(each, ast.Lambda) and each.lineno == code.co_firstlineno]
    places = [place for place in code.co_positions() if None not in place and place[2:] != (0, 0)]
    if places:
        first = min((line, column) for line, _, column, _ in places if line is not None and column is not None)
        last = max((line, column) for _, line, _, column in places if line is not None and column is not None)
        around = [each for each in found if _begin(each) <= first and last <= _end(each)]
    else:  # of one that returns a constant, Python 3.12 notes no place
        around = [
            each for each in found if isinstance(each.body, ast.Constant) and each.body.value == code.co_consts[-1]
        ]
    if not around:
        raise OSError(f"line {code.co_firstlineno} has no such lambda")
    return max(around, key=_begin)


def _begin(node: ast.Lambda) -> tuple[int, int]:
    return node.body.lineno, node.body.col_offset


def _end(node: ast.Lambda) -> tuple[int, int]:
    return node.body.end_lineno or 0, node.body.end_col_offset or 0


def values_by_name(value: Any, tree: ast.AST) -> Iterator[tuple[str, Any, ast.expr | None]]:
    """The attributes of a class, or the defaults and attributes of a function, with the expression that defined each.

    That is None for what was assigned later. Methods and properties are left out, which `vars` has in their class, but
    not what replaced a method under its name.
    """
    found, written = dict(vars(value)), dict[str, ast.expr]()
    defined: dict[str, list[ast.expr]] = {}  # methods and classes in the class, with their decorators
    if isinstance(tree, ast.ClassDef):
        defined = {node.name: node.decorator_list for node in tree.body if isinstance(node, _DEFINITIONS)}
        for node in tree.body:
            for target in node.targets if isinstance(node, ast.Assign) else (getattr(node, "target", None),):
                if isinstance(target, ast.Name) and isinstance(expression := getattr(node, "value", None), ast.expr):
                    written[target.id] = expression
    elif isinstance(value, types.FunctionType) and isinstance(
        tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    ):
        found.update({f"default {place}": each for place, each in enumerate(value.__defaults__ or ())})
        found.update({f"default of {name}": each for name, each in (value.__kwdefaults__ or {}).items()})
        written = {f"default {place}": each for place, each in enumerate(tree.args.defaults)}
        pairs = zip(tree.args.kwonlyargs, tree.args.kw_defaults, strict=True)
        written |= {f"default of {each.arg}": default for each, default in pairs if default is not None}
    for name, each in found.items():
        if isinstance(each, types.FunctionType):
            is_method = each.__code__.co_qualname.startswith(f"{value.__qualname__}.")
            if defined.get(name) == [] and not is_method:
                yield name, each, None
        elif not name.startswith("__") and not (hasattr(type(each), "__get__") and {name} & {*written, *defined}):
            yield name, each, written.get(name)


def free_variables(function: types.FunctionType) -> dict[str, Any]:
    """The variables of a function that are those of the functions around it."""
    found = {}
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # it is not assigned yet
            found[variable] = cell.cell_contents
    return found


def methods(kind: type) -> list[types.FunctionType]:
    """The functions in a class, also those of its properties and class methods."""
    own = [*vars(kind).values()]  # some attributes change others when they are read
    found = [
        getattr(each, name, None) for each in own for name in ("__func__", "fget", "fset", "fdel", "func", "__call__")
    ]
    return [each for each in (*own, *found) if isinstance(each, types.FunctionType)]


def registered(kind: Any) -> list[type]:
    """The classes that ``register`` of an abstract base class *kind* got; none for others."""
    if not isinstance(kind, abc.ABCMeta):
        return []
    found = (each() for each in abc._get_dump(kind)[0])  # type: ignore[attr-defined]  # nothing public tells
    return [each for each in found if each is not None]


def without_docstrings(tree: ast.AST) -> ast.AST:
    """*tree* without the docstrings of its modules, functions and classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            body = node.body
            if body and isinstance(body[0], ast.Expr) and isinstance(getattr(body[0].value, "value", None), str):
                node.body = body[1:] or [ast.Pass()]
    return ast.fix_missing_locations(tree)


def without_comments(source: bytes) -> object:
    """What a file of Python is without comments and blank lines: equal for files that do the same as programs.

    Its docstrings stay, which a program may read, and its first line where that names the interpreter.
    """
    with contextlib.suppress(SyntaxError, ValueError):
        return source.startswith(b"#!") and source.partition(b"\n")[0], ast.unparse(ast.parse(source))
    return source


def names_read(tree: ast.AST, imported: set[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The globals that code reads, and those names that it has *imported*, each with attributes that follow."""
    tree = _Evaluated().visit(copy.deepcopy(tree))
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


class _Evaluated(ast.NodeTransformer):
    """Puts types in annotations in place of the texts that stand for them, as ``"Bound"`` in ``list["Bound"]``."""

    def visit(self, node: ast.AST) -> ast.AST:
        """Change the annotations in *node* and below it."""
        for field in ("annotation", "returns"):
            if isinstance(annotation := getattr(node, field, None), ast.expr):
                setattr(node, field, _Types().visit(annotation))
        return self.generic_visit(node)


class _Types(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """What a text says, if it is an expression."""
        with contextlib.suppress(SyntaxError, ValueError):
            found = ast.parse(node.value, mode="eval").body if isinstance(node.value, str) else node
            return node if any(isinstance(each, _NO_TYPES) for each in ast.walk(found)) else self.generic_visit(found)
        return node


def imported_names(file: Path) -> frozenset[str]:
    """The top names of the modules that a file of Python imports anywhere; none where it cannot be read."""
    try:
        return _imports(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return frozenset()


@functools.lru_cache(maxsize=1024)
def _imports(source: bytes) -> frozenset[str]:
    """The top names that a source imports; a package may have hundreds of files, and each call with its code asks."""
    names = set[str]()
    statements: list[ast.AST] = [ast.parse(source)]
    for node in statements:  # which grows; no expression has an import
        if isinstance(node, ast.Import):
            names.update(each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            statements += getattr(node, block, ())
    return frozenset(names)


def _compiled(tree: ast.AST) -> types.CodeType:
    if isinstance(tree, ast.expr):
        return compile(ast.Expression(tree), "", "eval", dont_inherit=True)
    body = tree if isinstance(tree, ast.Module) else ast.Module([tree], [])  # type: ignore[list-item]
    with contextlib.suppress(SyntaxError):
        return compile(body, "", "exec", dont_inherit=True)  # else annotations would be text, as in this file
    names = {name for node in ast.walk(tree) if isinstance(node, ast.Nonlocal) for name in node.names}
    around = ast.parse(f"def _():\n    global {getattr(tree, 'name', '_')}\n    {' = '.join(sorted(names))} = None")
    cast(ast.FunctionDef, around.body[0]).body += body.body  # of the function around it, which has these variables
    return compile(around, "", "exec", dont_inherit=True)


def _globals(code: types.CodeType) -> Iterator[str]:
    """The names that code and the functions in it look up outside of themselves."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals(constant)
