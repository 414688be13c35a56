"""The Pulumi project that the installed spotmpi writes, in the real engine over stand-in providers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.engine.engine import Engine
from tests.engine.providers.server import StandInServers
from tests.package.conftest import Installed

pytestmark = [pytest.mark.engine, pytest.mark.smoke, pytest.mark.timeout(600)]


def test_a_preview_of_the_written_project_plans_the_environment(
    installed: Installed, servers: StandInServers, tmp_path: Path
) -> None:
    engine = Engine(tmp_path, servers)
    engine.prepare()
    result = installed.spotmpi("init", "--environment", "lab", folder=engine.project)
    assert result.returncode == 0, result.stderr
    (engine.project / ".venv").symlink_to(sys.prefix)  # in place of ./scripts/setup, which downloads

    engine.init("lab", {"spotmpi:access": ["198.51.100.0/24"]})
    preview = engine.preview("lab")

    assert preview.status == 0, preview.text
    created = {step.token for step in preview.with_operation("create")}
    assert {"aws:eks/cluster:Cluster", "aws:eks/nodeGroup:NodeGroup"} <= created, created
