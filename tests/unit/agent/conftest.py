"""The coordinator that tests of connections share."""

from __future__ import annotations

from collections.abc import Iterator

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
