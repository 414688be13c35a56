"""One agent as a process of its own on this machine: its mounts are below a folder instead of /spotmpi.

python -m tests.unit.agent.agent_process FOLDER PORT

HEARTBEAT_TIMEOUT in the environment is in seconds; COPIES_PORT is the port for checkpoints in memory; TRANSIENT_ERRORS
are the errors of its system calls (see `tests.transient_errors`).
"""

from __future__ import annotations

import os
import sys

from spotmpi.agent import __main__, connection
from spotmpi.agent.clock import CLOCK
from spotmpi.agent.context import Mounts, read_pod_context
from spotmpi.agent.stop_requests import PreemptionNotice
from spotmpi.agent.tcp import Tcp
from tests import transient_errors


def mounts_below(folder: str) -> Mounts:
    """Those of a pod whose files are all below *folder*."""
    return Mounts(
        plan=f"{folder}/config/plan.json",
        secret=f"{folder}/secret",
        work=f"{folder}/work",
        runs=f"{folder}/runs",
        pod_info=f"{folder}/pod",
        cgroup=f"{folder}/cgroup",
        image_record=f"{folder}/image.json",
    )


def main(folder: str, port: int) -> int:
    """Run the agent of `JOB_COMPLETION_INDEX` with its mounts below *folder* and its coordinator on *port*."""
    connection.HEARTBEAT_TIMEOUT = float(os.environ.get("HEARTBEAT_TIMEOUT", connection.HEARTBEAT_TIMEOUT))
    transient_errors.from_environment()
    context, notice = read_pod_context(mounts_below(folder), CLOCK), PreemptionNotice("the pod of this node")
    return __main__.run_member(context, Tcp(port), notice, int(os.environ.get("COPIES_PORT", "0")) or None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
