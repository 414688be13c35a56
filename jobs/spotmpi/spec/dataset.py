"""The data set of a job spec that is built before the run, which then reads it."""

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from spotmpi.core.errors import Problem
from spotmpi.spec.kubernetes import SpecModel
from spotmpi.spec.workers import Count, Cpus, Memory
from spotmpi.streams.order import FUNCTION


class DatasetBuild(SpecModel):
    """A call of a function with `@spotmpi.dataset`; see docs/datasets.md."""

    build: str = Field(
        description="module:function with @spotmpi.dataset, of `code` or `files`", examples=["sets:ratings"]
    )
    arguments: dict[str, Any] = Field(
        {},
        description="its arguments by name; paths are relative to the spec",
        examples=[{"raw": "s3://set/*.csv", "cut": 0.5}],
    )
    workers: Count | None = Field(None, description="number of workers (default: that of the function)", examples=[4])
    cpu: Cpus | None = Field(None, description='CPUs of each worker, such as 2, 0.5 or "500m"', examples=[2])
    memory: Memory | None = Field(None, description='memory of each worker, such as "4Gi"', examples=["4Gi"])

    def problems(self) -> Iterator[Problem]:
        """What is wrong with it."""
        if not FUNCTION.fullmatch(self.build):
            yield Problem("dataset.build", self.build, "write module:function, such as sets:ratings")
