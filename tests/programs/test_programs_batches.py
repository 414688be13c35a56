"""Batches are the same whether a rank, its loader processes or a stream's workers prepare them, from any position.

No process outlives its rank.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.programs import loader as loader_module
from spotmpi.programs.digits import Digits
from spotmpi.programs.exits import Failed, Fatal
from spotmpi.programs.loader import DataSource, Input, Loader, rank_batches
from spotmpi.programs.options import TrainingOptions, training_parser
from spotmpi.programs.sampling import Order, divide
from spotmpi.programs.synthetic_images import SyntheticImages
from spotmpi.programs.world import World, alone
from spotmpi.streams.order import Settings
from tests.contract.processes import wait_until

SAMPLES, SEED = 40, 5
SOURCE = DataSource(f"{__name__}:drawings", {"count": SAMPLES})


def drawings(count: int = SAMPLES) -> Digits:
    images = np.random.default_rng(0).random((count, 1, 8, 8), dtype=np.float32)
    return Digits(images, np.arange(count, dtype=np.int32))


class Broken(Digits):
    """Its sample 13 cannot be read."""

    def __init__(self, error: Exception) -> None:
        whole = drawings()
        super().__init__(whole.images, whole.labels)
        self.error = error

    def sample(self, index: int, random: np.random.Generator) -> Any:
        if index == 13:
            raise self.error
        return super().sample(index, random)


def unreadable() -> Digits:
    return Broken(Failed("a.jpg: cannot be read: Stale file handle"))


def loader(processes: int = 0, rank: int = 0, ranks: int = 1, data: Digits | None = None) -> Loader:
    return Loader(data or drawings(), Order(SEED, SAMPLES), divide(8, None, ranks), rank, processes)


def loaded(count: int, processes: int = 0, position: int = 0, rank: int = 0, ranks: int = 1) -> list[Any]:
    with loader(processes, rank, ranks) as own:
        return list(islice(own.batches(position), count))


def assert_same(some: list[Any], others: list[Any]) -> None:
    for batch, other in zip(some, others, strict=True):
        np.testing.assert_array_equal(batch[0], other[0])
        np.testing.assert_array_equal(batch[1], other[1])


@pytest.mark.parametrize("processes", [1, 2, pytest.param(3, marks=pytest.mark.extensive("as with one and two"))])
def test_the_number_of_loader_processes_changes_nothing(processes: int) -> None:
    assert_same(loaded(12, processes), loaded(12))


def test_batches_go_on_at_any_position_with_the_same_augmentation() -> None:
    assert_same(loaded(5, processes=2, position=7 * 8), loaded(12)[7:])


def test_two_ranks_together_get_the_samples_of_one() -> None:
    first, second = loaded(6, ranks=2, rank=0), loaded(6, ranks=2, rank=1)

    joined = [(np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]])) for a, b in zip(first, second, strict=True)]
    assert_same(joined, loaded(6))


@pytest.mark.parametrize(
    "processes",
    [0, pytest.param(2, marks=pytest.mark.extensive("without processes, whose number changes nothing, as above"))],
)
def test_the_parts_of_two_ranks_are_the_batches_of_the_four_that_the_run_may_have(processes: int) -> None:
    def parts(ranks: int, rank: int) -> list[Any]:
        batching = divide(8, None, ranks, most_ranks=4)
        with Loader(drawings(), Order(SEED, SAMPLES), batching, rank, processes) as own:
            return list(islice(own.batches(3 * 8), 2 * batching.parts))

    of_two = [parts(2, rank) for rank in range(2)]
    for rank in range(4):
        assert_same(of_two[rank // 2][rank % 2 :: 2], parts(4, rank))


def test_augmentation_differs_between_epochs() -> None:
    pairs: dict[int, list[Any]] = {}
    for images, labels in loaded(2 * SAMPLES // 8):
        for image, label in zip(images, labels, strict=True):
            pairs.setdefault(int(label), []).append(image)

    assert all(len(pair) == 2 for pair in pairs.values())
    assert sum(not np.array_equal(*pair) for pair in pairs.values()) > SAMPLES / 2


@pytest.mark.parametrize("processes", [0, 2])
def test_a_sample_that_cannot_be_read_is_an_error_of_the_rank(processes: int) -> None:
    with (
        loader(processes, data=Broken(ValueError("image 13 is broken"))) as own,
        pytest.raises(ValueError, match="image 13 is broken"),
    ):
        list(islice(own.batches(0), 5))


def test_a_killed_loader_process_is_named() -> None:
    with loader(processes=1) as own:
        prepared = own.batches(0)
        next(prepared)
        process = own._processes[0]._process
        process.kill()
        with pytest.raises(Failed, match=rf"loader process 0 \(pid {process.pid}\) exited with -9"):
            list(islice(prepared, 50))


def test_closing_ends_every_process_and_its_thread() -> None:
    threads = threading.active_count()
    own = loader(processes=2)
    next(own.batches(0))
    processes = [each._process for each in own._processes]

    own.close()

    assert all(process.returncode is not None for process in processes)
    wait_until(lambda: threading.active_count() == threads, 10)


def test_loader_processes_import_from_where_their_rank_does_whatever_the_folder_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data: v2"
    folder.mkdir()
    text = "from spotmpi.programs.synthetic_images import SyntheticImages\n\nclass Images(SyntheticImages): pass\n"
    (folder / "images_of_a_user.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    data = importlib.import_module("images_of_a_user").Images(16, 4, 100, 0)
    with Loader(data, Order(SEED, 100), divide(8, None, 1), 0, processes=1) as own:
        images, _ = next(own.batches(0))
    assert len(images) == 8


PARENT = """
import sys, time
from spotmpi.programs.sampling import divide
from spotmpi.programs.loader import Loader
from spotmpi.programs.sampling import Order
from spotmpi.programs.synthetic_images import SyntheticImages

loader = Loader(SyntheticImages(64, 10, 100, 0), Order(0, 100), divide(8, None, 1), 0, 2)
next(loader.batches(0))
print(*(each._process.pid for each in loader._processes), flush=True)
time.sleep(60)
"""


def test_loader_processes_end_with_a_rank_that_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children = parent.stdout.readline().split()
        assert len(children) == 2
        parent.kill()

    wait_until(lambda: not any(_runs(child) for child in children), 10)


def _runs(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_loader_processes_outlast_a_notice_to_the_whole_group() -> None:
    with loader(processes=2) as own:
        prepared = own.batches(0)
        next(prepared)
        for each in own._processes:
            for notice in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
                os.kill(each._process.pid, notice)

        assert len(list(islice(prepared, 20))) == 20


def test_synthetic_images_are_drawn_once_and_labelled_evenly() -> None:
    data = SyntheticImages(16, 4, 100, 0)
    random = np.random.default_rng(0)

    images, labels = data.batch([data.sample(index, random) for index in range(8)])

    assert images.shape == (8, 3, 16, 16)
    assert labels.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert data.batch([0] * 8)[0] is images


OPTIONS = TrainingOptions.of(
    training_parser("", {}).parse_args(
        ["--global-batch", "8", "--iterations", "9", "--seed", str(SEED), "--batches", "stream"]
    )
)


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The batches of one rank as workers prepare them, in this process in place of `spotmpi.stream`."""

    def stream(start: int, rank: int, size: int, source: spotmpi.FunctionSource) -> list[Any]:
        numbers = source.order(Settings("")).numbers(start, rank, size)
        return [loader_module.prepare(number, **source.arguments) for number in numbers]

    def make(position: int, ranks: int, rank: int, source: DataSource = SOURCE) -> list[Any]:
        data = Input(drawings(), divide(8, None, ranks), source)
        world = World(rank, ranks, 0, ("host",), lambda value: value, lambda value: [value])
        with rank_batches(data, OPTIONS, world, position, 9) as result:
            return list(result)

    monkeypatch.setattr(spotmpi, "stream", stream, raising=False)
    return make


@pytest.mark.parametrize("position", [0, 8, 24, 40, 4, 18])  # the last two after a resume with another global batch
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_workers_prepare_what_the_loader_of_each_rank_would(streamed: Any, position: int, ranks: int) -> None:
    for rank in range(ranks):
        assert_same(streamed(position, ranks, rank), loaded(9, position=position, rank=rank, ranks=ranks))


def test_a_worker_with_other_data_ends_the_run(streamed: Any) -> None:
    with pytest.raises(spotmpi.StreamError, match=r"drawings is another on this worker: fingerprint .* same image"):
        streamed(0, 1, 0, DataSource(SOURCE.function, {"count": SAMPLES + 1}))


def test_storage_that_fails_in_a_worker_ends_the_attempt_alone(streamed: Any) -> None:
    with pytest.raises(spotmpi.SourceError, match=r"a\.jpg: cannot be read: Stale file handle"):
        streamed(0, 1, 0, DataSource(f"{__name__}:unreadable", {}))


def test_a_program_whose_data_workers_cannot_load_says_so() -> None:
    with (
        pytest.raises(Fatal, match="--batches stream: this program does not say how workers load its data"),
        rank_batches(Input(drawings(), divide(8, None, 1)), OPTIONS, alone(), 0, 9),
    ):
        pass
