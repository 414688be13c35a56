"""The code comes in small pieces: how long a file and a function of it may be."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
FOLDERS = ("jobs", "infra", "stacks", "images", "scripts", "tests")
FILE, FUNCTION = 300, 40  # lines


def is_python(path: Path) -> bool:
    """Whether it is a file of Python, also one whose name does not say so."""
    if path.suffix == ".py":
        return True
    if path.suffix or not path.is_file():
        return False
    with path.open("rb") as file:
        first = file.readline()
    return first.startswith(b"#!") and b"python" in first


def too_long(name: str, text: str) -> list[str]:
    """Why a file named *name* is too long, and each function in it that is; a function counts from its def on."""
    lines = text.count("\n")
    told = [f"{name} has {lines} lines; {FILE} is the limit: cut it where it says two things"] if lines > FILE else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            length = node.end_lineno - node.lineno + 1
            if length > FUNCTION:
                where = f"{name}:{node.lineno} {node.name}"
                told.append(f"{where} has {length} lines; {FUNCTION} is the limit: give a part of it a name")
    return told


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_and_no_function_is_too_long(folder: str) -> None:
    assert (PROJECT / folder).is_dir()
    found = sorted(filter(is_python, (PROJECT / folder).rglob("*")))
    told = [line for path in found for line in too_long(str(path.relative_to(PROJECT)), path.read_text("utf-8"))]
    assert not told, "\n" + "\n".join(told)


def test_scripts_without_an_ending_are_looked_at_too() -> None:
    assert is_python(PROJECT / "scripts" / "ci-up") and not is_python(PROJECT / "scripts" / "demo")


def test_what_is_too_long_is_told_with_its_name_and_length() -> None:
    body = "    x = 1\n"
    fits = "@staticmethod\ndef fits():\n" + body * (FUNCTION - 1)
    assert too_long("a.py", fits) == []
    assert too_long("a.py", "\n" * FILE) == []

    assert too_long("a.py", fits + body) == ["a.py:2 fits has 41 lines; 40 is the limit: give a part of it a name"]
    inner = "class A:\n  async def goes_on(self):\n" + body * FUNCTION
    assert too_long("b.py", inner) == ["b.py:2 goes_on has 41 lines; 40 is the limit: give a part of it a name"]
    (told,) = too_long("c.py", "\n" * (FILE + 1))
    assert told == "c.py has 301 lines; 300 is the limit: cut it where it says two things"
