"""What both sides share: raw files in the shape of MovieLens, and what becomes of a part of them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.csv

from spotmpi.core import names

USERS, MOVIES = 138_493, 26_744  # of MovieLens 20M
ROWS = 1 << 20  # of a part, about 26 MB
DIFFERENT = 8  # parts that are drawn; further ones repeat their rows, each with a first row of its own


def write_raw(folder: Path, parts: int) -> int:
    """Write so many files of ratings, and the movies; the bytes of the ratings."""
    sys.path.insert(0, str(names.EXAMPLES))
    example, movielens = map(importlib.import_module, ("factorization_machine", "movielens"))

    folder.mkdir(parents=True)
    generator = np.random.default_rng(1)
    users, movies = example.shares(USERS, example.USER_SKEW, 2), example.shares(MOVIES, example.ITEM_SKEW, 3)
    bodies = []
    for number in range(parts):
        if number < DIFFERENT:
            columns = {
                "userId": generator.choice(USERS, ROWS, p=users) + 1,
                "movieId": generator.choice(MOVIES, ROWS, p=movies) + 1,
                "rating": generator.choice(movielens.STARS, ROWS, p=movielens.STAR_SHARES).astype(float),
                "timestamp": generator.integers(movielens.BEGIN, movielens.END, ROWS),
            }
            sink = pyarrow.BufferOutputStream()
            pyarrow.csv.write_csv(pyarrow.table(columns), sink)
            bodies.append(sink.getvalue().to_pybytes().partition(b"\n"))
        head, _, body = bodies[number % DIFFERENT]
        (folder / f"ratings-{number:05}.csv").write_bytes(head + b"\n%d,1,3.0,956703932\n" % (number + 1) + body)
    years = pyarrow.table({"movieId": np.arange(1, MOVIES + 1), "year": generator.integers(1930, 2003, MOVIES)})
    pyarrow.csv.write_csv(years, folder.parent / "movies.csv")
    return sum(path.stat().st_size for path in folder.iterdir())


def clean(ratings: Any, movies: Any, least: float) -> Any:
    """The *ratings* of at least *least* stars, with the age of the movie in years and the time as one."""
    kept = ratings.filter(pyarrow.compute.greater_equal(ratings["rating"], least))
    years = np.zeros(int(movies["movieId"].to_numpy().max()) + 1, np.int64)
    years[movies["movieId"].to_numpy()] = movies["year"].to_numpy()
    times = kept["timestamp"].to_numpy().astype("datetime64[s]")
    age = times.astype("datetime64[Y]").astype(np.int64) + 1970 - years[kept["movieId"].to_numpy()]
    return pyarrow.table(
        {"user": kept["userId"], "movie": kept["movieId"], "stars": kept["rating"], "age": age, "time": times}
    )
