"""The first process of every pod of a run (``python -m spotmpi.agent``): one attempt, reported by the exit code.

Node 0 coordinates: it waits for the others, starts the launcher, records the run and decides how the attempt ended.
"""

from __future__ import annotations

import os
import sys
import time

from . import coordinator, pod_context, processes, worker
from .node import Notice


def main() -> int:
    """Run this pod's part of one attempt; the exit code is for the pod failure policy."""
    pod = pod_context.read_context()
    processes.adopt_orphans()
    notice = Notice()
    os.makedirs(pod_context.WORK, exist_ok=True)
    started = time.time()
    return coordinator.run(pod, notice) if pod.is_coordinator else worker.run(pod, notice, started)


if __name__ == "__main__":
    sys.exit(main())
