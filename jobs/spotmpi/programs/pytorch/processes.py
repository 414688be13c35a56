"""How PyTorch's ranks connect: under mpirun, under torchrun, or as a single process."""

import contextlib
import os
import socket
import sys
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from spotmpi.agent.network import interface_towards
from spotmpi.programs.exits import Fatal, leave
from spotmpi.programs.options import Parser, requested_gpus
from spotmpi.programs.world import World, alone, check_world, distinct_hosts

_BACKENDS = ("gloo", "nccl")


def process_options(parser: Parser) -> None:
    """Add --backend."""
    # A run that asks for GPUs shall not train on the CPU where it finds none.
    default = "nccl" if torch.cuda.is_available() or requested_gpus() else "gloo"
    parser.add_argument("--backend", choices=_BACKENDS, default=default, help="of torch.distributed")


def join(options: Any) -> World:
    """The world that the launcher started, with torch.distributed initialized; Fatal unless it has the requested size.

    Raises Fatal for a backend that this machine cannot run, too.
    """
    if options.backend == "nccl" and not torch.cuda.is_available():
        raise Fatal("--backend nccl needs a GPU, and PyTorch finds none on this node: use gloo")
    if "RANK" in os.environ and "MASTER_ADDR" in os.environ:
        world = _initialize(options.backend, int(os.environ.get("LOCAL_RANK", "0")))
    elif "OMPI_COMM_WORLD_SIZE" in os.environ:
        world = _join_mpirun(options.backend)
    else:
        world = alone()
    check_world(world)
    return world


def device(world: World, options: Any) -> torch.device:
    """Where this rank's model lives: on the GPU of its local rank with nccl, else on the CPU."""
    if options.backend != "nccl":
        return torch.device("cpu")
    if world.local_rank >= torch.cuda.device_count():
        raise Fatal(f"rank {world.rank} has no GPU: this node has {torch.cuda.device_count()}; use fewer slots")
    # A GPU gives the same sums each time, so that a run has the same parameters after any interruption; an operation
    # without such an algorithm warns: https://docs.pytorch.org/docs/stable/notes/randomness.html
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.cuda.set_device(world.local_rank)
    return torch.device("cuda", world.local_rank)


def _join_mpirun(backend: str) -> World:
    """Use MPI to agree on a port, and for nothing else."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if comm.size == 1:
        return alone()
    hosts = distinct_hosts(comm.allgather)
    address = "127.0.0.1" if len(hosts) == 1 else comm.bcast(socket.gethostname())
    # Kept open so that no rank picks the same port, then released for the store.
    with socket.create_server(("", 0)) as reserved:
        port = comm.bcast(reserved.getsockname()[1])
    comm.Barrier()
    os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": str(port), "RANK": str(comm.rank)}
    os.environ["WORLD_SIZE"] = str(comm.size)
    # The interface of the route to another host; by themselves, libraries may choose docker0 or loopback.
    peer = next((host for host in hosts if host != socket.gethostname()), "127.0.0.1")
    with contextlib.suppress(OSError):
        interface = interface_towards(peer)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        if interface != "lo":
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    return _initialize(backend, int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")))


def _initialize(backend: str, local_rank: int) -> World:
    """This rank among all, over *backend*, ``nccl`` or ``gloo``."""
    # With NCCL, Gloo transfers the small objects, which then need no copy to a GPU.
    dist.init_process_group("cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo")

    def broadcast(value: Any) -> Any:
        holder = [value]
        dist.broadcast_object_list(holder, src=0, device=torch.device("cpu"))
        return holder[0]

    objects = dist.new_group(backend="gloo") if backend == "nccl" else None

    def gather(value: Any) -> list[Any]:
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=objects)
        return values

    return World(dist.get_rank(), dist.get_world_size(), local_rank, distinct_hosts(gather), broadcast, gather)


def finish() -> NoReturn:
    """Exit with success after the last collective, without the shutdown of the interpreter.

    A thread of Gloo may hold a tensor a moment longer than its collective takes; freeing it while the interpreter
    shuts down aborts the process (https://github.com/pytorch/pytorch/pull/179291).
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    if "mpi4py.MPI" in sys.modules:
        sys.modules["mpi4py.MPI"].Finalize()
    leave(0)
