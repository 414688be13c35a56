"""One agent as a process of its own on this machine: its mounts are below a folder instead of /spotmpi.

python agent_process.py FOLDER PORT

HEARTBEAT_TIMEOUT in the environment is in seconds; TRANSIENT_ERRORS are the errors
of its system calls (see `tests.transient_errors`).
"""

from __future__ import annotations

import functools
import os
import sys

from spotmpi.agent import __main__, connection, coordinator, hardware, peers, pod_context, pool_coordinator, worker
from tests import transient_errors


def main(folder: str, port: int) -> int:
    """Run the agent of `JOB_COMPLETION_INDEX` with its mounts below *folder* and its coordinator on *port*."""
    pod_context.CONFIG, pod_context.SECRET, pod_context.RUNS = f"{folder}/config", f"{folder}/secret", f"{folder}/runs"
    pod_context.WORK, pod_context.POD_INFO = f"{folder}/work", f"{folder}/pod"
    hardware.CGROUP = f"{folder}/cgroup"
    hardware.IMAGE_RECORD = f"{folder}/image.json"
    connection.HEARTBEAT_TIMEOUT = float(os.environ.get("HEARTBEAT_TIMEOUT", connection.HEARTBEAT_TIMEOUT))
    vars(coordinator)["Coordinator"] = functools.partial(peers.Coordinator, port=port)
    vars(coordinator)["PoolCoordinator"] = functools.partial(pool_coordinator.PoolCoordinator, port=port)
    vars(worker)["join"] = functools.partial(peers.join, port=port)
    transient_errors.from_environment()
    return __main__.main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
