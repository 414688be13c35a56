"""What engine tests start from: a stand-in cloud, and the real CLI on a copy of the repository's project."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.engine.built_stack import BuiltStack, built_stack
from tests.engine.cloud_builder import CloudBuilder
from tests.engine.engine import Engine, repository_project
from tests.engine.engine_environment import EngineEnvironment
from tests.engine.providers.cloud import Cloud
from tests.engine.providers.server import StandInServers, serve_cloud
from tests.engine.stack_lifecycle import StackLifecycle, run_lifecycle
from tests.engine.warm_python import warm_environment


@pytest.fixture
def cloud() -> Cloud:
    """A cloud in which nothing exists."""
    return Cloud()


@pytest.fixture
def cloud_builder() -> CloudBuilder:
    """Hands on a cloud without an engine in between."""
    return CloudBuilder()


@pytest.fixture
def servers(cloud: Cloud) -> Iterator[StandInServers]:
    """The cloud's providers and its API, ready for an engine."""
    with serve_cloud(cloud) as addresses:
        yield addresses


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A virtual environment whose programs fork from one interpreter."""
    folder = tmp_path_factory.mktemp("warm") / "python"
    with warm_environment(folder):
        yield folder


@pytest.fixture
def engine(tmp_path: Path, servers: StandInServers, warm_python: Path) -> Engine:
    """The CLI on the repository's program and stacks."""
    engine_ = Engine(tmp_path, servers)
    repository_project(engine_, warm_python)
    return engine_


@pytest.fixture
def environment(engine: Engine, cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineEnvironment:
    """What `up` and `down` work with on this machine, where nothing of the user's is read or written."""
    monkeypatch.setenv("SPOTMPI_STATE", str(tmp_path / "kept"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))  # which `down` cleans
    monkeypatch.chdir(engine.project)
    return EngineEnvironment(engine, cloud)


OTHERS = [
    pytest.param(
        stack, marks=pytest.mark.nightly("the same stages as lab, 40 s a stack, with other groups and storage")
    )
    for stack in ("cpu", "p3", "g5")
]


@pytest.fixture(scope="session", params=[pytest.param("lab", marks=pytest.mark.smoke), *OTHERS])
def stack_lifecycle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StackLifecycle:
    """The life of one ready stack, from nothing to nothing."""
    return run_lifecycle(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, warm_python: Path) -> Iterator[Callable[[str], BuiltStack]]:
    """Gives a ready stack, which is built only if the one before was another."""
    # A parametrized fixture would be built for each test, as its other parameters are those of single tests.
    current: dict[str, BuiltStack] = {}
    with ExitStack() as context:

        def of(stack: str) -> BuiltStack:
            if stack not in current:
                context.close()
                current.clear()
                current[stack] = context.enter_context(built_stack(stack, tmp_path_factory.mktemp(stack), warm_python))
            return current[stack]

        yield of
