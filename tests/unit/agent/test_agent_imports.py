"""The pod side has to work in any image with Python 3.8, needs nothing else, and imports no more than a start needs."""

from __future__ import annotations

import ast
import contextlib
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi.core import names

POD = sorted((names.SOURCE / "spotmpi" / "agent").glob("*.py"))


@pytest.mark.parametrize("path", POD, ids=lambda path: path.name)
def test_the_pod_side_imports_the_standard_library_and_itself_only(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 8))):
        for _, module in imported_names(node):
            top = module.partition(".")[0]
            assert top in sys.stdlib_module_names or top == "__future__", f"{path.name} imports {module}"


@pytest.mark.parametrize("path", POD, ids=lambda path: path.name)
def test_the_pod_side_evaluates_no_type_that_python_3_8_refuses_to_subscript(path: Path) -> None:
    tree = ast.parse(path.read_text())
    modules = {name: module for node in ast.walk(tree) for name, module in imported_names(node)}
    for node in evaluated_nodes(tree):
        if isinstance(node, ast.Subscript):
            expression = ast.unparse(node.value)
            first, _, rest = expression.partition(".")
            qualified = f"{modules.get(first, first)}.{rest}".rstrip(".")
            # dict[str, int] or collections.abc.Iterator[str]: only annotations may say that.
            value = object_named(qualified)
            # From Python 3.14 on typing.Union is such a class, too; before, and in 3.8, it can be subscripted as well.
            generic = (
                isinstance(value, type) and hasattr(value, "__class_getitem__") and not qualified.startswith("typing.")
            )
            assert not generic, f"line {node.lineno}: write {ast.unparse(node)} with the names of typing"


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        (
            ["-c", "import spotmpi.agent.__main__, spotmpi.agent.children"],
            {"traceback", "socket", "csv", "platform", "shutil", "ctypes", "tarfile", "concurrent.futures"}
            | {
                "hashlib",
                "datetime",
                "spotmpi.agent.transport",
            },
        ),
        (["spotmpi/agent/rank_wrapper.py", "true"], {"signal", "json", "selectors", "enum", "re", "typing"}),
    ],
    ids=["agent of a local run", "rank wrapper"],
)
def test_a_start_waits_for_no_import_that_few_runs_need(arguments: list[str], unneeded: set[str]) -> None:
    command = [sys.executable, "-S", "-E", "-X", "importtime", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=names.SOURCE)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "os" in imported and not imported & unneeded


def imported_names(node: ast.AST) -> list[tuple[str, str]]:
    """The names that an absolute import binds, each with its qualified name."""
    if isinstance(node, ast.Import):
        return [(alias.asname or alias.name, alias.name) for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [(alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names]
    return []


def evaluated_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below *node* that are evaluated when the file runs: annotations are not."""
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield child
                    yield from evaluated_nodes(child)


def object_named(qualified: str) -> object:
    """The built-in type, or the thing of the standard library's modules, of that name; None where there is none."""
    module, _, name = qualified.rpartition(".")
    with contextlib.suppress(ImportError):
        return getattr(importlib.import_module(module or "builtins"), name, None)
    return None
