"""The agents of two nodes as processes of this machine, from their start over a notice to the iteration after it.

    python reclaim.py FOLDER LOGS

Their output stays in FOLDER, and so does the run folder that they share. Rank 0 logs its calls in the folder LOGS.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from scripts.story import tracer  # noqa: E402
from spotmpi.agent import protocol  # noqa: E402
from tests.unit.agent import gang  # noqa: E402

TRAINING = str(Path(__file__).with_name("training.py"))
OPTIONS = ["--global-batch", "4", "--iterations", "100000", "--report-every", "1"]


def start_agent(
    arguments: Sequence[str], files: tuple[int, int, int], imports: Sequence[str], *, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """An agent of a `Gang` as a process that is traced from its start, in place of the fork of another interpreter."""
    stdin, stdout, stderr = files
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=dict(environment))


def main(folder: Path, logs: Path) -> None:
    """Start both agents, send SIGTERM to that of node 1, start them again, and end all after an iteration."""
    command = [sys.executable, tracer.__file__, str(logs), TRAINING, *OPTIONS]
    checkpoints = {"path": str(folder / "checkpoints")}
    # As with mpirun there is one launcher, on node 0.
    vars(gang)["ForkedPython"] = start_agent
    run = gang.Gang(folder, {"command": command, "run_on": "first", "checkpoint": checkpoints})
    for restarts in (0, 1):
        for node in (0, 1):
            run.start(node, restarts)
        run.until("an iteration", lambda restarts=restarts: _iterates(run, restarts))  # type: ignore[misc]
        if not restarts:
            run.agents[1].send_signal(signal.SIGTERM)
            run.codes()
    for agent in run.agents.values():
        agent.kill()
        agent.wait()


def _iterates(run: gang.Gang, restarts: int) -> bool:
    return any(event.values.get("kind") == protocol.METRIC for event in run.events(0, restarts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
