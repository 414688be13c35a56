"""Measure the bus bandwidth of torch.distributed's allreduce: gloo with host memory, NCCL with GPU memory."""

from typing import Any

import torch
import torch.distributed as dist

from spotmpi.programs.bandwidth import Buffer, bandwidth_parser, measure, sizes
from spotmpi.programs.exits import exit_together
from spotmpi.programs.options import describe_options
from spotmpi.programs.pytorch.gradients import versions
from spotmpi.programs.pytorch.processes import device, finish, join, process_options
from spotmpi.programs.reporting import Reporter


class TensorBuffer:
    """A vector on the rank's device."""

    def __init__(self, place: torch.device, items: int) -> None:
        self._tensor = torch.zeros(items, device=place)

    def fill(self, values: Any) -> None:
        """Set it to *values*."""
        self._tensor.copy_(torch.from_numpy(values))

    def allreduce(self) -> None:
        """Replace it by the sum over ranks, and wait for the GPU where there is one."""
        if dist.is_initialized():  # one process alone has nobody to sum with
            dist.all_reduce(self._tensor)
        if self._tensor.is_cuda:
            torch.cuda.synchronize(self._tensor.device)

    def values(self) -> Any:
        """A copy on the host."""
        return self._tensor.cpu().numpy().copy()


def main() -> None:
    """Run the program with the options of the command line."""
    parser = bandwidth_parser(__doc__)
    process_options(parser)
    options = parser.parse_args()
    world = join(options)
    place = device(world, options)

    def create_buffer(items: int) -> Buffer:
        return TensorBuffer(place, items)

    details = {**describe_options(options, "pytorch", versions()), "program": "pytorch/allreduce"}
    message_sizes = list(sizes(options.min_bytes, options.max_bytes, options.factor))
    measure(world, create_buffer, message_sizes, details, Reporter(world.rank))
    finish()


if __name__ == "__main__":
    exit_together(main)()
