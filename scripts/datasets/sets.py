"""The data set of spotmpi: `python -m scripts.datasets.sets RAW MOVIES LEAST`."""

import sys

import spotmpi
from scripts.datasets import work


@spotmpi.dataset(workers=4)
def ratings(raw: spotmpi.Source, movies: spotmpi.Source, least: float):  # type: ignore[no-untyped-def]
    """The ratings that are kept."""
    return work.clean(raw.table, movies.table, least)


if __name__ == "__main__":
    print(ratings(sys.argv[1], sys.argv[2], float(sys.argv[3])).path)
