"""docs/architecture.md names files that exist, has a paragraph for every room, and tells its stories in few files.

CONTRIBUTING.md names files that exist, too.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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


def test_every_room_has_a_paragraph() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert set(re.findall(r"\*\*(\w+)\*\*", CHAPTERS["Rooms"])) == rooms


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
