"""The structure of the code: no imports between the two halves, short components, no look-ups."""

import ast
from pathlib import Path

import pytest

from tests.tools import REPOSITORY

INFRA = sorted((REPOSITORY / "infra").rglob("*.py"))


def nodes(path: Path) -> list[ast.AST]:
    """The syntax tree of a file."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imported_packages(path: Path) -> set[str]:
    """The top-level packages that a file imports anywhere in it."""
    packages: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            packages |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            packages.add(node.module.split(".")[0])
    return packages


@pytest.mark.parametrize("path", INFRA, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_infra_imports_nothing_from_the_package_and_its_constructors_are_shorter_than_60_lines(path: Path) -> None:
    assert "spotmpi" not in imported_packages(path)
    functions = [node for node in nodes(path) if isinstance(node, ast.FunctionDef)]
    constructors = [node for node in functions if node.name == "__init__"]
    assert all((node.end_lineno or node.lineno) - node.lineno + 1 < 60 for node in constructors)


def test_the_environment_contract_imports_neither_pulumi_nor_infra() -> None:
    assert not {"pulumi", "infra"} & imported_packages(REPOSITORY / "jobs" / "spotmpi" / "core" / "environment.py")


@pytest.mark.parametrize("name", ["addresses", "names", "policies", "settings", "checks", "quotas", "guardrails/rules"])
def test_pure_files_import_no_engine_and_no_cloud(name: str) -> None:
    assert not {"pulumi", "pulumi_aws", "boto3", "subprocess"} & imported_packages(REPOSITORY / "infra" / f"{name}.py")


def test_the_program_looks_nothing_up_in_aws() -> None:
    look_ups = [
        f"{path.name}: {node.attr}"
        for path in INFRA
        if "ci" not in path.relative_to(REPOSITORY).parts
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr.startswith("get_") and node.attr.endswith(("_output", "_ami"))
    ]
    assert look_ups == ["storage.py: get_output"] * 2, "only the data stack's own outputs are read"
