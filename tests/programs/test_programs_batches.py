"""A worker of a stream prepares the batches that a rank's own loader would, from any position, for any rank."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.programs import batches
from spotmpi.programs.batches import DataSource, Input, rank_batches
from spotmpi.programs.digits import Digits
from spotmpi.programs.exits import Failed, Fatal
from spotmpi.programs.loader import Loader
from spotmpi.programs.options import TrainingOptions, training_parser
from spotmpi.programs.sampling import Batching, Order, divide
from spotmpi.programs.world import World, alone
from spotmpi.streams.order import Settings

SAMPLES, SEED = 40, 5
SOURCE = DataSource(f"{__name__}:drawings", {"count": SAMPLES})


def drawings(count: int) -> Digits:
    images = np.random.default_rng(0).random((count, 1, 8, 8), dtype=np.float32)
    return Digits(images, np.arange(count, dtype=np.int32))


class Unreadable(Digits):
    """Data whose storage fails."""

    def sample(self, index: int, random: np.random.Generator) -> Any:
        raise Failed("a.jpg: cannot be read: Stale file handle")


def unreadable(count: int) -> Digits:
    whole = drawings(count)
    return Unreadable(whole.images, whole.labels)


def options(*further: str) -> TrainingOptions:
    arguments = ["--global-batch", "8", "--iterations", "9", "--seed", str(SEED), *further]
    return TrainingOptions.of(training_parser("", {}).parse_args(arguments))


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The batches of one rank as workers prepare them, in this process in place of `spotmpi.stream`."""

    def make(position: int, ranks: int, rank: int, source: DataSource = SOURCE) -> list[Any]:
        def stream(start: int, rank: int, size: int, source: spotmpi.FunctionSource) -> list[Any]:
            order = source.order(Settings(""))
            return [batches.prepare(number, **source.arguments) for number in order.numbers(start, rank, size)]

        monkeypatch.setattr(spotmpi, "stream", stream, raising=False)
        data = Input(drawings(SAMPLES), divide(8, None, ranks), source)
        world = World(rank, ranks, 0, ("host",), lambda value: value, lambda value: [value])
        with rank_batches(data, options("--batches", "stream"), world, position, 9) as result:
            return list(result)

    return make


def loaded(position: int, batching: Batching, rank: int) -> list[Any]:
    with Loader(drawings(SAMPLES), Order(SEED, SAMPLES), batching, rank) as loader:
        return list(islice(loader.batches(position), 9))


@pytest.mark.parametrize("position", [0, 8, 24, 40, 4, 18])  # the last two after a resume with another global batch
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_workers_prepare_what_the_loader_of_each_rank_would(streamed: Any, position: int, ranks: int) -> None:
    for rank in range(ranks):
        expected = loaded(position, divide(8, None, ranks), rank)
        for (images, labels), (own_images, own_labels) in zip(streamed(position, ranks, rank), expected, strict=True):
            assert np.array_equal(images, own_images)
            assert np.array_equal(labels, own_labels)


def test_a_worker_with_other_data_ends_the_run(streamed: Any) -> None:
    with pytest.raises(spotmpi.StreamError, match=r"drawings is another on this worker: fingerprint .* same image"):
        streamed(0, 1, 0, DataSource(SOURCE.function, {"count": SAMPLES + 1}))


def test_storage_that_fails_in_a_worker_ends_the_attempt_alone(streamed: Any) -> None:
    with pytest.raises(spotmpi.SourceError, match=r"a\.jpg: cannot be read: Stale file handle"):
        streamed(0, 1, 0, DataSource(f"{__name__}:unreadable", {"count": SAMPLES}))


def test_a_program_whose_data_workers_cannot_load_says_so() -> None:
    data = Input(drawings(SAMPLES), divide(8, None, 1))
    with (
        pytest.raises(Fatal, match="--batches stream: this program does not say how workers load its data"),
        rank_batches(data, options("--batches", "stream"), alone(), 0, 9),
    ):
        pass
