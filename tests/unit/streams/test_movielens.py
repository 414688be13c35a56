"""The made-up ratings of the examples have the shape of MovieLens, and its file is a source of the same stream."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow.csv
import pytest

from spotmpi.core import names
from spotmpi.streams.stream import Stream
from tests.unit.streams.conftest import InProcess
from tests.unit.streams.data import order_of


@pytest.fixture(scope="module")
def movielens() -> Iterator[ModuleType]:
    """The module of the example, which imports that of the model."""
    sys.path.insert(0, str(names.EXAMPLES))
    yield importlib.import_module("movielens")
    sys.path.remove(str(names.EXAMPLES))
    for name in ("movielens", "factorization_machine"):
        sys.modules.pop(name)


@pytest.fixture(scope="module")
def ratings(movielens: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of the size of MovieLens 100K."""
    path = tmp_path_factory.mktemp("movielens") / "ratings.csv"
    movielens.main([str(path), "--set", "100k"])
    return path


def test_ratings_have_the_size_and_the_skew_of_the_real_set(ratings: Path) -> None:
    table = pyarrow.csv.read_csv(ratings)
    assert table.column_names == ["userId", "movieId", "rating", "timestamp"]
    users, movies, stars = (table[name].to_numpy() for name in ("userId", "movieId", "rating"))
    per_user, per_movie = np.bincount(users)[1:], np.bincount(movies, minlength=1683)[1:]
    assert (len(table), len(per_user), len(per_movie)) == (100_000, 943, 1682)
    assert len(set(zip(users, movies, strict=True))) == 100_000  # nobody rates a movie twice
    assert per_user.min() >= 20
    assert 50 < np.median(per_user) < 80  # 65 in the real set
    assert 15 < np.median(per_movie) < 40  # 27
    assert 500 < per_movie.max() < 943  # 583
    assert 3.4 < stars.mean() < 3.7  # 3.53


def test_a_seed_gives_the_same_file_and_another_one_does_not(movielens: ModuleType, tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(3)]
    for path, seed in zip(files, (0, 0, 1), strict=True):
        movielens.write_ratings(path, 40, 100, 1500, seed)
    first, again, other = (path.read_bytes() for path in files)
    assert first == again != other
    assert first.count(b"\n") == 1501


def test_the_factorization_machine_learns_from_the_file(
    movielens: ModuleType, ratings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_CHECKPOINT_PATH", str(tmp_path))
    machine = sys.modules["factorization_machine"]
    order = order_of(ratings, 2000, shuffle=True, prepare="factorization_machine:prepare")

    def train() -> tuple[str, float]:
        stream = Stream(order, InProcess().submit, 0, 0, 1)
        model = machine.train(stream)
        (tmp_path / "model.npz").unlink()
        return model.checksum(), model.gradient(next(iter(stream)))[1]

    first, second = train(), train()
    assert first == second
    assert first[1] < 0.5 < machine.Model().gradient(next(iter(Stream(order, InProcess().submit, 0, 0, 1))))[1]
