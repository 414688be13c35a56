"""The first process of every pod of a run (``python -m spotmpi.agent``): one attempt, reported by the exit code.

Node 0 coordinates: it waits for the others, starts the launcher, records the run and decides how the attempt ended.
In a worker pool it runs the scheduler, and workers come and go while it does.
"""

from __future__ import annotations

import os
import sys

from . import coordinator, pod_context, pool_worker, processes, worker
from .clock import CLOCK
from .node import Notice


def main() -> int:
    """Run this pod's part of one attempt; the exit code is for the pod failure policy."""
    pod = pod_context.read_context()
    processes.adopt_orphans()
    processes.protect_output()
    notice = Notice()
    os.makedirs(pod_context.WORK, exist_ok=True)
    started = CLOCK()
    if pod.is_coordinator:
        return coordinator.run(pod, notice)
    return worker.run(pod, notice, started) if pod.worker is None else pool_worker.run(pod, notice, started)


if __name__ == "__main__":
    sys.exit(main())
