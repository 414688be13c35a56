"""One agent as a process of its own on this machine: what a pod gives it is below a folder instead of /spotmpi.

python agent_process.py FOLDER PORT

SILENCE in the environment is the number of seconds after which a silent peer counts as lost; TRANSIENT_ERRORS are what
its system calls meet (see `tests.transient_errors`).
"""

from __future__ import annotations

import functools
import os
import sys

from spotmpi.agent import __main__ as agent
from spotmpi.agent import connection, hardware, memory, peers, worker
from spotmpi.agent import coordinator as leader
from spotmpi.agent import pod_context as place
from tests import transient_errors


def main(folder: str, port: int) -> int:
    """Run the agent of `JOB_COMPLETION_INDEX` with its mounts below *folder* and its hub on *port*."""
    place.CONFIG, place.SECRET, place.RUNS = f"{folder}/config", f"{folder}/secret", f"{folder}/runs"
    place.WORK, place.POD_INFO = f"{folder}/work", f"{folder}/pod"
    memory.CGROUP = f"{folder}/cgroup"
    hardware.IMAGE_RECORD = f"{folder}/image.json"
    connection.SILENCE = float(os.environ.get("SILENCE", connection.SILENCE))
    vars(leader)["Hub"] = functools.partial(peers.Hub, port=port)
    vars(worker)["join"] = functools.partial(peers.join, port=port)
    transient_errors.from_environment()
    return agent.main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
