"""Write a `ratings.csv` in the sizes and the skew of one of MovieLens' sets, always the same for a seed.

    python3 jobs/examples/movielens.py ratings.csv --set 1m

Each user rates at least 20 movies, each of them once; few users and few movies have most of the ratings.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from factorization_machine import ITEM_SKEW, USER_SKEW, shares

SETS = {"100k": (943, 1682, 100_000), "1m": (6040, 3706, 1_000_209), "20m": (138_493, 26_744, 20_000_263)}
LEAST = 20  # ratings of a user
STARS, STAR_SHARES = (1, 2, 3, 4, 5), (0.056, 0.107, 0.261, 0.349, 0.227)  # of MovieLens 1M
BEGIN, END = 956_703_932, 1_046_454_590  # seconds: when its ratings were made


def ratings_per_user(users: int, movies: int, ratings: int, seed: int) -> Any:
    """How many movies each user rates; *ratings* in all."""
    share = shares(users, USER_SKEW, seed)
    counts = np.minimum(LEAST + np.floor(share * (ratings - LEAST * users)).astype(np.int64), movies)
    order, missing = np.argsort(-share), ratings - counts.sum()
    while missing:  # what rounding and the number of movies took away
        open_users = order[counts[order] < movies][:missing]
        counts[open_users] += 1
        missing -= len(open_users)
    return counts


def write_ratings(path: Path, users: int, movies: int, ratings: int, seed: int) -> None:
    """Write the file, user by user."""
    generator = np.random.default_rng(seed)
    popularity = np.log(shares(movies, ITEM_SKEW, seed + 1))
    counts = ratings_per_user(users, movies, ratings, seed)
    with path.open("w", encoding="utf-8") as file:
        file.write("userId,movieId,rating,timestamp\n")
        for user, count in enumerate(counts, 1):
            # The greatest sums with Gumbel noise are a sample without replacement by these weights.
            keys = popularity + generator.gumbel(size=movies)
            rated = np.argpartition(-keys, count - 1)[:count] + 1
            stars = generator.choice(STARS, count, p=STAR_SHARES)
            times = np.sort(generator.integers(BEGIN, END, count))
            file.writelines(
                f"{user},{movie},{star}.0,{time}\n" for movie, star, time in zip(rated, stars, times, strict=True)
            )


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--set", choices=SETS, default="1m", help="which one's sizes")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    write_ratings(options.file, *SETS[options.set], options.seed)


if __name__ == "__main__":
    main()
