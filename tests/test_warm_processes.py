"""Processes that fork from a warm interpreter are those that a new interpreter would be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.warm_processes import warm_processes

COMMAND = [sys.executable, "-I", "-S", "-c"]
SEEN = """
import json, os, signal, sys
def text(name):
    return open("/proc/self/" + name).read().rstrip(chr(0)).split(chr(0))
print(json.dumps({
    "arguments": sys.argv, "original": sys.orig_argv, "flags": list(sys.flags), "path": sys.path, "folder": os.getcwd(),
    "variables": dict(os.environ), "parent": os.getppid(), "group": os.getpgid(0) == os.getpid(), "umask": os.umask(0),
    "session": os.getsid(0) == os.getpid(), "files": sorted(os.listdir("/proc/self/fd"))[:4], "input": sys.stdin.read(),
    "command": text("cmdline"), "shown": text("environ"), "name": __name__,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "signals": [str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, 17)],
    "blocked": [str(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])], "encoding": sys.stdout.encoding,
}))
print("bad", file=sys.stderr)
sys.exit(7)
"""
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems start new interpreters")


@pytest.fixture
def forks() -> Iterator[None]:
    """The known processes start as forks."""
    with warm_processes():
        yield


def seen(folder: Path, **options: Any) -> Any:
    words = [*COMMAND, SEEN, "a b", "ü"]
    variables = {"OWN": "x", "PATH": "/bin", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(words, cwd=folder, env=variables, input="in", capture_output=True, text=True, **options)
    assert (done.returncode, done.stderr) == (7, "bad\n")
    return json.loads(done.stdout)


@pytest.mark.parametrize("session", [False, True])
def test_a_fork_is_as_a_new_interpreter(session: bool, tmp_path: Path) -> None:
    new = seen(tmp_path, start_new_session=session)
    before = os.umask(0o27)
    try:
        with warm_processes():
            fork = seen(tmp_path, start_new_session=session)
    finally:
        os.umask(before)
    assert fork == {**new, "umask": 0o27} and new["umask"] == before


def test_the_start_of_a_fork_is_that_of_a_new_interpreter_without_its_imports() -> None:
    code = "import sys; print('tarfile' in sys.modules)"
    with warm_processes():
        assert subprocess.check_output([*COMMAND, code]) == b"True\n"
        assert subprocess.check_output([sys.executable, "-I", "-c", code]) == b"False\n", "of no known kind"
        assert subprocess.check_output([*COMMAND, code], preexec_fn=os.getpid) == b"False\n", "no option for a fork"
    assert subprocess.check_output([*COMMAND, code]) == b"False\n"


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    ("code", "status", "errors"),
    [
        ("raise SystemExit('no such file')", 1, "no such file\n"),
        ("raise OSError('no such zone')", 1, "OSError: no such zone\n"),
        ("import atexit, sys; atexit.register(print, 'end', file=sys.stderr)", 0, "end\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, ""),
    ],
)
def test_a_fork_ends_as_a_new_interpreter(code: str, status: int, errors: str) -> None:
    done = subprocess.run([*COMMAND, code], capture_output=True, text=True)
    assert done.returncode == status and done.stderr.endswith(errors)


def test_a_fork_inherits_open_files_and_no_others(tmp_path: Path, forks: None) -> None:
    with (tmp_path / "lock").open("w") as file, (tmp_path / "other").open("w"):
        code = f"import os; os.write({file.fileno()}, b'here'); print(len(os.listdir('/proc/self/fd')))"
        assert subprocess.check_output([*COMMAND, code], pass_fds=[file.fileno()]) == b"5\n"
    assert (tmp_path / "lock").read_text() == "here"


def test_a_fork_lives_on_when_what_it_forked_from_has_ended() -> None:
    with warm_processes():
        process = subprocess.Popen(
            [*COMMAND, "print(input())"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    assert process.communicate("on\n")[0] == "on\n" and process.returncode == 0
