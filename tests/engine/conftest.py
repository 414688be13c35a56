"""What engine tests start from: a stand-in cloud, and the real CLI on a copy of the repository's project."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.engine import Engine, repository_project
from tests.engine.journey import Journey, travel
from tests.engine.providers.cloud import Cloud
from tests.engine.providers.server import Served, serving
from tests.engine.world import World


@pytest.fixture
def cloud() -> Cloud:
    """A cloud in which nothing exists."""
    return Cloud()


@pytest.fixture
def world() -> World:
    """Hands on a cloud without an engine in between."""
    return World()


@pytest.fixture
def served(cloud: Cloud) -> Iterator[Served]:
    """The cloud's providers and its API, ready for an engine."""
    with serving(cloud) as made:
        yield made


@pytest.fixture
def engine(tmp_path: Path, served: Served) -> Engine:
    """The CLI on the repository's program and stacks."""
    made = Engine(tmp_path, served)
    repository_project(made)
    return made


OTHERS = [
    pytest.param(
        stack, marks=pytest.mark.nightly("the same stages as lab, 40 s a stack, with other groups and storage")
    )
    for stack in ("cpu", "p3", "g5")
]


@pytest.fixture(scope="session", params=[pytest.param("lab", marks=pytest.mark.smoke), *OTHERS])
def journey(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Journey:
    """The life of one ready stack, from nothing to nothing."""
    return travel(request.param, tmp_path_factory.mktemp(request.param))
