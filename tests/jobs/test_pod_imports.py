"""The pod side has to work in any image with Python 3.8: it needs nothing else."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from jobs import names

POD = sorted((names.PROJECT / "jobs" / "pod").glob("*.py"))


@pytest.mark.parametrize("path", POD, ids=lambda path: path.name)
def test_the_pod_side_imports_the_standard_library_and_itself_only(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 8))):
        imported: list[str] = []
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported = [node.module or ""]
        for name in imported:
            top = name.partition(".")[0]
            assert top in sys.stdlib_module_names or top == "__future__", f"{path.name} imports {name}"
