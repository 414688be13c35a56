"""The prediction by a stream of spotmpi: `python flow.py SET TARGET`, with the resources of run.toml."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import spotmpi
from scripts.streams import work


def predict(batches: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """The scores of each batch."""
    for batch in batches:
        yield work.score(batch)


def main(source: str, target: str) -> None:
    """Predict the data set on a target."""
    workers = {"nodes": 16, "node_groups": ["cpu"]}
    flow = spotmpi.pipeline(source, work.light, predict=predict, batch=work.BATCH, write="parquet", workers=workers)
    flow.run("run.toml", on=target)


if __name__ == "__main__":
    main(*sys.argv[1:])
