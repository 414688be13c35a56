"""The options of gradient synchronization arrive where they work, and what they promise can be measured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from spotmpi.agent import protocol
from tests.programs.by_day import in_chainermn

if TYPE_CHECKING:
    from pathlib import Path

    from tests.programs.conftest import Image

pytestmark = [pytest.mark.images, pytest.mark.timeout(900)]

SHORT = ("--global-batch", "8", "--iterations", "1")

# `pure_nccl` needs a GPU even to be made, so a communicator that records stands in for it. ChainerMN's own functions
# are called: they check names and types of what they are given.
RECORDING = """
import json, sys
import chainer, chainermn
from chainermn import nccl, optimizers
from chainermn.communicators import naive_communicator, pure_nccl_communicator

recorded = {}

class Recording(naive_communicator.NaiveCommunicator):
    def set_config(self, name, value=True, **kwargs):
        recorded[name] = str(value)

class DoubleBuffering(optimizers._MultiNodeOptimizer):
    def __init__(self, optimizer, communicator, zero_fill):
        super().__init__(optimizer, communicator, zero_fill)
        recorded["double_buffering"] = type(communicator).__name__

pure_nccl_communicator.PureNcclCommunicator = Recording
optimizers._DoubleBufferingOptimizer = DoubleBuffering

from spotmpi.programs.chainermn import digits, gradients
options = digits.parse(["--global-batch", "8", "--iterations", "1", "--communicator", "pure_nccl", *sys.argv[1:]])
gradients.uses_gpu = lambda options: False
comm = gradients.communicator(options)
optimizer = gradients.create_optimizer(chainer.optimizers.SGD(), chainer.links.Linear(2, 2), comm, options)
print(json.dumps({**recorded, "communicator": type(comm).__name__, "optimizer": type(optimizer).__name__}))
"""


def recorded_settings(image: Image, *options: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(image.alone("-c", RECORDING, *options).succeed().plain[-1])
    return values


def test_chainermn_gets_the_allreduce_type_and_double_buffering(chainermn: Image) -> None:
    settings = recorded_settings(chainermn, "--allreduce-dtype", "fp16", "--double-buffering")

    assert settings["communicator"] == "Recording"
    assert "float16" in settings["allreduce_grad_dtype"]
    assert (settings["optimizer"], settings["double_buffering"]) == ("DoubleBuffering", "Recording")


def test_chainermn_gets_neither_by_default(chainermn: Image) -> None:
    settings = recorded_settings(chainermn)

    assert settings["allreduce_grad_dtype"] == "None"
    assert settings["optimizer"] == "_MultiNodeOptimizer"


@pytest.mark.parametrize("option", ["--double-buffering", "--allreduce-dtype=fp16"])
def test_options_that_need_nccl_are_refused_without_it(chainermn: Image, option: str) -> None:
    run = chainermn.alone(*chainermn.program("digits"), *SHORT, "--communicator", "naive", option)

    assert "is not supported by --communicator naive: use pure_nccl" in run.refusal()


@pytest.mark.parametrize("asks", [False, True], ids=["by its option", "by what the run asks for"])
def test_nccl_without_a_gpu_is_refused_with_the_way_out(image: Image, asks: bool) -> None:
    option, remedy = {
        "chainermn": (["--communicator", "pure_nccl"], "use naive"),
        "pytorch": (["--backend", "nccl"], "use gloo"),
    }[image.name]

    environment = {"CUDA_VISIBLE_DEVICES": "", **({protocol.ENV_GPUS: "1"} if asks else {})}
    run = image.alone(*image.program("digits"), *SHORT, *([] if asks else option), **environment)

    assert remedy in run.refusal()


# The kernel counts what each TCP connection of a process has sent and had acknowledged: tcpi_bytes_acked, a 64-bit
# number at byte 120 of struct tcp_info (linux/tcp.h).
COUNTING = """
import json, os, socket, struct, time
import torch, torch.distributed as dist
from spotmpi.programs.digits import initial_layers
from spotmpi.programs.pytorch import digits
from spotmpi.programs.pytorch.gradients import distribute
from spotmpi.programs.pytorch.processes import join

def sent():
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            end = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with end:
            if end.type == socket.SOCK_STREAM and end.family in (socket.AF_INET, socket.AF_INET6):
                info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                total += struct.unpack_from("Q", info, 120)[0]
    return total

def measured(world, *arguments):
    options = digits.parse(["--global-batch", "8", "--iterations", "1", "--backend", "gloo", *arguments])
    model = distribute(digits.Network(initial_layers(0)), world, options)
    parameters = list(model.parameters())

    def backward():
        model.zero_grad()
        digits.loss(model, batch)[0].backward()

    backward()  # DDP builds its buckets anew after the first one
    backward()
    world.gather(None)
    time.sleep(0.2)
    before = sent()
    for _ in range(10):
        backward()
    time.sleep(0.2)
    return {
        "bytes": (sent() - before) / 10,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "gradients": sorted({str(parameter.grad.dtype) for parameter in parameters}),
    }

batch = (torch.rand(8, 1, 8, 8), torch.zeros(8, dtype=torch.int32))
world = join(digits.parse(["--global-batch", "8", "--iterations", "1", "--backend", "gloo"]))
found = {"none": measured(world), **{hook: measured(world, "--ddp-hook", hook) for hook in ("fp16", "bf16")}}
if world.rank == 0:
    print(json.dumps(found), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.nightly("13 s; the options are checked by day")
def test_the_compression_hooks_halve_the_bytes_that_gloo_sends(pytorch: Image) -> None:
    run = pytorch.mpirun(2, "-c", COUNTING).succeed()

    measured = next(json.loads(line) for line in run.plain if line.startswith("{"))
    plain = measured["none"]
    assert plain["bytes"] == pytest.approx(4 * plain["parameters"], rel=0.02), "one rank of two sends each value once"
    for hook in ("fp16", "bf16"):
        assert measured[hook]["bytes"] == pytest.approx(plain["bytes"] / 2, rel=0.02)
        assert measured[hook]["gradients"] == ["torch.float32"], "what the optimizer sees stays fp32"


ENDING = """
import atexit
import sys
from spotmpi.programs.pytorch.digits import parse
from spotmpi.programs.pytorch.processes import finish, join

atexit.register(print, "the interpreter ends", flush=True)
world = join(parse(["--global-batch", "8", "--iterations", "1", "--backend", "gloo"]))
sys.stdout.write(f"rank {world.rank} of {world.size}\\n")  # at once: both ranks write into one pipe
finish()
print("not reached")
"""


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_a_rank_that_is_done_ends_before_the_interpreter_can_trip_over_gloo(
    pytorch: Image, launcher: str, tmp_path: Path
) -> None:
    program = tmp_path / "ending.py"
    program.write_text(ENDING)
    run = getattr(pytorch, launcher)(2, str(program)).succeed()

    assert sorted(line for line in run.plain if "rank" in line) == ["rank 0 of 2", "rank 1 of 2"]
    assert not any("interpreter" in line or "not reached" in line for line in run.plain)


def test_allreduce_reports_the_bus_bandwidth_of_every_size(image: Image) -> None:
    sizes = ("--min-bytes", "4096", "--max-bytes", "1048576", "--factor", "16")

    run = image.mpirun(2, *image.program("allreduce"), *sizes).succeed()

    lines = run.all(protocol.METRIC)
    assert [line["bytes"] for line in lines] == [4096, 65536, 1048576]
    for line in lines:
        assert len(line["seconds"]) == 20
        assert line["algbw"] == pytest.approx(line["bytes"] / line["median_seconds"] / 1e9)
        assert line["busbw"] == pytest.approx(line["algbw"] * 2 * 1 / 2)
    assert run.one(protocol.RESULT)["best_busbw"] == max(line["busbw"] for line in lines)


@in_chainermn("PyTorch's start costs seconds; what is tested is code of both")
def test_resnet50_trains_on_synthetic_images_in_weak_scaling(image: Image) -> None:
    small = ("--batch-per-worker", "2", "--iterations", "3", "--image-size", "32", "--classes", "10", "--samples", "64")

    run = image.mpirun(2, *image.program("resnet50"), *small, "--report-every", "1").succeed()

    assert [line["iteration"] for line in run.all(protocol.METRIC)] == [1, 2, 3]
    context = run.one(protocol.CONTEXT)
    assert (context["scaling"], context["samples_per_iteration"]) == ("weak", 4)
    assert not run.all(protocol.EVALUATION)


@in_chainermn("PyTorch's start costs seconds; what is tested is code of both")
def test_without_allreduce_ranks_train_apart(image: Image) -> None:
    """On the same start, gradients that are kept to oneself lead elsewhere than those that are shared."""
    options = ["--global-batch", "8", "--iterations", "30", "--report-every", "30"]
    runs = [image.mpirun(2, *image.program("digits"), *options, *more) for more in ([], ["--no-allreduce"])]
    together, apart = (run.succeed() for run in runs)
    assert together.one("context")["allreduce"] and not apart.one("context")["allreduce"]
    assert together.one("result")["parameters"] != apart.one("result")["parameters"]
    assert not apart.all("checkpoint")
