"""How ChainerMN averages gradients over ranks: communicator, allreduce type and double buffering, by options."""

from typing import Any

import chainer
import chainermn
import numpy as np

from spotmpi.programs.exits import Fatal
from spotmpi.programs.options import Parser, requested_gpus
from spotmpi.programs.world import World, check_world, distinct_hosts

PURE_NCCL = "pure_nccl"
_ON_CPU = "naive"
_COMMUNICATORS = (PURE_NCCL, "flat", "non_cuda_aware", _ON_CPU)
_ALLREDUCE_TYPES = {"fp16": np.float16, "fp32": np.float32}


def gradient_options(parser: Parser) -> None:
    """Add --communicator, --allreduce-dtype and --double-buffering."""
    # A run that asks for GPUs shall not train on the CPU where it finds none.
    default = PURE_NCCL if gpus() or requested_gpus() else _ON_CPU
    parser.add_argument("--communicator", choices=_COMMUNICATORS, default=default, help="ChainerMN communicator")
    parser.add_argument("--allreduce-dtype", choices=sorted(_ALLREDUCE_TYPES), help=f"of gradients; {PURE_NCCL} only")
    parser.add_argument("--double-buffering", action="store_true", help=f"overlap with compute; {PURE_NCCL} only")


def gpus() -> int:
    """How many GPUs this process can use."""
    return int(chainer.cuda.cupy.cuda.runtime.getDeviceCount()) if chainer.cuda.available else 0


def communicator(options: Any) -> Any:
    """The communicator of *options*, on this rank's GPU where it uses one.

    Raises Fatal for options that it does not support, and for a communicator that this machine cannot run.
    """
    requested = {"--allreduce-dtype": options.allreduce_dtype, "--double-buffering": options.double_buffering}
    for name, value in requested.items():
        if value and options.communicator != PURE_NCCL:
            raise Fatal(f"{name} is not supported by --communicator {options.communicator}: use {PURE_NCCL}, on GPUs")
    kwargs = {}
    if options.allreduce_dtype:
        kwargs["allreduce_grad_dtype"] = _ALLREDUCE_TYPES[options.allreduce_dtype]
    try:
        comm = chainermn.create_communicator(options.communicator, **kwargs)
    except (RuntimeError, ImportError) as problem:
        reason = f"{problem}" if chainer.cuda.available else f"{problem} CuPy: {_cupy_problem()}"
        raise Fatal(
            f"--communicator {options.communicator} is not usable here: {reason}; without GPUs use naive"
        ) from None
    if uses_gpu(options):
        if gpus() <= comm.intra_rank:
            raise Fatal(f"rank {comm.rank} has no GPU: this node has {gpus()}; use fewer slots or naive")
        chainer.cuda.get_device_from_id(comm.intra_rank).use()
    return comm


def _cupy_problem() -> str:
    """Why Chainer does without CuPy."""
    return str(getattr(chainer.cuda, "_resolution_error", "")).strip().partition("\n")[0]


def uses_gpu(options: Any) -> bool:
    """Whether models of these options live on a GPU; naive serves the CPU."""
    return bool(options.communicator != _ON_CPU)


def create_world(comm: Any) -> World:
    """The world of *comm*; Fatal unless it has the requested size."""

    def broadcast(value: Any) -> Any:
        return comm.bcast_obj(value if comm.rank == 0 else None, root=0)

    def gather(value: Any) -> list[Any]:
        values: list[Any] = comm.mpi_comm.allgather(value)
        return values

    world = World(comm.rank, comm.size, comm.intra_rank, distinct_hosts(gather), broadcast, gather)
    check_world(world)
    return world


def create_optimizer(optimizer: Any, model: Any, comm: Any, options: Any) -> Any:
    """*optimizer*, set up for *model* on its device, such that each update uses the mean of all ranks' gradients.

    Rank 0's parameters are broadcast here. Every parameter must have its shape by now. With --no-allreduce each rank
    updates with its own gradients.
    """
    if uses_gpu(options):
        model.to_device(f"@cupy:{comm.intra_rank}")
    overlapped = options.double_buffering and not options.no_allreduce
    shared = chainermn.create_multi_node_optimizer(optimizer, comm, double_buffering=overlapped)
    shared.setup(model)
    # ChainerMN's first update only broadcasts parameters, and would ignore the first batch after each restart.
    model.cleargrads()
    shared.update()
    if options.no_allreduce:
        comm.multi_node_mean_grad = _skip_allreduce
    return shared


def _skip_allreduce(*ignored: Any, **more: Any) -> None:
    """Replaces the allreduce: every rank keeps its own gradients."""


def versions() -> dict[str, str]:
    """Versions of the software that speed and results depend on."""
    import mpi4py
    from mpi4py import MPI

    versions = {
        "chainer": chainer.__version__,
        "numpy": np.__version__,
        "mpi4py": mpi4py.__version__,
        "mpi": MPI.Get_library_version().split(",")[0].strip(),
    }
    if chainer.cuda.available:
        runtime = chainer.cuda.cupy.cuda.runtime
        versions |= {"cupy": chainer.cuda.cupy.__version__, "cuda": str(runtime.runtimeGetVersion())}
    return versions
