"""Runs on this machine whose ranks real launchers start, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spotmpi.backends.local.backend import LocalBackend
from spotmpi.core import names
from spotmpi.runs import reader
from tests.contract import processes
from tests.contract.conftest import BackendHarness
from tests.contract.processes import wait_until

SLOW = 300.0  # seconds of timeout where frameworks are imported by several ranks at once


def local_harness(folder: Path, timeout: float = BackendHarness.timeout) -> Iterator[BackendHarness]:
    """The local backend with its runs in *folder*; nothing may be left of them."""
    backend = LocalBackend(folder)
    yield BackendHarness(backend, timeout=timeout)
    for state in backend.list():
        backend.stop(state.id, "the test is over", now=True)
        wait_until(lambda run=state.id: backend.state(run).over)  # type: ignore[misc]
        wait_until(lambda run=state.id: not processes.of_run(run))  # type: ignore[misc]


def paths_of(local: BackendHarness, run: str) -> names.RunPaths:
    return names.RunPaths(Path(local.backend.state(run).folder))


def attempts_of(local: BackendHarness, run: str) -> list[Any]:
    """The records of the run's attempts, in order."""
    return list(reader.attempts(paths_of(local, run)))


def rank(run: str, number: int) -> int:
    """The process id of a rank, once it has started."""

    def find() -> int:
        for pid in processes.of_run(run):
            variables = _variables(pid)
            own_rank = variables.get("OMPI_COMM_WORLD_RANK", variables.get("RANK"))
            command = Path(f"/proc/{pid}/cmdline").read_bytes() if Path(f"/proc/{pid}").exists() else b""
            others = (b"spotmpi.programs.loader", b"spotmpi.programs.pool", b"distributed.run", b"starter.py")
            if own_rank == str(number) and not any(other in command for other in others):
                return pid
        return 0

    return wait_until(find)


def _variables(pid: int) -> dict[str, str]:
    try:
        items = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    return dict(item.split("=", 1) for item in items if "=" in item)
