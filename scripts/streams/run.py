"""Start the prediction by a stream: `python -m scripts.streams.run SET TARGET [KEY=VALUE ...]`."""

import sys

import spotmpi
from scripts.streams import flow, work


def main(source: str, target: str, *overrides: str) -> None:
    """Predict the data set on a target, with the resources of run.toml and 16 workers."""
    workers = {"count": 16, "node_groups": ["cpu"]}
    pipeline = spotmpi.pipeline(
        source, work.light, predict=flow.predict, batch=work.BATCH, write="parquet", workers=workers
    )
    pipeline.run("scripts/streams/run.toml", overrides, on=target)


if __name__ == "__main__":
    main(*sys.argv[1:])
