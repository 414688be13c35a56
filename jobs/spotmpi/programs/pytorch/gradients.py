"""The options of programs that train with PyTorch, and how DDP averages gradients over ranks by them."""

from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from spotmpi.programs.options import Parser, positive_number, training_parser
from spotmpi.programs.pytorch.adapter import BF16, FP32
from spotmpi.programs.pytorch.processes import process_options
from spotmpi.programs.world import World

_HOOKS = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}


def torch_parser(description: str) -> Parser:
    """A parser with the options of all programs that train a model; they add their own."""
    parser = training_parser(description)
    process_options(parser)
    parser.add_argument(
        "--ddp-hook", choices=sorted(_HOOKS), help="type in which DDP sends gradients; by default their own"
    )
    parser.add_argument("--bucket-mb", type=positive_number, default=25.0, help="DDP's bucket size in MB")
    about = "type in which the model computes; parameters stay fp32"
    parser.add_argument("--precision", choices=(FP32, BF16), default=FP32, help=about)
    return parser


def distribute(model: nn.Module, world: World, options: Any) -> nn.Module:
    """*model*, wrapped such that backward leaves the mean of all ranks' gradients; a single rank needs no wrapper.

    Rank 0's parameters are broadcast here. With --no-allreduce each rank keeps its own gradients.
    """
    if world.size == 1 or options.no_allreduce:
        return model
    device = next(model.parameters()).device
    devices = [device.index] if device.type == "cuda" else None
    wrapped = DistributedDataParallel(model, device_ids=devices, bucket_cap_mb=options.bucket_mb)
    if options.ddp_hook:
        wrapped.register_comm_hook(None, _HOOKS[options.ddp_hook])
    return wrapped


def versions() -> dict[str, str]:
    """Versions of the software that speed and results depend on."""
    import numpy

    versions = {"torch": torch.__version__, "numpy": numpy.__version__}
    if torch.cuda.is_available():
        nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
        versions |= {"cuda": str(torch.version.cuda), "nccl": nccl, "gpu": torch.cuda.get_device_name()}
    return versions
