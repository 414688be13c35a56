"""Which processes of a node a drill kills: the ranks of one run, whether started or forked, and nothing else."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi.agent.plan import COORDINATOR
from spotmpi.backends.kill_ranks import PROGRAM, NotRunning, require_killed
from tests.contract.processes import wait_until

RUN, OTHER = f"digits-{os.getpid()}", f"other-{os.getpid()}"
# As the fork server of agents: the fork has another environment of its own, but /proc shows that of the server.
FORKS = "import os, time\nif os.fork() == 0: os.environ['SPOTMPI_ATTEMPT'] = '1'\ntime.sleep(100)"


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_ranks_of_one_run_are_killed_and_no_others(processes: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    (tmp_path / "fork_server.py").write_text(FORKS)

    def start(*command: str, **variables: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, env={**os.environ, **variables}, cwd=tmp_path, start_new_session=True)
        processes.append(process)
        return process

    rank = start("sleep", "100", SPOTMPI_RUN=RUN, SPOTMPI_ATTEMPT="1")
    agent = start("sleep", "100", SPOTMPI_RUN=RUN)
    of_other = start("sleep", "100", SPOTMPI_RUN=OTHER, SPOTMPI_ATTEMPT="1")
    server, server_of_other = (start(sys.executable, "fork_server.py", SPOTMPI_RUN=run) for run in (RUN, OTHER))
    fork, fork_of_other = (wait_until(functools.partial(_child, each.pid)) for each in (server, server_of_other))

    printed = subprocess.check_output([sys.executable, "-c", PROGRAM, RUN], text=True)

    assert printed.split() == ["killed", "killed"]
    require_killed(printed, RUN, COORDINATOR)
    assert rank.wait(60) == -signal.SIGKILL
    wait_until(lambda: _state(fork) == "Z")
    assert [each.poll() for each in (agent, of_other, server, server_of_other)] == [None] * 4
    assert _state(fork_of_other) == "S"
    printed = subprocess.check_output([sys.executable, "-c", PROGRAM, f"none-{RUN}"], text=True)
    with pytest.raises(NotRunning, match="node 0 of run digits-1 has no running ranks"):
        require_killed(printed, "digits-1", COORDINATOR)


def _child(process: int) -> int:
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return int(children[0]) if children else 0


def _state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
