"""How DDP exchanges gradients: bucket size and compression, as asked for."""

from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from spotmpi.programs.options import Parser, positive_number
from spotmpi.programs.world import World

_HOOKS = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}


def exchange_options(parser: Parser) -> None:
    """Add --ddp-hook and --bucket-mb."""
    parser.add_argument("--ddp-hook", choices=sorted(_HOOKS), help="type in which DDP sends gradients; else their own")
    parser.add_argument("--bucket-mb", type=positive_number, default=25.0, help="DDP's bucket size in MB")


def distribute(model: nn.Module, world: World, options: Any) -> nn.Module:
    """*model* such that backward leaves the mean of all ranks' gradients; alone it needs nothing around it.

    Rank 0's parameters are broadcast here. With --no-exchange each rank keeps its own gradients.
    """
    if world.size == 1 or options.no_exchange:
        return model
    place = next(model.parameters()).device
    devices = [place.index] if place.type == "cuda" else None
    wrapped = DistributedDataParallel(model, device_ids=devices, bucket_cap_mb=options.bucket_mb)
    if options.ddp_hook:
        wrapped.register_comm_hook(None, _HOOKS[options.ddp_hook])
    return wrapped


def versions() -> dict[str, str]:
    """Versions of what the speed and the numbers depend on."""
    import numpy

    found = {"torch": torch.__version__, "numpy": numpy.__version__}
    if torch.cuda.is_available():
        nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
        found |= {"cuda": str(torch.version.cuda), "nccl": nccl, "gpu": torch.cuda.get_device_name()}
    return found
