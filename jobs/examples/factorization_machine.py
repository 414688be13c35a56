"""A factorization machine whose batches CPU workers prepare: ratings, with negative samples for each.

It runs alone and under mpirun, saves its position with its parameters, and continues from there. Ratings are made up in
the sizes and the skew of MovieLens 1M, or come from a `ratings.csv` of MovieLens, or of `movielens.py`.
"""

import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import spotmpi

USERS, ITEMS, FACTORS = 6040, 3706, 8  # those of MovieLens 1M; ids of larger sets share a row of the model
ROWS, NEGATIVES = 512, 4  # ratings of a made-up batch, and samples for each rating
USER_SKEW, ITEM_SKEW = 1.15, 1.5  # of the logarithm of how much a user rates, and how often a movie is rated
RATE = 0.5
SAVE_EVERY = 10  # batches

Batch = tuple[Any, Any, Any]


@functools.cache
def shares(count: int, skew: float, seed: int) -> Any:
    """The share of each of *count* users or movies in all ratings: few have most of them."""
    weights = np.random.default_rng(seed).lognormal(sigma=skew, size=count)
    return weights / weights.sum()


def ratings(number: int) -> dict[str, Any]:
    """Batch *number* of the source, made up, with columns as `ratings.csv` has them."""
    generator = np.random.default_rng(number)
    users = generator.choice(USERS, ROWS, p=shares(USERS, USER_SKEW, 0)) + 1
    movies = generator.choice(ITEMS, ROWS, p=shares(ITEMS, ITEM_SKEW, 1)) + 1
    return {"userId": users, "movieId": movies}


def prepare(rows: dict[str, Any], seed: int) -> Batch:
    """Users, items and labels: each rating with random items that stand for ratings that do not exist."""
    generator = np.random.default_rng(seed)
    rated_by, rated = rows["userId"] % USERS, rows["movieId"] % ITEMS
    count = len(rated)
    users = np.concatenate([rated_by, np.repeat(rated_by, NEGATIVES)])
    items = np.concatenate([rated, generator.integers(0, ITEMS, count * NEGATIVES)])
    labels = np.concatenate([np.ones(count), np.zeros(count * NEGATIVES)])
    return users, items, labels


class Model:
    """One row for each user and each item, and a last one for all: factors, and a linear weight in the last column."""

    def __init__(self) -> None:
        self.parameters = np.random.default_rng(0).normal(scale=0.1, size=(USERS + ITEMS + 1, FACTORS + 1))
        self.parameters[:, FACTORS] = 0

    def gradient(self, batch: Batch) -> tuple[Any, float]:
        """The gradient, each row's the mean over its samples, and the mean logistic loss."""
        users, items, labels = batch
        own, other = self.parameters[users], self.parameters[USERS + items]
        pairs = np.einsum("ij,ij->i", own[:, :FACTORS], other[:, :FACTORS])
        scores = pairs + own[:, FACTORS] + other[:, FACTORS] + self.parameters[-1, FACTORS]
        errors = 1 / (1 + np.exp(-scores)) - labels
        own[:, FACTORS] = other[:, FACTORS] = 1  # what linear weights are multiplied with
        gradient = np.zeros_like(self.parameters)
        np.add.at(gradient, users, errors[:, None] * other)
        np.add.at(gradient, USERS + items, errors[:, None] * own)
        gradient[-1, FACTORS] = errors.sum()
        counts = np.bincount(np.concatenate([users, USERS + items]), minlength=len(gradient))
        counts[-1] = len(errors)
        gradient /= np.maximum(counts, 1)[:, None]
        return gradient, float(np.mean(np.logaddexp(0, scores) - labels * scores))

    def update(self, gradient: Any) -> None:
        """One step of stochastic gradient descent."""
        self.parameters -= RATE * gradient

    def checksum(self) -> str:
        """A digest of all parameters: equal only for the same ones."""
        return hashlib.sha256(self.parameters.tobytes()).hexdigest()[:16]

    def save(self, path: Path, position: int) -> None:
        """Write a checkpoint: complete or absent."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name("partial.npz")
        np.savez(partial, parameters=self.parameters, position=position)
        partial.replace(path)

    def load(self, path: Path) -> int:
        """Read a checkpoint; the position of the stream."""
        with np.load(path) as saved:
            self.parameters = saved["parameters"]
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
