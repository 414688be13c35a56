"""What starts one rank: it becomes the command, or tags the command's lines."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spotmpi.agent import protocol
from spotmpi.agent.launcher_output import LineSplitter
from spotmpi.core import names
from tests.contract.processes import wait_until

RANK_WRAPPER = [sys.executable, "-I", "-S", str(names.SOURCE / "spotmpi" / "agent" / "rank_wrapper.py")]


def rank_wrapper(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RANK_WRAPPER, *arguments], capture_output=True, text=True, timeout=60)


def test_the_rank_wrapper_becomes_the_command(tmp_path: Path) -> None:
    variables = tmp_path / "environment.json"
    variables.write_text(json.dumps({"MINE": "é \n", "PATH": os.environ["PATH"]}))
    result = rank_wrapper(
        "--env", str(variables), "python3", "-c", "import os, sys; print(os.environ['MINE'], sys.argv)", "a b"
    )
    assert result.returncode == 0 and result.stdout == "é \n ['-c', 'a b']\n"


def test_the_rank_wrapper_reports_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    assert rank_wrapper("no-such-command").returncode == 127
    assert "no-such-command: command not found" in rank_wrapper("no-such-command").stderr
    (tmp_path / "plain").touch()
    refused = rank_wrapper(str(tmp_path / "plain"))
    assert refused.returncode == 126 and "cannot be run: Permission denied" in refused.stderr


def test_a_rank_that_reads_what_nobody_types_gets_the_end_at_once() -> None:
    """Also where its launcher leaves a pipe open there, as mpirun does for rank 0."""
    reads = [*RANK_WRAPPER, sys.executable, "-c", "input()"]
    with subprocess.Popen(reads, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as rank:
        rank.wait(timeout=60)
        assert rank.stderr and rank.stderr.read().endswith("EOFError: EOF when reading a line\n")


@pytest.mark.parametrize(("code", "status"), [("exit 7", 7), ("kill -9 $$", -9), ("kill -TERM $$", -15), ("true", 0)])
def test_a_tagged_rank_ends_as_its_command_does(code: str, status: int) -> None:
    assert rank_wrapper("--tag", "sh", "-c", code).returncode == status


def test_a_rank_that_aborts_has_failed_also_where_signals_are_blocked() -> None:
    """As by a parent that blocks them before it starts others: abort(3) unblocks its own signal in the rank alone."""
    aborts = [*RANK_WRAPPER, "--tag", sys.executable, "-c", "import os; os.abort()"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        result = subprocess.run(aborts, timeout=60)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert result.returncode == -signal.SIGABRT


def test_a_tagged_rank_forwards_signals_and_does_not_wait_for_background_processes() -> None:
    code = "trap 'echo taken; exit 3' TERM; sleep 300 & echo up; wait"
    rank = subprocess.Popen(
        [*RANK_WRAPPER, "--tag", "sh", "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert rank.stdout is not None
    assert rank.stdout.readline() == "[0,0]<stdout>: up\n"

    rank.send_signal(signal.SIGTERM)

    assert rank.wait(timeout=60) == 3 and rank.stdout.read() == "[0,0]<stdout>: taken\n"
    os.killpg(rank.pid, signal.SIGKILL)


@pytest.mark.parametrize(("code", "end"), [("exit 7", 7), ("kill -9 $$", -9), ("kill -TERM $$", -15), ("true", None)])
def test_a_tagged_rank_that_fails_is_reported_after_its_output(code: str, end: int | None) -> None:
    environment = {**os.environ, "RANK": "3"}
    command = [*RANK_WRAPPER, "--report", "--tag", "sh", "-c", f"printf 'half'; echo err >&2; {code}"]
    rank = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)

    assert rank.returncode == (end or 0)
    for stream, output in (("out", rank.stdout), ("err", rank.stderr)):
        lines = LineSplitter("o").feed(output.encode())
        assert lines[0].text == {"out": "half", "err": "err"}[stream]
        ends = [protocol.read_rank_end(line.text) for line in lines[1:]]
        assert ends == ([] if end is None else [("", 3, end)])


def test_a_rank_that_was_asked_to_end_is_not_reported() -> None:
    code = "trap 'exit 3' TERM; echo up; while :; do sleep 0.01; done"
    with subprocess.Popen(
        [*RANK_WRAPPER, "--report", "--tag", "sh", "-c", code], stdout=subprocess.PIPE, text=True
    ) as rank:
        assert rank.stdout is not None and rank.stdout.readline()
        rank.send_signal(signal.SIGTERM)
        assert rank.stdout.read() == ""
    assert rank.returncode == 3


def test_a_report_needs_nobody_who_reads_it() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    rank = subprocess.run([*RANK_WRAPPER, "--report", "--tag", "sh", "-c", "exit 7"], stdout=writing, stderr=writing)
    os.close(writing)
    assert rank.returncode == 7


def test_a_bar_without_line_end_passes_through_a_tagged_rank() -> None:
    rank = subprocess.Popen([*RANK_WRAPPER, "--tag", "sh", "-c", "printf '10%%'; sleep 60"], stdout=subprocess.PIPE)
    assert rank.stdout is not None
    assert rank.stdout.readline() == b"[0,0]<stdout>+: 10%\n"
    rank.kill()
    rank.wait()


def test_tagged_ranks_may_share_a_pipe_and_no_line_of_theirs_mixes() -> None:
    reading, writing = os.pipe()
    code = "import os\nfor i in range(300): print(os.environ['RANK'], i, 'x' * (i * 40), 'end')\nprint('half', end='')"
    command = [*RANK_WRAPPER, "--tag", "python3", "-u", "-c", code]
    ranks = [subprocess.Popen(command, stdout=writing, env={**os.environ, "RANK": str(rank)}) for rank in range(3)]
    os.close(writing)
    splitter = LineSplitter("o")
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        lines = [line for data in iter(lambda: pipe.read(65536), b"") for line in splitter.feed(data)] + splitter.end()

    assert [rank.wait() for rank in ranks] == [0, 0, 0]
    for rank in range(3):
        texts = [line.text for line in lines if line.rank == rank]
        assert texts == [*(f"{rank} {i} {'x' * (i * 40)} end" for i in range(300)), "half"]


def test_a_rank_dies_with_its_launcher() -> None:
    command = f"{shlex.join(RANK_WRAPPER)} sh -c 'echo $$; exec sleep 300' & wait"
    launcher = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    rank = int(launcher.stdout.readline())

    launcher.send_signal(signal.SIGKILL)

    assert launcher.stdout.read() == ""  # the pipe closes when its last holder has gone
    launcher.wait()
    wait_until(lambda: _is_dead(rank))


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
