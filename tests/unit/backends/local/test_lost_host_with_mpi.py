"""A host that is lost in the middle of the work, as each image's real mpirun tells it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from spotmpi.agent import exit_diagnosis, protocol
from spotmpi.agent.lines import Line
from spotmpi.images.environment import prepare

pytestmark = [pytest.mark.images, pytest.mark.timeout(600)]

# In place of ssh: the daemon of the other host runs on this machine.
AGENT = """#!/bin/sh
shift
exec setsid sh -c "$*"
"""


@pytest.mark.parametrize("image", ["chainermn", "pytorch"])
def test_mpirun_that_lost_a_host_is_an_interruption_whatever_its_exit_code(image: str, tmp_path: Path) -> None:
    environment_folder, agent = prepare(image), tmp_path / "agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    command = [str(environment_folder / "bin" / "mpirun"), "--prtemca", "plm_ssh_agent", str(agent), "-np", "2"]
    command += ["--host", "elsewhere:1,localhost:1", "sh", "-c", "echo $$; exec sleep 600"]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment = {**os.environ, **root, "PATH": f"{environment_folder / 'bin'}:{os.environ['PATH']}"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as mpirun:
        assert mpirun.stdout
        ranks = [int(mpirun.stdout.readline()) for _ in range(2)]
        for process in daemons_of(agent):
            os.kill(process, signal.SIGKILL)
        try:
            _, words = mpirun.communicate(timeout=60)
        finally:
            for rank in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank, signal.SIGKILL)

    lines = [Line(None, "e", line) for line in words.splitlines()]
    assert exit_diagnosis.effective_exit_code(mpirun.returncode, lines) == protocol.INTERRUPTED, (
        mpirun.returncode,
        words,
    )
    assert exit_diagnosis.describe(0, mpirun.returncode, lines).startswith("lost ")


def daemons_of(agent: Path) -> list[int]:
    """The processes of the daemon that mpirun had started by *agent*."""
    candidates = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            program, *arguments = (folder / "cmdline").read_text().split("\0")
            if program.endswith("/prted") and str(agent) in arguments:
                candidates.append(int(folder.name))
    return candidates
