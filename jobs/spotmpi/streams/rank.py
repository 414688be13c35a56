"""One rank of a pipeline: trains with the batches of its stream, or writes one result for each.

    python -m spotmpi.streams.rank train MODULE:FUNCTION
    python -m spotmpi.streams.rank predict MODULE:FUNCTION

Both functions get the `Stream`; one that trains continues from its checkpoint with ``batches.resume(position)``.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import re
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

from spotmpi.agent import protocol
from spotmpi.checkpoint.store import Unloadable
from spotmpi.streams.delivery import Delivery
from spotmpi.streams.errors import SourceError, StreamError, StreamLost, with_trace
from spotmpi.streams.order import DROP, FORMATS, KEEP, PARQUET, PREDICT, TRAIN, read_settings
from spotmpi.streams.sinks import FunctionSink, ResultFiles, Sink
from spotmpi.streams.sources import function
from spotmpi.streams.stream import Stream, stream
from spotmpi.streams.topic_sink import SinkIdentity, TopicSink
from spotmpi.streams.topics import is_topic

_OF_GPU = re.compile("accelerator|cuda|cudnn|cublas|nccl|hip error|out ?of ?memory", re.IGNORECASE)
TOPICS = "topics.json"  # in the folder of the stream: the topics to which results were written


def predict(name: str, batches: Stream, folder: Path) -> None:
    """Write the result that the function *name* yields for each batch; those that exist are not computed again.

    Raises:
        StreamError: it did not yield one result for each batch, or one that cannot be postprocessed or written.
    """
    sink = open_sink(batches, folder)
    batches.numbers = sink.missing(batches.numbers)
    delivery = Delivery(batches, name, sink)
    count = 0
    try:
        with loading_model(name, batches):
            results = enumerate(_results(name, function(name)(batches)), 1)
            first = next(results, None)
        for count, result in itertools.chain([first] if first else [], results):
            if count != batches.count:
                break
            delivery.add(batches.number, result)
        if count != batches.count or not batches.finished:
            raise StreamError(f"{name} has to yield one result for each batch: it yielded {count} for {batches.count}")
        delivery.finish()
    finally:
        delivery.cancel()


def _results(name: str, returned: Any) -> Iterable[Any]:
    """What the function *name* of a prediction returned, if there are results in it."""
    if not isinstance(returned, Iterable):
        remedy = f"let it yield one for each batch, or give it as train={name.partition(':')[2]} if it trains"
        raise StreamError(f"{name} returned {type(returned).__name__} in place of results: {remedy}")
    return returned


@contextlib.contextmanager
def loading_model(name: str, batches: Stream) -> Iterator[None]:
    """The function *name*, until it takes its first batch, loads the model that the spec names with `init`.

    Raises:
        StreamError: it cannot. Storage, memory and GPUs may fail for a while, so their errors stay as they are.
    """
    model = os.environ.get(protocol.ENV_INIT)
    try:
        yield
    except (StreamError, SourceError, StreamLost, OSError, MemoryError):
        raise
    except Exception as error:
        if model is None or batches.used or _OF_GPU.search(f"{type(error).__name__} {error}"):
            raise
        if isinstance(error, Unloadable):
            raise StreamError(str(error)) from error
        remedy = "correct the function, or name a model that it can load"
        cause = f"{type(error).__name__}: {error}"
        text = f"{name} failed before it took a batch, where it loads the model in {model}: {cause}; {remedy}"
        raise with_trace(text, error) from None


def open_sink(batches: Stream, folder: Path) -> Sink:
    """What takes the results of a stream's rank: files in *folder*, a topic, or the user's function."""
    write = batches.settings.write or PARQUET
    if is_topic(write):
        run, attempt = os.environ[protocol.ENV_RUN], int(os.environ[protocol.ENV_ATTEMPT])
        assert batches.broadcast  # in a run
        identity = SinkIdentity(run, attempt, batches.rank, batches.size)
        return TopicSink(write, identity, batches.broadcast, folder.with_name(TOPICS))
    return ResultFiles(folder, write) if write in FORMATS else FunctionSink(function(write))


def train(name: str, batches: Stream) -> None:
    """Call the function *name* with the batches, of which it takes at least one if there are any.

    Raises:
        StreamError: it took none.
    """
    with loading_model(name, batches):
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
    return settings._replace(last_batch=KEEP if settings.last_batch == DROP else settings.last_batch).to_json()


def main(arguments: list[str]) -> None:
    """Run the function that the arguments name."""
    mode, name = arguments
    sys.path[:1] = [str(Path.cwd())]  # where the code of the run is
    if mode == PREDICT and protocol.ENV_STREAM in os.environ:
        os.environ[protocol.ENV_STREAM] = every_row(os.environ[protocol.ENV_STREAM])
    gc.disable()  # to import Dask takes half a second, a tenth of it searches for garbage, which imports hardly make
    batches = stream()
    gc.enable()
    if mode == TRAIN:
        train(name, batches)
    else:
        predict(name, batches, Path(os.environ[protocol.ENV_STREAM_FOLDER], "results"))


if __name__ == "__main__":
    main(sys.argv[1:])
