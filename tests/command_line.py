"""The command line for tests: in this process, which takes a tenth of the time, or in a process of its own."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spotmpi.cli.main import main

SPOTMPI = str(Path(sys.executable).with_name("spotmpi"))


class Output(NamedTuple):
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


CommandLine = Callable[..., Output]


def invoke(*arguments: str) -> Output:
    """Run a command in this process."""
    output, errors = io.BytesIO(), io.BytesIO()
    stdout, stderr = (io.TextIOWrapper(each, "utf-8", write_through=True) for each in (output, errors))
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout), redirect_stderr(stderr):
        patch.setattr(sys, "argv", [SPOTMPI, *arguments])
        with pytest.raises(SystemExit) as end:
            main()
    return Output(int(end.value.code or 0), output.getvalue().decode(), errors.getvalue().decode())


def spotmpi_process(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    return subprocess.run([SPOTMPI, *arguments], **{"capture_output": True, "text": True, "timeout": 60, **more})


def start_process(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    """Start a command in a process of its own, whose output is read by the caller."""
    return subprocess.Popen([SPOTMPI, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
