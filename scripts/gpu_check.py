"""Runs every NCCL path of the training programs, and checkpoints of arrays on GPUs, or prints why it cannot.

What needs two ranks has them on one GPU where there is no other, as if they were on two nodes (`scripts.gpu_rank`).
Exit code 0 unless a path that could run failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotmpi.agent import protocol
from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError
from spotmpi.images import environment

_TRAINING = ("--batch-per-worker", "64", "--iterations", "200")
_IMAGES = ("--batch-per-worker", "16", "--iterations", "20", "--image-size", "128", "--classes", "10")
_DETECTION = ("--batch-per-worker", "8", "--iterations", "20")
_SECONDS = 300


@dataclass(frozen=True)
class Check:
    """One program with one method of exchanging gradients, on each GPU and on at least so many *ranks*."""

    image: str
    program: str
    options: tuple[str, ...]
    ranks: int = 1

    @property
    def title(self) -> str:
        """The title of its line of output."""
        return " ".join([self.image, self.program, *self.options, "on 1 rank" if self.ranks == 1 else ""]).rstrip()


CHECKS = (
    Check("chainermn", "allreduce", ("--communicator", "pure_nccl"), 2),
    Check("chainermn", "digits", ("--communicator", "pure_nccl")),
    Check("chainermn", "digits", ("--communicator", "pure_nccl"), 2),
    Check("chainermn", "digits", ("--communicator", "pure_nccl", "--allreduce-dtype", "fp16"), 2),
    # Gradients are an iteration late: with the usual learning rate it learns slower, also without a GPU.
    Check("chainermn", "digits", ("--communicator", "pure_nccl", "--double-buffering", "--learning-rate", "0.02"), 2),
    Check(
        "chainermn", "resnet50", ("--communicator", "pure_nccl", "--allreduce-dtype", "fp16", "--double-buffering"), 2
    ),
    Check("chainermn", "ssd", ("--communicator", "pure_nccl", "--synthetic")),
    Check("chainermn", "checkpoints", ("cupy",)),
    Check("pytorch", "checkpoints", ("torch",)),
    Check("pytorch", "allreduce", ("--backend", "nccl"), 2),
    Check("pytorch", "digits", ("--backend", "nccl")),
    Check("pytorch", "digits", ("--backend", "nccl"), 2),
    Check("pytorch", "digits", ("--backend", "nccl", "--ddp-hook", "fp16"), 2),
    Check("pytorch", "digits", ("--backend", "nccl", "--ddp-hook", "bf16", "--bucket-mb", "1"), 2),
    Check("pytorch", "resnet50", ("--backend", "nccl", "--ddp-hook", "fp16"), 2),
    Check("pytorch", "ssd", ("--backend", "nccl", "--synthetic", "--precision", "bf16"), 2),
)


def gpus() -> tuple[int, str]:
    """The number of NVIDIA GPUs, and the reason if there are none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0, "no NVIDIA GPU: nvidia-smi is not on PATH"
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True)
    count = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    output = (listed.stdout + listed.stderr).strip().splitlines()
    return count, "" if count else f"no NVIDIA GPU: nvidia-smi printed {output[0] if output else 'nothing'!r}"


def command(check: Check, folder: Path, gpus: int) -> list[str]:
    """The command that runs *check* on so many GPUs in the image's environment in *folder*."""
    size = {"digits": _TRAINING, "resnet50": _IMAGES, "ssd": _DETECTION}.get(check.program, ())
    is_ours = check.program == "checkpoints"
    module = "scripts.gpu_checkpoints" if is_ours else names.program_module(check.image, check.program)
    program = [module, *check.options, *size]
    if gpus < check.ranks:
        program = ["scripts.gpu_rank", *program]
    ranks = str(max(gpus, check.ranks))
    start = [str(folder / "bin" / "mpirun"), "-np", ranks, "--oversubscribe", "--bind-to", "none"]
    return [*start, str(folder / "bin" / "python"), "-m", *program]


def describe_result(check: Check, output: str, code: int) -> str:
    """``ok`` with the measurements, or ``failed`` with the reason."""
    records = [record for record in map(protocol.decode, output.splitlines()) if record]
    results = [values for kind, values in records if kind == protocol.RESULT]
    if code or not results:
        reasons = [str(values.get("reason")) for kind, values in records if kind == protocol.FATAL]
        lines = [line for line in output.splitlines() if line.strip() and not protocol.decode(line)]
        return f"failed (exit {code}): {(reasons or lines or ['no output'])[-1]}"
    result = results[-1]
    if check.program == "digits" and result["accuracy"] < 0.9:
        return f"failed: accuracy {result['accuracy']:.3f} after 200 iterations, at least 0.9 was expected"
    metrics = ("accuracy", "loss", "best_busbw")
    return "ok: " + ", ".join(f"{name} {result[name]:.4g}" for name in metrics if result.get(name) is not None)


def main(find: Callable[[], tuple[int, str]] = gpus, images: Sequence[str] = ()) -> int:
    """Run the checks, of these *images* alone where any are given, and print a line for each."""
    count, reason = find()
    failed = 0
    for check in CHECKS:
        if images and check.image not in images:
            continue
        outcome = _run(check, count) if count else f"not run: {reason}"
        failed += outcome.startswith("failed")
        print(f"{check.title}: {outcome}", flush=True)
    return 1 if failed else 0


def _run(check: Check, count: int) -> str:
    try:
        folder = environment.prepare(check.image, lambda text: print(text, file=sys.stderr), gpus=True)
        process = subprocess.run(
            command(check, folder, count),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": f"{names.SOURCE}:{names.PROJECT}",
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            },
            timeout=_SECONDS,
        )
    except SpotmpiError as problem:
        return f"failed: {problem}"
    except subprocess.TimeoutExpired:
        return f"failed: did not finish within {_SECONDS} s"
    return describe_result(check, process.stdout, process.returncode)


if __name__ == "__main__":
    sys.exit(main(images=sys.argv[1:]))
