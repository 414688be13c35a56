"""The batches of a rank, equal whether its own loader prepares them or workers of the run's stream (``--batches``)."""

import functools
import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from spotmpi.programs.exits import Failed, Fatal
from spotmpi.programs.loader import Loader, load
from spotmpi.programs.options import LOADER, TrainingOptions
from spotmpi.programs.sampling import Batching, Dataset, Order
from spotmpi.programs.world import World


class DataSource(NamedTuple):
    """How another process loads the training data: a function (``module:function``) and its arguments, JSON values."""

    function: str
    arguments: dict[str, Any]


class Input(NamedTuple):
    """The training data, and how its batches are divided between the ranks."""

    dataset: Dataset
    batching: Batching
    source: DataSource | None = None


@contextmanager
def rank_batches(
    data: Input, options: TrainingOptions, world: World, position: int, count: int
) -> Iterator[Iterator[Any]]:
    """The *count* batches of this rank from the iteration on whose global batch starts at sample *position*."""
    if options.batches == LOADER:
        order = Order(options.seed, len(data.dataset))
        with Loader(data.dataset, order, data.batching, world.rank, options.loader_processes) as loader:
            yield loader.batches(position)
    else:
        batches = _streamed(data, options, world, position, count)
        yield batches
        next(batches, None)  # after the last one the stream is at its end


def _streamed(data: Input, options: TrainingOptions, world: World, position: int, count: int) -> Iterator[Any]:
    """The same batches from workers: batch *k* of the stream is the *k*-th share of a rank since the first sample."""
    import spotmpi

    if data.source is None:
        raise Fatal("--batches stream: this program does not say how workers load its data; use --batches loader")
    share = data.batching.per_rank
    start, offset = divmod(position, share)  # after a resume with another number of ranks the shares are shifted
    fingerprint = data.dataset.fingerprint()
    source = spotmpi.FunctionSource(
        "spotmpi.programs.batches:prepare",
        {
            "source": list(data.source),
            "fingerprint": fingerprint,
            "seed": options.seed,
            "offset": offset,
            "share": share,
        },
        start + max(0, count) * world.size,
        (f"{data.source.function} {json.dumps(data.source.arguments)}", len(data.dataset), fingerprint),
    )
    return iter(spotmpi.stream(start, world.rank, world.size, source))


def prepare(number: int, source: list[Any], fingerprint: str, seed: int, offset: int, share: int) -> Any:
    """Batch *number* of the stream, in a worker: *share* samples, decoded and augmented as a rank's loader does."""
    import spotmpi

    try:
        dataset = _load(json.dumps(source), fingerprint)
        return load(dataset, seed, Order(seed, len(dataset)).slice(offset + number * share, share))
    except Failed as error:
        raise spotmpi.SourceError(str(error)) from error


@functools.lru_cache(maxsize=1)  # each worker loads the data once
def _load(source: str, fingerprint: str) -> Dataset:
    name, arguments = json.loads(source)
    module, _, function = name.partition(":")
    dataset: Dataset = getattr(importlib.import_module(module), function)(**arguments)
    if dataset.fingerprint() != fingerprint:
        import spotmpi

        raise spotmpi.StreamError(
            f"the data of {name} is another on this worker: fingerprint {dataset.fingerprint()}, in the ranks "
            f"{fingerprint}; give workers the same data and the same image"
        )
    return dataset
