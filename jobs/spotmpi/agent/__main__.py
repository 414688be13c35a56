"""What runs in every pod of a run, as its first process: one attempt, and the exit code that says how it went.

Node 0 leads: it waits for the others, starts the launcher, records the run and decides how the attempt ended.
"""

from __future__ import annotations

import os
import sys
import time

from . import coordinator, pod_context, processes, worker
from .node import Notice


def main() -> int:
    """Run this pod's part of one attempt; the exit code is for the pod failure policy."""
    here = pod_context.find_place()
    processes.adopt_orphans()
    notice = Notice()
    os.makedirs(pod_context.WORK, exist_ok=True)
    began = time.time()
    return coordinator.run(here, notice) if here.leads else worker.run(here, notice, began)


if __name__ == "__main__":
    sys.exit(main())
