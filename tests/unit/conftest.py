"""What tests of jobs share."""

from __future__ import annotations

import json
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cloud.service_models import shared_models
from tests.contract.conftest import BackendHarness, local_harness
from tests.unit.agent.gang import Gang

if TYPE_CHECKING:
    from tests.cloud.account.fake_account import FakeAccount
    from tests.cloud.cluster.fake_cluster import FakeCluster
    from tests.cloud.fake_environment import FakeEnvironment


@pytest.fixture(scope="session", autouse=True)
def service_models() -> Iterator[None]:
    """AWS's descriptions of its services, parsed once in this process."""
    with shared_models():
        yield


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """In memory where a simulation asks for it: a disk takes milliseconds for each of its thousands of small files."""
    if request.node.get_closest_marker("in_memory") is None or not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="spotmpi-tests-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runs folder inside the current one, so that paths in reports are short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.fixture(scope="session")
def one_account() -> FakeAccount:
    """An AWS account with its clients, which take a while to create; tests use `account`."""
    from tests.cloud.account.fake_account import FakeAccount

    return FakeAccount()


@pytest.fixture
def account(one_account: FakeAccount) -> FakeAccount:
    """An AWS account in which nothing is built."""
    one_account.reset()
    return one_account


@pytest.fixture
def lab(account: FakeAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEnvironment]:
    """A fake environment whose stack is `lab`, in a folder of its own."""
    from tests.cloud.fake_environment import create_fake_environment

    lab = create_fake_environment(tmp_path, account, monkeypatch)
    yield lab
    lab.cluster.close()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """A cluster in which nothing is, that of the current context."""
    from tests.cloud.cluster.fake_cluster import FakeCluster

    cluster = FakeCluster()
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path_factory.mktemp("kube") / "config")))
    yield cluster
    cluster.close()
    assert cluster.problems == []


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current folder of its own, with runs where they are by default."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPOTMPI_RUNS", raising=False)


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubeconfig with one context; no server answers."""
    context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "training"}}
    config = {"current-context": "c", "contexts": [context], "users": [{"name": "u", "user": {"token": "t"}}]}
    config["clusters"] = [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}]
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))


@pytest.fixture
def strict_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS contexts as Python 3.13 creates them, which demand all extensions of RFC 5280, on older versions too."""
    create = ssl.create_default_context

    def create_strict(*arguments: Any, **options: Any) -> ssl.SSLContext:
        context = create(*arguments, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", create_strict)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BackendHarness]:
    """The local backend in a folder with spaces and quotes in its name; nothing may be left of its runs."""
    folder = tmp_path / 'runs of "O\'Neill" ünd 50%'
    monkeypatch.chdir(tmp_path)
    yield from local_harness(folder)


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Callable[..., Gang]]:
    """Starts the agents of a run with a command and more values of its spec; ends them all."""
    gangs: list[Gang] = []

    def start(*command: str, nodes: int = 2, started: int | None = None, **values: Any) -> Gang:
        gangs.append(Gang(tmp_path, {"command": list(command), "nodes": nodes, **values}))
        for node in range(nodes if started is None else started):
            gangs[-1].start(node)
        return gangs[-1]

    yield start
    for each in gangs:
        for agent in each.agents.values():
            agent.kill()
            agent.wait()
