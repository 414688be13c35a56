"""`import spotmpi`: the functions of the README, and an import that costs next to nothing."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import spotmpi


def test_the_names_of_the_package_are_listed_and_sorted() -> None:
    assert spotmpi.__all__ == sorted(set(spotmpi.__all__)) and "run" in spotmpi.__all__
    assert set(dir(spotmpi)) >= set(spotmpi.__all__)
    names: dict[str, object] = {}
    exec("from spotmpi import *", names)
    assert set(spotmpi.__all__) == names.keys() - {"__builtins__"}


def test_no_name_is_hidden_by_a_folder_of_the_package() -> None:
    assert not {module.name for module in pkgutil.iter_modules(spotmpi.__path__)} & set(spotmpi.__all__)


@pytest.mark.parametrize("name", spotmpi.__all__)
def test_a_public_name_is_what_its_module_calls_so(name: str) -> None:
    value = getattr(spotmpi, name)
    if isinstance(value, ModuleType):
        assert value.__name__ == f"spotmpi.api.{name}"
        return
    assert value.__name__ == name
    assert getattr(import_module(value.__module__), name) is value


def test_the_list_of_names_is_that_of_type_checkers_in_every_python_of_pods() -> None:
    source = ast.parse(Path(spotmpi.__file__).read_text(), feature_version=(3, 8))
    (block,) = (node for node in source.body if isinstance(node, ast.If))
    names = [alias for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(alias.name for alias in names if alias.asname == alias.name) == spotmpi.__all__


def test_the_version_is_that_of_the_distribution() -> None:
    assert spotmpi.__version__ == version("spotmpi")


@pytest.mark.parametrize("function", [spotmpi.status, spotmpi.stop, spotmpi.logs, spotmpi.resume, spotmpi.pull])
@pytest.mark.parametrize("run", [None, 5, object(), "\0"])
def test_what_is_no_id_of_a_run_is_refused_with_the_remedy(function: Callable[[Any], Any], run: Any) -> None:
    with pytest.raises(spotmpi.InputError, match=r"run.*: give the id of a run, which its state has as `id`"):
        function(run)


@pytest.mark.parametrize("on", [5, b"local", ["local"], {}])
def test_what_is_no_place_of_runs_is_refused_with_the_remedy(on: Any) -> None:
    with pytest.raises(spotmpi.InputError, match=r"on = .*: give the name of a place"):
        spotmpi.list_runs(on)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'spotmpi' has no attribute 'start'"):
        _ = spotmpi.start


def test_the_import_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import spotmpi; print(*(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.split() == ["spotmpi"]
