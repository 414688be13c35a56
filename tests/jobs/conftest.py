"""What tests of jobs share."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.cli.main import main

InProcess = Callable[..., tuple[int, str, str]]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runs folder inside the current one, so that paths in reports are short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> InProcess:
    """The command line without a process of its own, which is quicker: exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["spotmpi", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said, complaint = capsys.readouterr()
        return int(ended.value.code or 0), said, complaint

    return run
