"""The part of a job spec for Slurm: what its job needs besides nodes and resources."""

from __future__ import annotations

from pydantic import Field

from spotmpi.spec.kubernetes import SpecModel


class Slurm(SpecModel):
    """The job of a run on Slurm."""

    args: list[str] = Field([], description='more options of sbatch, such as ["--account=me", "--time=2:00:00"]')
    setup: list[str] = Field([], description='shell lines before the nodes start, such as "module load cuda/12.4"')
