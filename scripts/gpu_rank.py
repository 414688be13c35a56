"""Runs a training program as a rank that takes its GPU, which other ranks use too, for the only one of a node.

NCCL refuses two ranks on one GPU of a host, which it knows by NCCL_HOSTID, so each rank gets a host of its own, and
they exchange data by sockets. Of MPI's processor names ChainerMN makes the number of a rank on its node.

    mpirun -np 2 python -m scripts.gpu_rank MODULE OPTION ...
"""

from __future__ import annotations

import os
import runpy
import sys


def main(module: str) -> None:
    """Run *module* as the only rank of a host."""
    host = f"host-{os.environ['OMPI_COMM_WORLD_RANK']}"
    os.environ |= {"NCCL_HOSTID": host, "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    from mpi4py import MPI

    MPI.Get_processor_name = lambda: host
    sys.argv[:] = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
