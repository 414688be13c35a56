"""Text files and the output of other programs are read and written as UTF-8, whatever the locale of the terminal is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
_OPENERS = {"open": 1, "os.fdopen": 1, "tempfile.NamedTemporaryFile": 0}  # place of the mode
_PLACES_OF_ENCODING = {"read_text": 0, "write_text": 1, "TextIOWrapper": 1}
_TEXT_MODE = re.compile("[rwxa][t+]*")


def _has_no_encoding(node: ast.AST) -> bool:
    """Whether a call reads or writes text in the encoding of the locale."""
    if not isinstance(node, ast.Call):
        return False
    named = {each.arg: ast.unparse(each.value) for each in node.keywords}
    if "encoding" in named:
        return False
    if named.get("text") == "True" or named.get("universal_newlines") == "True":
        return True
    name = ast.unparse(node.func)
    if name.startswith("tarfile."):
        return False
    if name in _OPENERS:
        return _mode(node, _OPENERS[name], default="w+b" if name.startswith("tempfile") else "r")
    method = name.rpartition(".")[2]
    if method in _PLACES_OF_ENCODING:
        return len(node.args) <= _PLACES_OF_ENCODING[method]
    return method == "open" and _mode(node, 0, default="b")  # file systems of fsspec open bytes


def _mode(node: ast.Call, place: int, default: str) -> bool:
    """Whether the mode of a call that opens something is one of text."""
    mode = next((each.value for each in node.keywords if each.arg == "mode"), None) or next(
        iter(node.args[place:]), None
    )
    text = mode.value if isinstance(mode, ast.Constant) else default if mode is None else ""
    return isinstance(text, str) and _TEXT_MODE.fullmatch(text) is not None


def _places() -> Iterator[str]:
    for folder in ("jobs", "images", "infra"):
        for path in sorted((PROJECT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if _has_no_encoding(node):
                    yield f"{path.relative_to(PROJECT)}: {ast.unparse(node)}"


@pytest.mark.extensive("looks through all sources, for those who change them")
def test_no_text_depends_on_the_locale() -> None:
    assert list(_places()) == []


def test_what_depends_on_the_locale_is_found() -> None:
    for text in (
        "open(a)",
        "open(a, 'w')",
        "open(a, mode='a')",
        "os.fdopen(1, 'w')",
        "path.open('w')",
        "path.read_text()",
        "path.read_text(errors='replace')",
        "path.write_text(a)",
        "io.TextIOWrapper(a)",
        "subprocess.run(a, text=True)",
        "tempfile.NamedTemporaryFile('w')",
    ):
        assert any(map(_has_no_encoding, ast.walk(ast.parse(text)))), text
    for text in ("open(a, 'rb')", "path.read_text('utf-8')", "path.open('ab')", "fs.open(a)", "tarfile.open(mode='w')"):
        assert not any(map(_has_no_encoding, ast.walk(ast.parse(text)))), text
