"""The command line for tests: in this process, which takes a tenth of the time, or in a process and on a terminal."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from spotmpi.cli.main import main
from spotmpi.core import names
from spotmpi.runs import reader
from tests.contract.processes import wait_until

SPOTMPI = str(Path(sys.executable).with_name("spotmpi"))


def spotmpi(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process."""
    output, errors = io.BytesIO(), io.BytesIO()
    stdout, stderr = (io.TextIOWrapper(each, "utf-8", write_through=True) for each in (output, errors))
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout), redirect_stderr(stderr):
        patch.setattr(sys, "argv", [SPOTMPI, *arguments])
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return subprocess.CompletedProcess(arguments, code, output.getvalue().decode(), errors.getvalue().decode())


def spotmpi_process(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    return subprocess.run([SPOTMPI, *arguments], capture_output=True, text=True, timeout=60, **more)


def start_process(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([SPOTMPI, *arguments], stdout=pipe, stderr=pipe, text=True, **more)


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
        os.execvpe(command[0], command, {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"})
    screen, pressed, deadline = b"", press is None, time.monotonic() + 30
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
    os.waitpid(child, 0)
    os.close(terminal)
    return screen.decode("utf-8", "replace")
