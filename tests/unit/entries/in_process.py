"""A pool whose calls are executed in this process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from spotmpi.pools.pool import PoolSummary
from spotmpi.streams import part_files


class InProcess:
    """Executes calls in this process, in order, with what pickle gives of arguments and results, as a pool does.

    *calls* has the name of each function with the stem of its part. Parts are built again in this process, too, unless
    *other_process* is set.
    """

    id = "pool-1"
    other_process = False

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def map(self, function: Callable[..., Any], tasks: Iterable[Any]) -> Iterator[Any]:
        for task in tasks:
            self.calls.append((function.__name__, task.stem))
            if function is part_files.rebuild and not self.other_process:
                function = part_files.rebuild_here
            yield pickle.loads(pickle.dumps(function(pickle.loads(pickle.dumps(task)))))

    def summary(self) -> PoolSummary:
        """What a pool with a price knows of itself."""
        return PoolSummary(cost=0.25)

    @property
    def built(self) -> list[str]:
        """The stems of the parts that were built, without those of checks."""
        return [stem for name, stem in self.calls if name == "build"]
