"""Runs on this machine, for tests: their specs, folders and events."""

from __future__ import annotations

from typing import Any

from spotmpi.agent import record
from spotmpi.core import names
from spotmpi.core.events import Event
from spotmpi.runs import reader
from tests.contract import processes
from tests.contract.conftest import BackendHarness
from tests.contract.processes import wait_until


def paths_of(local: BackendHarness, run: str) -> names.RunPaths:
    return reader.find(run, local.backend.runs_folder)  # type: ignore[attr-defined]


def attempts_of(local: BackendHarness, run: str) -> list[Any]:
    """The records of the run's attempts, in order."""
    return list(reader.attempts(paths_of(local, run)))


def shell(text: str, **more: Any) -> dict[str, Any]:
    return {"command": ["sh", "-c", text], "launcher": "none", **more}


def python(code: str, **more: Any) -> dict[str, Any]:
    return {"command": ["python3", "-c", code], "launcher": "none", **more}


def texts(events: list[Event]) -> list[str]:
    return [event.values["text"] for event in events if event.kind == record.LINE]


def events_of(local: BackendHarness, run: str) -> list[Event]:
    return list(local.backend.events(run, follow=True))


def rank_of(run: str) -> int:
    """The process of the fake program."""
    return wait_until(lambda: next((pid for pid, command in processes.of_run(run).items() if "FAKE_" in command), 0))
