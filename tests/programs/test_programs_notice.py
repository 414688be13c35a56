"""A notice is acted on between iterations, and an end comes with the right exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import protocol
from spotmpi.programs.exits import Notices


@pytest.fixture
def acted() -> list[bool]:
    return []


@pytest.fixture
def notices(acted: list[bool], tmp_path: Path) -> Notices:
    listening = Notices(acted.append, tmp_path / "rank-0.pid", end_wait=0.0)
    listening.install_handlers()
    return listening


def test_the_pid_file_says_who_takes_notices_and_goes_at_the_end(notices: Notices, tmp_path: Path) -> None:
    assert (tmp_path / "rank-0.pid").read_text() == f"{os.getpid()}\n"
    assert len(list(tmp_path.iterdir())) == 1

    notices.close()

    assert not list(tmp_path.iterdir())


def test_a_signal_waits_until_the_iteration_is_over_and_counts_once(notices: Notices, acted: list[bool]) -> None:
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert acted == []

    notices.between_iterations()
    notices.between_iterations()

    assert acted == [False]


def test_sigterm_requests_the_end_even_after_sigusr1(notices: Notices, acted: list[bool]) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGUSR1)

    notices.between_iterations()

    assert acted == [True]


def test_after_the_checkpoint_of_a_notice_no_iteration_begins_until_sigterm_or_a_while(acted: list[bool]) -> None:
    notices = Notices(acted.append, end_wait=60.0)
    notices.install_handlers()
    os.kill(os.getpid(), signal.SIGUSR1)
    timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGTERM])
    timer.start()

    assert notices.between_iterations()
    timer.join()

    assert acted == [False, True]
    assert not notices.between_iterations()


def test_during_an_evaluation_a_signal_is_acted_on_at_once(notices: Notices, acted: list[bool]) -> None:
    with notices.parameters_unchanged():
        os.kill(os.getpid(), signal.SIGUSR1)
        assert acted == [False]
        os.kill(os.getpid(), signal.SIGTERM)
        assert acted == [False, True]


def test_a_signal_that_came_before_an_evaluation_does_not_wait_for_its_end(notices: Notices, acted: list[bool]) -> None:
    os.kill(os.getpid(), signal.SIGUSR1)

    with notices.parameters_unchanged():
        assert acted == [False]


def test_after_the_end_a_late_checkpoint_notice_does_not_kill(notices: Notices, acted: list[bool]) -> None:
    notices.close()

    os.kill(os.getpid(), signal.SIGUSR1)
    notices.between_iterations()

    assert acted == []


FATAL = "no such folder"
ENDING = """
from spotmpi.programs.exits import Failed, Fatal, exit_together
def main():
    {does}
exit_together(main)()
"""


@pytest.mark.parametrize(
    ("does", "code", "output"),
    [
        ("pass", 0, ""),
        (f"raise Fatal({FATAL!r})", protocol.NOT_RETRYABLE, f"error: {FATAL}"),
        ("raise Failed('disk full')", protocol.FAILED, "error: disk full"),
        ("raise ValueError('odd')", protocol.FAILED, "ValueError: odd"),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit(0)", 0, ""),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_each_ending_has_its_exit_code_and_a_fatal_one_its_protocol_line(
    python_process: Callable[..., Any], does: str, code: int, output: str
) -> None:
    result = python_process(ENDING.format(does=does))

    assert result.returncode == code
    assert output in result.stderr
    assert ("Traceback" in result.stderr) == ("ValueError" in does)
    reason = (protocol.FATAL, {"reason": FATAL}) if code == protocol.NOT_RETRYABLE else None
    assert protocol.decode(result.stdout.strip()) == reason


OTHER_RANK = """
import time
from spotmpi.programs import exits
exits._OTHER_RANKS_GRACE = 0.5
exits.wait_for_rank_zero()
print("ready", flush=True)
time.sleep(30)
"""


def test_another_rank_outlives_notices_long_enough_for_rank_zero_and_then_leaves() -> None:
    rank = subprocess.Popen([sys.executable, "-c", OTHER_RANK], stdout=subprocess.PIPE, text=True)
    assert rank.stdout is not None
    assert rank.stdout.readline() == "ready\n"

    rank.send_signal(signal.SIGUSR1)
    rank.send_signal(signal.SIGTERM)

    with pytest.raises(subprocess.TimeoutExpired):
        rank.wait(timeout=0.3)
    assert rank.wait(timeout=20) == 143
    rank.stdout.close()
