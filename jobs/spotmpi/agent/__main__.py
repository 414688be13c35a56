"""The first process of every pod of a run (``python -m spotmpi.agent``): one attempt, reported by the exit code.

Node 0 coordinates: it waits for the others, starts the launcher, records the run and decides how the attempt ended.
In a worker pool it runs the scheduler, and workers come and go while it does.
"""

from __future__ import annotations

import os
import sys

from . import coordinator, mounts, pool_worker, processes, worker
from .clock import CLOCK
from .context import AgentContext, read_pod_context
from .node import Notice


def main() -> int:
    """Run this pod's part of one attempt; the exit code is for the pod failure policy."""
    return run(read_pod_context(mounts.in_pod(), CLOCK), Notice(CLOCK))


def run(context: AgentContext, notice: Notice) -> int:
    """Run the part of one attempt that is *context*'s, which *notice* may end; the exit code."""
    processes.adopt_orphans()
    processes.protect_output()
    os.makedirs(context.mounts.work, exist_ok=True)
    started = context.clock()
    if context.is_coordinator:
        return coordinator.run(context, notice)
    run_worker = worker.run if context.worker is None else pool_worker.run
    return run_worker(context, notice, started)


if __name__ == "__main__":
    sys.exit(main())
