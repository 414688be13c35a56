"""Commands that are measured: how long, how many lines, how much memory, and what spotmpi asks of the API.

    python scripts/speed_clients.py REPORT ARGUMENT ...

runs `spotmpi ARGUMENT ...` with its requests counted, and writes their numbers to the file REPORT.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A child begins with the memory of whoever forks it: this one is small.
_SMALL = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[2:])
_, status, used = os.wait4(child.pid, 0)
with open(sys.argv[1], "w") as file:
    file.write(str(used.ru_maxrss / 1024))
sys.exit(os.waitstatus_to_exitcode(status))
"""


@dataclass(frozen=True)
class Measured:
    """What a command took: seconds, lines of output, peak memory in MB, requests to the API by kind."""

    seconds: float
    lines: int
    megabytes: float
    requests: dict[str, int] = field(default_factory=dict)


class Measuring:
    """A command that runs, with its output counted by `end`; SystemExit where it fails."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._began = time.monotonic()
        self._memory = Path(tempfile.mkstemp()[1])
        small = [sys.executable, "-I", "-S", "-c", _SMALL, str(self._memory)]
        self._process = subprocess.Popen([*small, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def end(self) -> Measured:
        """What it took, once it has ended."""
        assert self._process.stdout
        lines = sum(1 for _ in self._process.stdout)
        if self._process.wait() not in (0, 130):  # as whoever follows a run that is stopped
            raise SystemExit(f"{' '.join(self._command)} failed")
        took = time.monotonic() - self._began
        megabytes = float(self._memory.read_text())
        self._memory.unlink()
        return Measured(took, lines, megabytes)


class Counting:
    """A spotmpi command that runs, with its requests to the API counted."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._report = Path(tempfile.mkstemp()[1])
        self._process = Measuring([sys.executable, __file__, str(self._report), *arguments])

    def end(self) -> Measured:
        """What it took, once it has ended."""
        measured = self._process.end()
        requests = json.loads(self._report.read_text())
        self._report.unlink()
        return Measured(measured.seconds, measured.lines, measured.megabytes, requests)


def first_line(command: Sequence[str], expected: str) -> float:
    """Seconds until a command prints *wanted*; it is read to its end."""
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout
    took = next((time.monotonic() - began for line in process.stdout if expected in line), None)
    process.communicate()
    if took is None:
        raise SystemExit(f"{' '.join(command)} printed no {expected!r}")
    return took


def _counted(report: Path, arguments: Sequence[str]) -> None:
    """Run spotmpi here."""
    import httpx2

    from spotmpi.cli.main import main

    counts = {"watch": 0, "log": 0, "other": 0}
    send = httpx2.AsyncClient.send

    async def counting(self: Any, request: Any, **options: Any) -> Any:
        path = request.url.path
        counts["watch" if "watch" in request.url.params else "log" if path.endswith("/log") else "other"] += 1
        return await send(self, request, **options)

    httpx2.AsyncClient.send = counting  # type: ignore[method-assign]
    sys.argv = ["spotmpi", *arguments]
    try:
        main()
    finally:
        report.write_text(json.dumps(counts))


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    _counted(Path(sys.argv[1]), sys.argv[2:])
