"""What tests of agents share: a coordinator for those of connections, and machines whose GPU is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.agent.peer_ends import ServedCoordinator


@pytest.fixture
def served() -> Iterator[ServedCoordinator]:
    """A coordinator that listens on a port of this machine."""
    served = ServedCoordinator()
    yield served
    served.coordinator.close()


@pytest.fixture
def replacing() -> Iterator[ServedCoordinator]:
    """One of a run whose lost nodes get new pods one by one."""
    served = ServedCoordinator(restart_count=None)
    yield served
    served.coordinator.close()


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the names of the machines whose GPU is gone, as the double of nvidia-smi reads it."""
    names = tmp_path / "broken"
    names.write_text("")
    (tmp_path / "bin").mkdir()
    double = tmp_path / "bin" / "nvidia-smi"
    double.write_text(f'#!/bin/sh\ngrep -qx "$SPOTMPI_MACHINE" {names} && echo No devices || echo 0, 0\n')
    double.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return names
