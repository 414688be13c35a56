"""The pool that this process runs in: for the command of a pool, and for functions that its workers execute."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spotmpi.agent import protocol
from spotmpi.agent.files import write_atomically
from spotmpi.agent.launch import size_file
from spotmpi.agent.plan import WORKER
from spotmpi.pools.engine import Engine
from spotmpi.pools.errors import PoolError
from spotmpi.pools.pool import Pool, PoolSummary


class JoinedRun:
    """The run of this process, as its environment describes it."""

    outlives = True

    def __init__(self) -> None:
        self.run = os.environ.get(protocol.ENV_RUN, "")

    def open(self, output: Callable[[int, str, Sequence[str]], None]) -> Engine:
        """Connect to the scheduler; *output* is not called, since the run's log has the lines already."""
        return Engine(os.environ[protocol.ENV_POOL], os.environ[protocol.ENV_POOL_TLS])

    def resize(self, workers: int) -> None:
        """Request another number of workers of a pool on this machine."""
        control = os.environ.get(protocol.ENV_POOL_CONTROL)
        if control is None:
            remedy = f"set pool.count, or run `spotmpi resize {self.run} {workers}` outside of the pool"
            raise PoolError(f"pods have no access to the cluster's API and cannot resize their pool: {remedy}")
        write_atomically(Path(control, size_file(WORKER)), str(workers))

    def summary(self) -> PoolSummary:
        """Nothing: what the pool costs is asked from outside of it."""
        return PoolSummary()

    def close(self) -> None:
        """No effect: the run continues until its command ends."""


def pool(*arguments: Any, **options: Any) -> Pool:
    """The pool that this process runs in, whatever the arguments: the same code brings one up outside of it."""
    return Pool(JoinedRun(), prints=False)
