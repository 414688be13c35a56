"""docs/architecture.md names files that exist, has a paragraph for every room, and tells its stories in few files.

The top folder has what it is to have, and no more. CONTRIBUTING.md names files that exist, too.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import mutants
from tests.package.test_wheel import tracked_files

PROJECT = Path(__file__).resolve().parent.parent
PACKAGE = PROJECT / "jobs" / "spotmpi"
PAGE = (PROJECT / "docs" / "architecture.md").read_text()
GUIDE = (PROJECT / "CONTRIBUTING.md").read_text()
CHAPTERS = {chapter.partition("\n")[0]: chapter for chapter in PAGE.split("\n## ")}
FILE = re.compile(r"`([\w./-]+\.(?:py|toml|md|j2))`")


@pytest.mark.parametrize("name", sorted(set(FILE.findall(PAGE)) - {"job.toml", "study.toml"}))
def test_every_file_that_the_page_names_exists(name: str) -> None:
    assert (PACKAGE / name).is_file() or (PROJECT / name).is_file()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:\./)?[\w.-]+/[\w./-]+)`", GUIDE))))
def test_every_path_that_the_guide_for_contributors_names_exists(name: str) -> None:
    assert (PROJECT / name).exists() or name == "dist/"


@pytest.mark.parametrize("module", mutants.MODULES)
def test_every_module_that_is_mutated_exists(module: str) -> None:
    assert (PACKAGE / f"{module}.py").is_file()


def test_the_top_folder_has_nothing_else() -> None:
    names = {name.partition("/")[0] for name in tracked_files() if not name.startswith(".")}
    files = {
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "Pulumi.yaml",
        "README.md",
        "pyproject.toml",
        "requirements.lock",
    }
    assert names == files | {"docs", "images", "infra", "jobs", "scripts", "stacks", "tests"}


def test_every_room_has_a_paragraph() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert set(re.findall(r"\*\*(\w+)\*\*", CHAPTERS["Rooms"])) == rooms


def test_no_room_stands_above_one_that_it_may_import() -> None:
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = reversed(next(each["layers"] for each in contracts if each["type"] == "layers"))
    level = {room: number for number, layer in enumerate(layers) for room in layer.split(" | ")}
    starts = [paragraph.partition("\n")[0] for paragraph in CHAPTERS["Rooms"].split("\n\n")]
    levels = [level[room] for start in starts for room in re.findall(r"\*\*(\w+)\*\*", start)]

    assert len(levels) == len(level) and levels == sorted(levels)


@pytest.mark.parametrize(
    ("story", "most"),
    [
        ("Start of a local run", 20),
        ("A reclaimed worker, until the resumed iteration", 35),
        ("A study, from file to report", 30),
    ],
)
def test_a_story_passes_through_few_files(story: str, most: int) -> None:
    assert 10 < len(set(FILE.findall(CHAPTERS[story]))) <= most


def test_mypy_reads_all_of_a_provider_that_the_program_imports() -> None:
    overrides = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    read = {name for override in overrides if override.get("follow_imports") == "normal" for name in override["module"]}
    imported = {name for path in (PROJECT / "infra").rglob("*.py") for name in _provider_modules(path)}
    assert {f"pulumi_{name}.*" for name in ("aws.eks", "aws.iam", "kubernetes.core")} <= imported
    assert imported - read == set()


def _provider_modules(path: Path) -> Iterator[str]:
    """The providers' packages that *path* imports, as patterns of mypy; names with a capital are none."""
    tree = ast.parse(path.read_text())
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname or alias.name: alias.name for alias in node.names if "pulumi_" in alias.name}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("pulumi_aws", "pulumi_kubernetes")):
            package, _, service = str(node.module).partition(".")
            yield from (f"{package}.{service or alias.name}.*" for alias in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            package = aliases[node.value.id]
            if package in ("pulumi_aws", "pulumi_kubernetes") and node.attr.islower() and "_" not in node.attr:
                yield f"{package}.{node.attr}.*"
