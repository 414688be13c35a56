"""The program of the endurance test, in pods and on this machine: it trains until a file says after which iteration.

    python3 endurance_program.py FOLDER PACE

FOLDER is not on the run volume, which is full at times; the file `stop` in it names the last iteration. An iteration
takes at least PACE seconds. Batches come from the run's stream, where it has one, else from `rows`, and are the same.
Each iteration has four parts, one for each of four ranks; a single rank does all of them. Rank 0 records each iteration
with the samples in its update. Gradients are summed part by part, as MPI may add those of several ranks in any order,
and without BLAS.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

PARTS = 4  # of an iteration, each with a batch
WIDTH, BATCH, LENGTH = 64, 4, 256  # of a sample, of a batch, batches of an epoch
RATE, MOMENTUM = 0.02, 0.9


def rows(number: int) -> dict[str, Any]:
    """Batch *number* of an epoch: the numbers of its samples."""
    return {"sample": np.arange(number * BATCH, (number + 1) * BATCH)}


class Training:
    """A linear model of made-up samples, and a digest of all samples that went into it, in their order."""

    def __init__(self) -> None:
        self.iteration = 0
        self._state: dict[str, Any] = {"parameters": np.zeros(WIDTH), "velocity": np.zeros(WIDTH), "samples": ""}

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return self._state

    def restore(self, iteration: int, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.iteration, self._state = iteration, state

    def gradient(self, samples: Any) -> Any:
        """The sum of the gradients of some samples."""
        inputs = np.sin(np.outer(samples + 1.0, np.arange(1.0, WIDTH + 1.0)))
        errors = (inputs * self._state["parameters"]).sum(axis=1) - np.cos(samples)
        return (errors[:, None] * inputs).sum(axis=0)

    def update(self, parts: list[tuple[list[int], Any]]) -> list[int]:
        """Make the update of the samples and gradients of all parts; the samples."""
        samples = [number for of_part, _ in parts for number in of_part]
        total = sum((gradient for _, gradient in parts), np.zeros(WIDTH))
        velocity = MOMENTUM * self._state["velocity"] - RATE / len(samples) * total
        text = f"{self._state['samples']} {samples}"
        self._state = {
            "parameters": self._state["parameters"] + velocity,
            "velocity": velocity,
            "samples": hashlib.sha256(text.encode()).hexdigest(),
        }
        self.iteration += 1
        return samples

    def digest(self) -> str:
        """The SHA-256 of the parameters, and of the order of all samples."""
        content = self._state["parameters"].tobytes() + self._state["samples"].encode()
        return hashlib.sha256(content).hexdigest()


class TorchRanks:
    """All ranks of torchrun, as far as `train` needs what mpi4py has of its own."""

    def __init__(self) -> None:
        from torch import distributed

        distributed.init_process_group("gloo")
        self._distributed = distributed
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def allgather(self, value: Any) -> list[Any]:
        """The values of all ranks, on each."""
        found: list[Any] = [None] * self.size
        self._distributed.all_gather_object(found, value)
        return found


def all_ranks() -> Any:
    """Those of mpirun, or of torchrun."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return TorchRanks()
    from mpi4py import MPI

    return MPI.COMM_WORLD


def batches(parts: list[int], start: int) -> Iterator[list[Any]]:
    """The samples of these parts of each iteration from *start* on, without end."""
    if "SPOTMPI_STREAM" in os.environ:
        import spotmpi

        return ([batch["sample"]] for batch in spotmpi.stream(start=start * PARTS))
    return ([rows((at * PARTS + part) % LENGTH)["sample"] for part in parts] for at in itertools.count(start))


def train(folder: Path, pace: float) -> None:
    """Train in step with all ranks."""
    import spotmpi

    ranks, training = all_ranks(), Training()
    own_parts = [part for part in range(PARTS) if part % ranks.size == ranks.rank]
    if (found := spotmpi.checkpoint.load()) is not None:
        training.restore(found.iteration, found.state)
    own = {"attempt": os.environ["SPOTMPI_ATTEMPT"], "rank": 0, "host": socket.gethostname(), "pid": os.getpid()}
    name = f"{own['attempt']}-{own['host']}-{own['pid']}.jsonl" if ranks.rank == 0 else os.devnull
    with (folder / "records" / name).open("a", buffering=1) as records:
        for of_parts in batches(own_parts, training.iteration):
            began = time.monotonic()
            until = last(folder) if ranks.rank == 0 else 0
            gathered = ranks.allgather(([(each.tolist(), training.gradient(each)) for each in of_parts], until))
            time.sleep(max(0.0, pace - (time.monotonic() - began)))
            samples = training.update([part for of_rank, _ in gathered for part in of_rank])
            # By the clock of the machine that nobody sets: those of pods differ here.
            done = {"time": time.monotonic(), "iteration": training.iteration, "parameters": training.digest()}
            records.write(json.dumps({**done, **own, "samples": samples}) + "\n")
            if ranks.rank == 0:
                print(f"step {training.iteration}", flush=True)
            ends = training.iteration >= gathered[0][1]
            spotmpi.checkpoint.save(training.iteration, training.state, now=ends)
            if ends:
                break
    if ranks.rank == 0:
        result = {"iteration": training.iteration, "parameters": training.digest()}
        (folder / "result.json").write_text(json.dumps(result))


def last(folder: Path) -> int:
    """The iteration after which training ends."""
    try:
        return int((folder / "stop").read_text())
    except FileNotFoundError:
        return sys.maxsize


if __name__ == "__main__":
    train(Path(sys.argv[1]), float(sys.argv[2]))
