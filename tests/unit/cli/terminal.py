"""What tests of the command line share: specs, the run that they started, and a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

from spotmpi.core import names
from spotmpi.runs import reader
from tests.contract.processes import wait_until


def write_spec(values: dict[str, Any], name: str = "job.toml") -> str:
    """The path of a spec file with *values*."""
    Path(name).write_text(tomli_w.dumps(values))
    return name


def job(text: str, **more: Any) -> str:
    return write_spec({"name": "job", "command": ["sh", "-c", text], "launcher": "none", **more})


def only_run() -> names.RunPaths:
    return wait_until(lambda: reader.every(Path("runs")))[0]


def iteration_of(paths: names.RunPaths) -> int:
    return reader.state(paths).iteration or 0


def on_a_terminal(command: list[str], press: Callable[[Callable[[bytes], int]], bool] | None = None) -> str:
    """What a terminal shows of a command; *press* is called until it has pressed its key."""
    child, terminal = pty.fork()
    if child == 0:
        try:
            os.execvpe(command[0], command, {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"})
        finally:
            os._exit(127)  # otherwise a second pytest would go on from here
    screen, pressed, deadline = b"", press is None, time.monotonic() + 60
    while time.monotonic() < deadline:
        if not pressed and press:
            pressed = press(lambda data: os.write(terminal, data))
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                data = os.read(terminal, 1 << 16)
            except OSError:
                break
            if not data:
                break
            screen += data
    else:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(terminal)
    return screen.decode("utf-8", "replace")
