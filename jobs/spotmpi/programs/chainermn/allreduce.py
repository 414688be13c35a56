"""Measure the bus bandwidth of allreduce: MPI with host buffers, or ChainerMN's NCCL communicator on GPUs."""

from typing import Any

import chainer
import numpy as np

from spotmpi.programs.bandwidth import Buffer, bandwidth_parser, measure, sizes
from spotmpi.programs.chainermn.gradients import PURE_NCCL, communicator, create_world, gradient_options, versions
from spotmpi.programs.exits import exit_together
from spotmpi.programs.options import describe_options
from spotmpi.programs.reporting import Reporter


class HostBuffer:
    """A vector in host memory, summed by MPI."""

    def __init__(self, comm: Any, items: int) -> None:
        from mpi4py import MPI

        self._comm = comm.mpi_comm
        self._in_place = MPI.IN_PLACE
        self._array = np.zeros(items, np.float32)

    def fill(self, values: Any) -> None:
        """Set it to *values*."""
        self._array[...] = values

    def allreduce(self) -> None:
        """Replace it by the sum over ranks."""
        self._comm.Allreduce(self._in_place, self._array)

    def values(self) -> Any:
        """A copy on the host."""
        return self._array.copy()


class NcclBuffer:
    """A vector in GPU memory, summed by the NCCL connection that ChainerMN's communicator trains with."""

    def __init__(self, comm: Any, items: int) -> None:
        from chainermn import nccl

        comm._init_comms()
        self._comm, self._sum, self._float = comm.nccl_comm, nccl.NCCL_SUM, nccl.NCCL_FLOAT
        self._array = chainer.cuda.cupy.zeros(items, np.float32)

    def fill(self, values: Any) -> None:
        """Set it to *values*."""
        self._array[...] = chainer.cuda.cupy.asarray(values)

    def allreduce(self) -> None:
        """Replace it by the sum over ranks, and wait for the GPU."""
        place, stream = self._array.data.ptr, chainer.cuda.Stream.null
        self._comm.allReduce(place, place, self._array.size, self._float, self._sum, stream.ptr)
        stream.synchronize()

    def values(self) -> Any:
        """A copy on the host."""
        return chainer.cuda.to_cpu(self._array)


def main() -> None:
    """Run the program with the options of the command line."""
    parser = bandwidth_parser(__doc__)
    gradient_options(parser)
    options = parser.parse_args()
    comm = communicator(options)
    world = create_world(comm)
    details = {**describe_options(options, "chainermn", versions()), "program": "chainermn/allreduce"}
    kind = NcclBuffer if options.communicator == PURE_NCCL else HostBuffer

    def create_buffer(items: int) -> Buffer:
        return kind(comm, items)

    message_sizes = list(sizes(options.min_bytes, options.max_bytes, options.factor))
    measure(world, create_buffer, message_sizes, details, Reporter(world.rank))


if __name__ == "__main__":
    exit_together(main)()
