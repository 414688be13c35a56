"""Fake environments in the states from which commands start."""

from __future__ import annotations

import pytest

from tests.cloud.fake_environment import FakeEnvironment
from tests.command_line import CommandLine, invoke


@pytest.fixture
def live(lab: FakeEnvironment) -> FakeEnvironment:
    """The fake environment after `up` without images; nothing is recorded of that."""
    lab.up(images=False)
    lab.forget()
    return lab


@pytest.fixture
def command(lab: FakeEnvironment, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line on the fake environment: exit code, stdout and stderr."""
    monkeypatch.setattr("spotmpi.cli.environment_commands.open_dependencies", lambda stack, yes: lab.dependencies)
    return invoke
