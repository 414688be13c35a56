"""`spotmpi connect` and `spotmpi resize`, with a backend that has one pool."""

from __future__ import annotations

import ast
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from spotmpi.api import pools
from spotmpi.backends import targets
from spotmpi.backends.base import PoolAddress
from spotmpi.core.errors import SpotmpiError
from tests.command_line import invoke


class OnePool:
    """A backend of which the run `scan-1` is a pool that ends at once."""

    def __init__(self) -> None:
        self.sizes: list[tuple[str, int, str]] = []

    def state(self, run: str) -> SimpleNamespace:
        return SimpleNamespace(id="scan-1", over=True)

    def resize(self, run: str, workers: int, role: str) -> None:
        self.sizes.append((run, workers, role))

    @contextmanager
    def pool_address(self, run: str) -> Iterator[PoolAddress]:
        if self.sizes:
            raise SpotmpiError("run scan-1 stopped: closed by its driver")
        yield PoolAddress("tls://127.0.0.1:40001", Path("/runs/it's/pool"))


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> OnePool:
    pool = OnePool()
    monkeypatch.setattr(targets, "backend_of", lambda run, on: pool)
    return pool


def test_connect_prints_code_for_clients_of_dask_and_json_for_scripts(backend: OnePool) -> None:
    code, out, _ = invoke("connect", "scan")
    assert code == 0
    assert isinstance(ast.parse(out).body[-1], ast.Assign)
    assert 'tls_ca_file="/runs/it\'s/pool/ca.pem"' in out and "Client('tls://127.0.0.1:40001'" in out
    files = {name: f"/runs/it's/pool/{name}.pem" for name in ("ca", "cert", "key")}
    assert json.loads(invoke("connect", "scan", "--json")[1]) == {"address": "tls://127.0.0.1:40001", **files}


@pytest.mark.parametrize("command", [["connect", "scan"], ["resize", "scan", "24"]])
def test_a_scheduler_that_does_not_listen_yet_is_waited_for_and_named(
    backend: OnePool, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """As that of a run in a queue."""
    said, texts = threading.Event(), list[str]()

    def print_message(text: str) -> None:
        texts.append(text)
        said.set()

    @contextmanager
    def pool_address(run: str) -> Iterator[PoolAddress]:
        assert said.wait(60)
        yield PoolAddress("tls://127.0.0.1:40001", Path("pool"))

    monkeypatch.setattr(backend, "pool_address", pool_address)
    monkeypatch.setattr(pools, "Engine", Mock())
    monkeypatch.setattr(pools, "print_message", print_message)
    monkeypatch.setattr(pools, "QUIET", 0.01)
    assert invoke(*command)[0] == 0
    assert texts[0].startswith("waiting until the scheduler of scan-1 listens, for ")
    assert texts[0].endswith(" s (Ctrl-C ends this); `spotmpi status scan-1` shows why")


def test_connect_prints_the_address_of_the_dashboard(backend: OnePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "dashboard", lambda run, on: nullcontext(f"http://127.0.0.1:40002/{run}"))
    assert invoke("connect", "scan", "--dashboard")[:2] == (0, "http://127.0.0.1:40002/scan-1\n")
    answer = invoke("connect", "scan", "--dashboard", "--json")[1]
    assert json.loads(answer) == {"dashboard": "http://127.0.0.1:40002/scan-1"}


def test_resize_requests_the_number_of_workers_which_is_at_least_one(backend: OnePool) -> None:
    problem = "spotmpi: workers = 0: needs to be 1 or more; `spotmpi stop scan` ends the run\n"
    assert invoke("resize", "scan", "0") == (2, "", problem)
    code, _, errors = invoke("resize", "scan", "24")
    assert backend.sizes == [("scan-1", 24, "worker")]
    assert (code, errors) == (1, "spotmpi: run scan-1 stopped: closed by its driver\n")


def test_resize_takes_a_stage_of_a_stream(backend: OnePool) -> None:
    problem = "spotmpi: --stage = 'predict': use one of: prepare, postprocess\n"
    assert invoke("resize", "scan", "2", "--stage", "predict") == (2, "", problem)
    assert backend.sizes == []
    assert invoke("resize", "scan", "2", "--stage", "postprocess") == (0, "", "")
    pools.resize("scan", 3, stage="postprocess")
    assert backend.sizes == [("scan-1", 2, "postprocess"), ("scan-1", 3, "postprocess")]
