"""Programs that fork from an interpreter are like those in one of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from spotmpi.agent import processes
from tests.forked_python import ForkedPython

pytestmark = pytest.mark.extensive("for those who change the tests")

IMPORTS = ("json", "tests.clocks")
START = Callable[[list[str], IO[bytes]], "ForkedPython | subprocess.Popen[bytes]"]
SHOWS = """
import os, sys, threading, time, signal
print(sys.argv, os.getcwd(), os.environ["SHOWN"], "USER_OF_SERVER" in os.environ, sys.stdin.read(), __name__)
print(vars(sys.modules["__main__"]) is globals(), signal.getsignal(signal.SIGCHLD).name, os.listdir("/proc/self/fd"))
threading.Thread(target=lambda: (time.sleep(0.05), print("of a thread"))).start()
"""


def forked(arguments: list[str], output: IO[bytes]) -> ForkedPython:
    with Path("input").open() as file:
        return ForkedPython(arguments, (file.fileno(), output.fileno(), output.fileno()), IMPORTS)


def new(arguments: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    with Path("input").open() as file:
        return subprocess.Popen([sys.executable, *arguments], stdin=file, stdout=output, stderr=output)


@pytest.fixture(params=[forked, new], ids=["forked", "new"])
def start(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> START:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOWN", "value")
    Path("input").write_text("text")
    function: START = request.param
    return function


def run(start: START, *arguments: str) -> tuple[int, str]:
    with Path("output").open("wb") as output:
        code = start(list(arguments), output).wait(60)
    return code, Path("output").read_text()


def test_a_program_has_its_arguments_variables_folder_and_files(start: START, tmp_path: Path) -> None:
    code, text = run(start, "-c", SHOWS, "one", "two words")
    first, second, third = text.splitlines()
    assert code == 0
    assert first == f"['-c', 'one', 'two words'] {tmp_path} value False text __main__"
    assert second.startswith("True SIG_DFL ['0', '1', '2'")
    assert third == "of a thread", "it is waited for"


@pytest.mark.parametrize(
    ("program", "code", "end"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit('what was wrong')", 1, "what was wrong\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, ""),
    ],
)
def test_its_end_is_that_of_the_process(start: START, program: str, code: int, end: str) -> None:
    ended, text = run(start, "-c", program)
    assert ended == code and text.endswith(end) and bool(text) == bool(end)


def test_a_module_is_the_main_module(start: START) -> None:
    Path("shown.py").write_text("import sys; print(__name__, sys.argv[1:]); sys.exit(3)")
    assert run(start, "-m", "shown", "one", "two words") == (3, "__main__ ['one', 'two words']\n")


def test_it_is_signalled_and_waited_for_like_a_child(start: START) -> None:
    with Path("output").open("wb") as output:
        process = start(["-c", "import time; time.sleep(60)"], output)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    os.kill(process.pid, 0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == process.poll() == -signal.SIGTERM
    process.kill()  # which has nothing to end any more


def test_a_server_that_was_killed_with_all_descendants_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an attempt does at its end, which some tests run in their own process."""
    monkeypatch.chdir(tmp_path)
    Path("input").touch()
    assert run(forked, "-c", "print(1)") == (0, "1\n")
    processes.kill_descendants()
    assert run(forked, "-c", "print(2)") == (0, "2\n")


def test_a_program_that_has_just_ended_can_be_killed(start: START, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("output").open("wb") as output:
        program = start(["-c", ""], output)
    program.wait(60)
    monkeypatch.setattr(program, "poll", lambda: None)  # as before its end is known here
    program.kill()
