"""A factorization machine whose batches CPU workers prepare: ratings, with negative samples for each.

It runs alone and under mpirun, saves its position with its parameters, and continues from there.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import spotmpi

USERS, ITEMS, FACTORS = 6040, 3706, 8  # those of MovieLens 1M
ROWS, NEGATIVES = 512, 4  # ratings of a batch, and samples for each of them
RATE = 0.05
SAVE_EVERY = 10  # batches

Batch = tuple[Any, Any, Any]


def ratings(number: int) -> dict[str, Any]:
    """Batch *number* of the source: made up, with few items that have most of the ratings."""
    generator = np.random.default_rng(number)
    items = np.minimum(ITEMS - 1, generator.pareto(1.0, ROWS) * 40).astype(np.int64)
    return {"user": generator.integers(0, USERS, ROWS), "item": items}


def prepare(rows: dict[str, Any], seed: int) -> Batch:
    """Users, items and labels: each rating with random items that stand for ratings that do not exist."""
    generator = np.random.default_rng(seed)
    negatives = generator.integers(0, ITEMS, ROWS * NEGATIVES)
    users = np.concatenate([rows["user"], np.repeat(rows["user"], NEGATIVES)])
    items = np.concatenate([rows["item"], negatives])
    labels = np.concatenate([np.ones(ROWS), np.zeros(ROWS * NEGATIVES)])
    return users, items, labels


class Model:
    """Factors of users and items in one array each, by stochastic gradient descent."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self.users = generator.normal(scale=0.1, size=(USERS, FACTORS))
        self.items = generator.normal(scale=0.1, size=(ITEMS, FACTORS))

    def gradient(self, batch: Batch) -> tuple[Any, float]:
        """The gradient of both arrays, one above the other, and the mean logistic loss."""
        users, items, labels = batch
        scores = np.einsum("ij,ij->i", self.users[users], self.items[items])
        errors = 1 / (1 + np.exp(-scores)) - labels
        gradient = np.zeros((USERS + ITEMS, FACTORS))
        np.add.at(gradient, users, errors[:, None] * self.items[items])
        np.add.at(gradient, USERS + items, errors[:, None] * self.users[users])
        return gradient, float(np.mean(np.logaddexp(0, scores) - labels * scores))

    def update(self, gradient: Any) -> None:
        """One step against the gradient."""
        self.users -= RATE * gradient[:USERS]
        self.items -= RATE * gradient[USERS:]

    def checksum(self) -> str:
        """A digest of all parameters: equal only for the same ones."""
        return hashlib.sha256(self.users.tobytes() + self.items.tobytes()).hexdigest()[:16]

    def save(self, path: Path, position: int) -> None:
        """Write a checkpoint: complete or absent."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name("partial.npz")
        np.savez(partial, users=self.users, items=self.items, position=position)
        partial.replace(path)

    def load(self, path: Path) -> int:
        """Read a checkpoint; the position of the stream."""
        with np.load(path) as saved:
            self.users, self.items = saved["users"], saved["items"]
            return int(saved["position"])


def train(batches: Any, after_step: Callable[[int], None] = lambda position: None) -> Model:
    """Train with the batches of a stream, from the newest checkpoint on."""
    model, path = Model(), Path(os.environ["SPOTMPI_CHECKPOINT_PATH"], "model.npz")
    if path.exists():
        batches = batches.resume(model.load(path))
    for batch in batches:
        gradient, loss = model.gradient(batch)
        model.update(mean(gradient, batches.size))
        step = batches.position // batches.size
        if batches.rank == 0 and step % SAVE_EVERY == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
            model.save(path, batches.position)
        after_step(batches.position)
    print(f"checksum {model.checksum()}", flush=True)
    return model


def mean(gradient: Any, size: int) -> Any:
    """The mean over all ranks."""
    if size == 1:
        return gradient
    from mpi4py import MPI

    total = np.empty_like(gradient)
    MPI.COMM_WORLD.Allreduce(gradient, total)
    return total / size


if __name__ == "__main__":
    train(spotmpi.stream())
