"""The pool of a job spec: the workers that stay up and execute the calls that a driver sends them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from spotmpi.spec.cpus import Cpus
from spotmpi.spec.kubernetes import SpecModel


class Pool(SpecModel):
    """Workers of a pool, each one process with resources of its own; calls are executed one at a time."""

    workers: Annotated[int, Field(ge=1)] = Field(description="number of workers")
    cpu: Cpus = Field(1, description='CPUs of each worker, such as 2, 0.5 or "500m"')
    memory: str | None = Field(
        None, pattern=r"^\d+(\.\d+)?(Ki|Mi|Gi)$", description='memory of each worker, such as "4Gi"'
    )
    gpu: int = Field(0, ge=0, description="GPUs of each worker")
    node_groups: list[str] = Field([], description="node groups of the environment that workers may use")
