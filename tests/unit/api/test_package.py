"""`import spotmpi`: the functions of the README, and an import that costs next to nothing."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import spotmpi


def test_the_names_of_the_package_are_listed_and_sorted() -> None:
    assert spotmpi.__all__ == sorted(set(spotmpi.__all__))
    assert set(dir(spotmpi)) >= set(spotmpi.__all__)


def test_no_name_is_hidden_by_a_folder_of_the_package() -> None:
    assert not {module.name for module in pkgutil.iter_modules(spotmpi.__path__)} & set(spotmpi.__all__)


def test_type_checkers_see_the_same_names() -> None:
    source = ast.parse(Path(spotmpi.__file__).read_text(), feature_version=(3, 8))
    (block,) = (node for node in source.body if isinstance(node, ast.If))
    imported = {
        (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
        for alias in node.names
    }
    assert {name for _, name in imported} == set(spotmpi.__all__)
    for module, name in imported:
        assert getattr(import_module(str(module)), name) is getattr(spotmpi, name)
        assert getattr(spotmpi, name).__name__ == name


def test_the_version_is_that_of_the_distribution() -> None:
    assert spotmpi.__version__ == version("spotmpi")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'spotmpi' has no attribute 'start'"):
        _ = spotmpi.start


def test_the_import_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import spotmpi; print(*(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.split() == ["spotmpi"]
