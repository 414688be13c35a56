"""The training program of the fault benchmark, the same for all sides: a script as its user would write it.

    python train.py FOLDER SEED EVERY PACE [--with gloo|mpi|torchft] [--until N]

FOLDER is on a volume that all pods share: rank 0 writes a checkpoint there after each EVERY iterations, atomically, and
each start resumes from it. An iteration takes at least PACE seconds. Each rank records its iterations: time, parameters
(SHA-256), and the samples that went into the update, which are summed with the gradients. It ends after iteration N, or
after that which the file `stop` names. It needs nothing but PyTorch, and mpi4py or torchft.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

SAMPLES, WIDTH = 4096, 64
BATCH = 16  # of each rank


class Gloo:
    """Ranks of torch.distributed, as torchrun starts them."""

    def __init__(self) -> None:
        from torch import distributed

        distributed.init_process_group("gloo")
        self._distributed = distributed
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def from_rank_0(self, value: Any) -> Any:
        """The value of rank 0, on all ranks."""
        values = [value]
        self._distributed.broadcast_object_list(values)
        return values[0]

    def add(self, numbers: torch.Tensor) -> None:
        """Make *numbers* the sum of those of all ranks."""
        self._distributed.all_reduce(numbers)

    def end(self) -> None:
        """Leave together."""
        self._distributed.barrier()
        self._distributed.destroy_process_group()


class Mpi:
    """Ranks of MPI, as mpirun starts them."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi, self._world = MPI, MPI.COMM_WORLD
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()

    def from_rank_0(self, value: Any) -> Any:
        """The value of rank 0, on all ranks."""
        return self._world.bcast(value)

    def add(self, numbers: torch.Tensor) -> None:
        """Make *numbers* the sum of those of all ranks."""
        self._world.Allreduce(self._mpi.IN_PLACE, numbers.numpy())

    def end(self) -> None:
        """Leave together."""
        self._world.Barrier()


class Training:
    """A small network, its optimizer and its samples, all from one seed."""

    def __init__(self, seed: int, ranks: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.seed, self.ranks, self.iteration = seed, ranks, 0
        self._inputs = torch.randn(SAMPLES, WIDTH)
        self._targets = torch.tanh(self._inputs @ torch.randn(WIDTH, WIDTH))
        self._model = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, WIDTH))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.05, momentum=0.9)
        self._order: tuple[int, torch.Tensor] = (-1, torch.empty(0))

    def samples(self, iteration: int, rank: int) -> list[int]:
        """The samples of a rank in an iteration, counted over all epochs."""
        first = ((iteration - 1) * self.ranks + rank) * BATCH
        epoch, at = divmod(first, SAMPLES)
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(self.seed * 1000 + epoch)
            self._order = epoch, torch.randperm(SAMPLES, generator=generator)
        return [epoch * SAMPLES + int(number) for number in self._order[1][at : at + BATCH]]

    def gradients(self, samples: list[int], rank: int) -> torch.Tensor:
        """The gradients of a rank's samples, and behind them the samples in the rank's place, plus one."""
        rows = torch.tensor([number % SAMPLES for number in samples])
        self._optimizer.zero_grad()
        nn.functional.mse_loss(self._model(self._inputs[rows]), self._targets[rows]).backward()
        used = torch.zeros(self.ranks, BATCH)
        used[rank] = torch.tensor([number + 1.0 for number in samples])
        return torch.cat([*(value.grad.flatten() for value in self._model.parameters()), used.flatten()])

    def update(self, sums: torch.Tensor, ranks: int) -> list[int]:
        """Make the update of the sums over so many ranks; the samples that are in it."""
        at = 0
        for value in self._model.parameters():
            value.grad = (sums[at : at + value.numel()] / ranks).view_as(value)
            at += value.numel()
        self._optimizer.step()
        self.iteration += 1
        return [round(number) - 1 for number in sums[at:].tolist() if number > 0]

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "iteration": self.iteration,
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.iteration = state["iteration"]

    def parameters(self) -> str:
        """The SHA-256 of all parameters."""
        digest = hashlib.sha256()
        for value in self._model.parameters():
            digest.update(value.detach().numpy().tobytes())
        return digest.hexdigest()


class Folder:
    """The files that outlive the processes."""

    def __init__(self, path: Path, every: int) -> None:
        self._path, self._every = path, every
        (path / "records").mkdir(parents=True, exist_ok=True)

    def checkpoint(self) -> dict[str, Any] | None:
        """The newest checkpoint."""
        path = self._path / "checkpoint.pt"
        return torch.load(path, weights_only=True) if path.exists() else None

    def save(self, training: Training, **more: Any) -> None:
        """Write the checkpoint that is due after this iteration, with *more* than its state, or nothing."""
        if training.iteration % self._every == 0:
            self._write("checkpoint.pt", lambda path: torch.save({**training.state(), **more}, path))

    def last(self, until: int) -> int:
        """The iteration after which training ends."""
        try:
            return int((self._path / "stop").read_text())
        except FileNotFoundError:
            return until

    def finish(self, training: Training) -> None:
        """Say that training has ended, and with which parameters."""
        result = json.dumps({"iteration": training.iteration, "parameters": training.parameters()})
        self._write("result.json", lambda path: path.write_text(result))

    def recorder(self, rank: int, attempt: str) -> Callable[[Training, list[int]], None]:
        """What records an iteration that is done, with the samples of its update."""
        name = f"{rank}-{attempt}-{os.getpid()}.jsonl"
        # Open as long as the process; each line is written at once.
        file = (self._path / "records" / name).open("a", buffering=1)
        own = {"attempt": attempt, "rank": rank, "host": socket.gethostname().partition(".")[0], "pid": os.getpid()}

        def record(training: Training, samples: list[int]) -> None:
            done = {"time": time.time(), "iteration": training.iteration, "parameters": training.parameters()}
            file.write(json.dumps({**done, **own, "samples": samples}) + "\n")

        return record

    def _write(self, name: str, write: Callable[[Path], object]) -> None:
        aside = self._path / f".{name}-{uuid.uuid4().hex[:8]}"
        write(aside)
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.replace(self._path / name)


def train(ranks: Gloo | Mpi, folder: Folder, options: argparse.Namespace) -> None:
    """Train in step with all ranks; where one is lost the others fail, and all start again from the checkpoint."""
    training = Training(options.seed, ranks.size)
    state, attempt = ranks.from_rank_0((folder.checkpoint(), uuid.uuid4().hex[:8]))
    if state is not None:
        training.restore(state)
    record = folder.recorder(ranks.rank, attempt)
    while training.iteration < folder.last(options.until):
        began = time.monotonic()
        samples = training.samples(training.iteration + 1, ranks.rank)
        sums = training.gradients(samples, ranks.rank)
        time.sleep(max(0.0, options.pace - (time.monotonic() - began)))
        ranks.add(sums)
        record(training, training.update(sums, ranks.size))
        if ranks.rank == 0:
            print(f"step {training.iteration}", flush=True)
            folder.save(training)
    if ranks.rank == 0:
        folder.finish(training)
    ranks.end()


def train_with_torchft(folder: Folder, options: argparse.Namespace) -> None:
    """Train as one replica group of one rank: it goes on without the others, and those that come back get its state."""
    from datetime import timedelta

    from torch.distributed import ReduceOp, TCPStore
    from torchft import Manager, ProcessGroupGloo

    rank, size = int(os.environ["REPLICA"]), int(os.environ["REPLICAS"])
    training = Training(options.seed, size)
    address = socket.gethostbyname(socket.gethostname())  # by which the other pods find this one
    store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=training.restore,
        state_dict=training.state,
        min_replica_size=1,
        use_async_quorum=False,
        init_sync=False,
        replica_id=f"replica_{rank}",
        store_addr=address,
        store_port=store.port,
        hostname=address,
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=10),
    )
    if (state := folder.checkpoint()) is not None:
        training.restore(state)
        manager.load_state_dict(state["manager"])
    record = folder.recorder(rank, uuid.uuid4().hex[:8])
    while training.iteration < folder.last(options.until):
        began = time.monotonic()
        manager.start_quorum()
        training.iteration = manager.current_step()
        samples = training.samples(training.iteration + 1, rank)
        sums = training.gradients(samples, rank)
        time.sleep(max(0.0, options.pace - (time.monotonic() - began)))
        manager.allreduce(sums, reduce_op=ReduceOp.SUM).wait()
        if not manager.should_commit():
            continue
        record(training, training.update(sums, manager.num_participants()))
        if manager.participating_rank() == 0:
            print(f"step {training.iteration}", flush=True)
            folder.save(training, manager=manager.state_dict())
    if manager.participating_rank() == 0:
        folder.finish(training)
    manager.shutdown(wait=False)


def main() -> None:
    """Train until the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("every", type=int)
    parser.add_argument("pace", type=float)
    parser.add_argument("--with", dest="library", choices=("gloo", "mpi", "torchft"), default="gloo")
    parser.add_argument("--until", type=int, default=1_000_000)
    options = parser.parse_args()
    folder = Folder(options.folder, options.every)
    if options.library == "torchft":
        train_with_torchft(folder, options)
    else:
        train(Mpi() if options.library == "mpi" else Gloo(), folder, options)


if __name__ == "__main__":
    main()
