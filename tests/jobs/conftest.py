"""What tests of jobs share."""

from pathlib import Path

import pytest


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runs folder inside the current one, so that paths in reports are short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"
