"""One rank of a pipeline: trains with the batches of its stream, or writes one result for each.

    python -m spotmpi.streams.rank train MODULE:FUNCTION
    python -m spotmpi.streams.rank predict MODULE:FUNCTION

Both functions get the `Stream`; one that trains continues from its checkpoint with ``batches.resume(position)``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

from spotmpi.agent import protocol
from spotmpi.streams.errors import StreamError
from spotmpi.streams.order import DROP, KEEP, PARQUET, PREDICT, TRAIN, read_settings
from spotmpi.streams.results import ResultFiles, writer
from spotmpi.streams.sources import function
from spotmpi.streams.stream import Stream, stream


def predict(name: str, batches: Stream, folder: Path) -> None:
    """Write the result that the function *name* yields for each batch; those that exist are not computed again.

    Raises:
        StreamError: it did not yield one result for each batch.
    """
    write = writer(batches.settings.write or PARQUET, folder)
    if isinstance(write, ResultFiles):
        batches.numbers = write.missing(batches.numbers)
        write = write.write
    count = 0
    for count, result in enumerate(function(name)(batches), 1):
        if count != batches.count:
            break
        write(result, batches.number)
    if count != batches.count or not batches.finished:
        raise StreamError(f"{name} yielded {count} results for {batches.count} batches: yield one for each batch")


def train(name: str, batches: Stream) -> None:
    """Call the function *name* with the batches, of which it takes at least one if there are any.

    Raises:
        StreamError: it took none.
    """
    result = function(name)(batches)
    if isinstance(result, Iterator | AsyncIterator):
        remedy = f"give it as predict={name.partition(':')[2]}"
        raise StreamError(f"{name} has returned a generator, which computes nothing by itself: {remedy}")
    if not batches.used:
        remedy = "iterate over its argument, for batch in batches"
        raise StreamError(f"{name} has taken no batch of the stream: {remedy}")


def every_row(text: str) -> str:
    """The settings of a stream for a prediction, which has a result for each row: incomplete batches are kept."""
    settings = read_settings(text)
    return replace(settings, last_batch=KEEP if settings.last_batch == DROP else settings.last_batch).to_json()


def main(arguments: list[str]) -> None:
    """Run the function that the arguments name."""
    mode, name = arguments
    sys.path[:1] = [str(Path.cwd())]  # where the code of the run is
    if mode == PREDICT and protocol.ENV_STREAM in os.environ:
        os.environ[protocol.ENV_STREAM] = every_row(os.environ[protocol.ENV_STREAM])
    batches = stream()
    if mode == TRAIN:
        train(name, batches)
    else:
        predict(name, batches, Path(os.environ[protocol.ENV_STREAM_FOLDER], "results"))


if __name__ == "__main__":
    main(sys.argv[1:])
