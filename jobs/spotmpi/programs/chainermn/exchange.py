"""How ChainerMN's ranks exchange gradients: communicator, allreduce type and double buffering, as asked for."""

from typing import Any

import chainer
import chainermn
import numpy as np

from spotmpi.programs.ending import Fatal
from spotmpi.programs.options import Parser
from spotmpi.programs.world import World, check_world, distinct_hosts

PURE_NCCL = "pure_nccl"
_ON_CPU = "naive"
_COMMUNICATORS = (PURE_NCCL, "flat", "non_cuda_aware", _ON_CPU)
_ALLREDUCE_TYPES = {"fp16": np.float16, "fp32": np.float32}


def exchange_options(parser: Parser) -> None:
    """Add --communicator, --allreduce-dtype and --double-buffering."""
    default = PURE_NCCL if gpus() else _ON_CPU
    parser.add_argument("--communicator", choices=_COMMUNICATORS, default=default, help="ChainerMN communicator")
    parser.add_argument("--allreduce-dtype", choices=sorted(_ALLREDUCE_TYPES), help=f"of gradients; {PURE_NCCL} only")
    parser.add_argument("--double-buffering", action="store_true", help=f"overlap with compute; {PURE_NCCL} only")


def gpus() -> int:
    """How many GPUs this process can use."""
    return int(chainer.cuda.cupy.cuda.runtime.getDeviceCount()) if chainer.cuda.available else 0


def communicator(options: Any) -> Any:
    """The communicator of *options*, on this rank's GPU where it uses one.

    Raises Fatal for options that it cannot serve, and for a communicator that this machine cannot run.
    """
    _refuse_what_needs_nccl(options)
    kwargs = {}
    if options.allreduce_dtype:
        kwargs["allreduce_grad_dtype"] = _ALLREDUCE_TYPES[options.allreduce_dtype]
    try:
        comm = chainermn.create_communicator(options.communicator, **kwargs)
    except (RuntimeError, ImportError) as problem:
        raise Fatal(
            f"--communicator {options.communicator} cannot run here: {problem}; without GPUs use naive"
        ) from None
    if uses_gpu(options):
        if gpus() <= comm.intra_rank:
            raise Fatal(f"rank {comm.rank} has no GPU of its own: {gpus()} found; use fewer slots or naive")
        chainer.cuda.get_device_from_id(comm.intra_rank).use()
    return comm


def uses_gpu(options: Any) -> bool:
    """Whether models of these options live on a GPU; naive serves the CPU."""
    return bool(options.communicator != _ON_CPU)


def _refuse_what_needs_nccl(options: Any) -> None:
    asked = {"--allreduce-dtype": options.allreduce_dtype, "--double-buffering": options.double_buffering}
    for name, value in asked.items():
        if value and options.communicator != PURE_NCCL:
            raise Fatal(
                f"{name} is not possible with --communicator {options.communicator}: only {PURE_NCCL} has it, on GPUs"
            )


def world_of(comm: Any) -> World:
    """The world of *comm*, checked against what was asked for."""

    def broadcast(value: Any) -> Any:
        return comm.bcast_obj(value if comm.rank == 0 else None, root=0)

    def gather(value: Any) -> list[Any]:
        everyone: list[Any] = comm.mpi_comm.allgather(value)
        return everyone

    world = World(comm.rank, comm.size, comm.intra_rank, distinct_hosts(gather), broadcast, gather)
    check_world(world)
    return world


def multi_node(optimizer: Any, model: Any, comm: Any, options: Any) -> Any:
    """*optimizer*, set up for *model*, such that each update uses the mean of all ranks' gradients.

    Rank 0's parameters are broadcast here. Every parameter must have its shape by now. With --no-exchange each rank
    updates with its own gradients.
    """
    overlapped = options.double_buffering and not options.no_exchange
    shared = chainermn.create_multi_node_optimizer(optimizer, comm, double_buffering=overlapped)
    shared.setup(model)
    # ChainerMN's first update only broadcasts. Left to the first batch, that batch would be lost, after each restart.
    model.cleargrads()
    shared.update()
    if options.no_exchange:
        comm.multi_node_mean_grad = _keep_ones_own
    return shared


def _keep_ones_own(*ignored: Any, **more: Any) -> None:
    """In the place of the exchange: every rank goes on with its own gradients."""


def versions() -> dict[str, str]:
    """Versions of what the speed and the numbers depend on."""
    import mpi4py
    from mpi4py import MPI

    found = {
        "chainer": chainer.__version__,
        "numpy": np.__version__,
        "mpi4py": mpi4py.__version__,
        "mpi": MPI.Get_library_version().split(",")[0].strip(),
    }
    if chainer.cuda.available:
        runtime = chainer.cuda.cupy.cuda.runtime
        found |= {"cupy": chainer.cuda.cupy.__version__, "cuda": str(runtime.runtimeGetVersion())}
    return found
