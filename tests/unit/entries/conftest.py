"""Modules of a user, and a pool whose calls are executed in this process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.entries.in_process import InProcess


class Modules:
    """A folder of modules that are imported anew after each change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: set[str] = set()

    def write(self, **sources: str) -> None:
        """Write modules by name."""
        for name, text in sources.items():
            (self.folder / f"{name}.py").write_text(text)
            self._names.add(name)

    def replace(self, name: str, old: str, new: str) -> None:
        """Change the source of a module."""
        text = (self.folder / f"{name}.py").read_text()
        assert old in text
        self.write(**{name: text.replace(old, new, 1)})

    def load(self, name: str = "sets") -> ModuleType:
        """A module as it is now, with all others of the folder."""
        self.forget()
        importlib.invalidate_caches()
        return importlib.import_module(name)

    def forget(self) -> None:
        """Remove them from the modules of this process."""
        for name in self._names:
            sys.modules.pop(name, None)


@pytest.fixture
def pool() -> InProcess:
    """A pool in this process."""
    return InProcess()


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Modules]:
    """Modules of a user, with runs, store and cache in folders of their own."""
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # else a change within a second is not imported
    monkeypatch.setenv("SPOTMPI_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("SPOTMPI_CACHE", str(tmp_path / "cache"))
    found = Modules(folder)
    yield found
    found.forget()
