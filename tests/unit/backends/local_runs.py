"""Runs on this machine, for tests: their specs, folders, records and processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spotmpi.core import names
from spotmpi.runs import reader
from tests.contract import processes
from tests.contract.conftest import BackendHarness
from tests.contract.processes import wait_until

SLOW = 300.0  # seconds of timeout where frameworks are imported by several ranks at once


def paths_of(local: BackendHarness, run: str) -> names.RunPaths:
    return reader.find(run, local.backend.runs_folder)  # type: ignore[attr-defined]


def attempts_of(local: BackendHarness, run: str) -> list[Any]:
    """The records of the run's attempts, in order."""
    return list(reader.attempts(paths_of(local, run)))


def both_attempts(local: BackendHarness, run: str) -> tuple[Any, Any]:
    """The records of a run's two attempts; with any other number, the failure says how each ended."""
    found = attempts_of(local, run)
    ends = [(attempt["attempt"], attempt["cause"], attempt["reason"]) for attempt in found]
    logs = sorted(paths_of(local, run).folder.glob("logs/*/*"), key=lambda path: int(path.parent.name))
    lines = [line for path in logs for line in path.read_text(errors="replace").splitlines()[-40:]]
    assert len(found) == 2, "\n".join([str(ends), *lines])
    return found[0], found[1]


def shell(text: str, **more: Any) -> dict[str, Any]:
    return {"command": ["sh", "-c", text], "launcher": "none", **more}


def python(code: str, **more: Any) -> dict[str, Any]:
    return {"command": ["python3", "-c", code], "launcher": "none", **more}


def rank(run: str, number: int) -> int:
    """The process id of a rank, once its launcher has started it."""

    def find() -> int:
        for pid in processes.of_run(run):
            variables = _variables(pid)
            own_rank = variables.get("OMPI_COMM_WORLD_RANK", variables.get("RANK"))
            command = Path(f"/proc/{pid}/cmdline").read_bytes() if Path(f"/proc/{pid}").exists() else b""
            others = (b"spotmpi.programs.loader", b"spotmpi.programs.pool", b"distributed.run")
            if own_rank == str(number) and not any(other in command for other in others):
                if b"rank_wrapper.py" not in command:
                    return pid
                if b"--fork" in command and (forked := _forked(run, pid)):
                    return forked
        return 0

    return wait_until(find)


def _forked(run: str, wrapper: int) -> int:
    """The fork that has the output of this *wrapper*, 0 without one: /proc does not show the variables of forks."""
    outputs = {pid: _output(pid) for pid, command in processes.of_run(run).items() if "fork_server.py" in command}
    return next((pid for pid, output in outputs.items() if output and output == _output(wrapper)), 0)


def _output(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/fd/1").readlink())
    except OSError:
        return ""


def _variables(pid: int) -> dict[str, str]:
    try:
        items = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    return dict(item.split("=", 1) for item in items if "=" in item)
