"""Commands of pools, and ranks of streams, whose interpreter is not that of spotmpi."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from spotmpi.backends.local import backend
from spotmpi.images import wheels
from spotmpi.spec.job import from_values

POOL: dict[str, Any] = {"launcher": "pool", "pool": {"workers": 1}}


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A python3 without Dask, for which the wheels are unpacked to /wheels."""
    path = tmp_path / "python3"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setattr(wheels, "unpack_for", lambda python, say: Path("/wheels") if python == str(path) else None)
    return path


def python_path(command: list[str], search: str) -> str:
    plan: Any = {"environment": {"PATH": search, "PYTHONPATH": "/code:/source"}}
    spec = from_values({**POOL, **({"command": command} if command else {})})
    return backend._with_dask(plan, spec, lambda text: None)["environment"]["PYTHONPATH"]


def test_an_interpreter_without_dask_finds_it_after_the_code_and_spotmpi(interpreter: Path) -> None:
    assert python_path([str(interpreter), "drive.py"], "/usr/bin") == "/code:/source:/wheels"
    assert python_path(["sh", "drive.sh"], str(interpreter.parent)) == "/code:/source:/wheels", "its python3"


def test_others_are_left_as_they_are(interpreter: Path) -> None:
    assert python_path([sys.executable, "drive.py"], "/usr/bin") == "/code:/source"
    assert python_path(["/no/python3", "drive.py"], str(interpreter.parent)) == "/code:/source"
    assert python_path([], str(interpreter.parent)) == "/code:/source", "there is no command"
