"""The first code that runs in a pod: it unpacks the agent and replaces itself by it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import boot
from spotmpi.core import archives
from spotmpi.core.archives import Member


def test_the_agent_starts_from_its_archives_without_the_images_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, code = tmp_path / "config", tmp_path / "code"
    config.mkdir()
    (config / "pod.tar.gz").write_bytes(archives.archive([Member("agent.py", b"old"), Member("core.py", b"core")]))
    (config / "pod2.tar.gz").write_bytes(archives.archive([Member("agent.py", b"new")]))
    (config / "plan.json").write_text("{}")
    started: list[Any] = []
    monkeypatch.setattr(boot, "CONFIG", str(config))
    monkeypatch.setattr(boot, "CODE", str(code))
    monkeypatch.setattr(os, "execv", lambda *arguments: started.append((arguments, dict(os.environ), str(Path.cwd()))))
    monkeypatch.setenv("PYTHONPATH", "/app")
    monkeypatch.delenv(boot.ENV_IMAGE_PATH, raising=False)
    monkeypatch.chdir(tmp_path)

    boot.main()

    assert {path.name: path.read_text() for path in code.iterdir()} == {"agent.py": "new", "core.py": "core"}
    [((python, arguments), environment, folder)] = started
    assert (python, arguments[1:], folder) == (sys.executable, ["-u", "-m", "spotmpi.agent"], str(code))
    assert environment["PYTHONPATH"] == str(code)
    assert environment[boot.ENV_IMAGE_PATH] == "/app"  # for the ranks
