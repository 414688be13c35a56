"""Batches are the same however many processes prepare them, and no process outlives its rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotmpi.programs.digits import Digits
from spotmpi.programs.exits import Failed
from spotmpi.programs.loader import Loader
from spotmpi.programs.sampling import Order, divide
from spotmpi.programs.synthetic_images import SyntheticImages

SAMPLES = 40


def drawings() -> Digits:
    images = np.random.default_rng(0).random((SAMPLES, 1, 8, 8), dtype=np.float32)
    return Digits(images, np.arange(SAMPLES, dtype=np.int32))


def batches(count: int, processes: int = 0, position: int = 0, rank: int = 0, ranks: int = 1) -> list[Any]:
    with Loader(drawings(), Order(5, SAMPLES), divide(8, None, ranks), rank, processes) as loader:
        return list(islice(loader.batches(position), count))


def same(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(
        np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1]) for a, b in zip(some, others, strict=True)
    )


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_the_number_of_loader_processes_changes_nothing(processes: int) -> None:
    assert same(batches(12, processes), batches(12))


def test_batches_go_on_at_any_position_with_the_same_augmentation() -> None:
    assert same(batches(5, processes=2, position=7 * 8), batches(12)[7:])


def test_two_ranks_together_get_the_samples_of_one() -> None:
    whole, first, second = batches(6), batches(6, ranks=2, rank=0), batches(6, ranks=2, rank=1)

    joined = [(np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]])) for a, b in zip(first, second, strict=True)]
    assert same(joined, whole)


def test_augmentation_differs_between_epochs() -> None:
    pairs: dict[int, list[Any]] = {}
    for images, labels in batches(2 * SAMPLES // 8):
        for image, label in zip(images, labels, strict=True):
            pairs.setdefault(int(label), []).append(image)

    assert all(len(pair) == 2 for pair in pairs.values())
    assert sum(not np.array_equal(*pair) for pair in pairs.values()) > SAMPLES / 2


class Broken(Digits):
    """Its sample 13 cannot be read."""

    def sample(self, index: int, random: np.random.Generator) -> Any:
        if index == 13:
            raise ValueError("image 13 is broken")
        return super().sample(index, random)


@pytest.mark.parametrize("processes", [0, 2])
def test_a_sample_that_cannot_be_read_is_an_error_of_the_rank(processes: int) -> None:
    whole = drawings()
    with (
        Loader(Broken(whole.images, whole.labels), Order(5, SAMPLES), divide(8, None, 1), 0, processes) as loader,
        pytest.raises(ValueError, match="image 13 is broken"),
    ):
        list(islice(loader.batches(0), 5))


def test_a_killed_loader_process_is_named() -> None:
    with Loader(drawings(), Order(5, SAMPLES), divide(8, None, 1), 0, 1) as loader:
        prepared = loader.batches(0)
        next(prepared)
        process = loader._processes[0]._process
        process.kill()
        with pytest.raises(Failed, match=rf"loader process 0 \(pid {process.pid}\) exited with -9"):
            list(islice(prepared, 50))


def test_closing_ends_every_process() -> None:
    loader = Loader(drawings(), Order(5, SAMPLES), divide(8, None, 1), 0, 2)
    next(loader.batches(0))
    processes = [each._process for each in loader._processes]

    loader.close()

    assert all(process.returncode is not None for process in processes)


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
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    children = [int(number) for number in parent.stdout.readline().split()]
    assert len(children) == 2

    parent.kill()
    parent.wait()
    parent.stdout.close()

    until = time.monotonic() + 10
    while any(_runs(child) for child in children) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(_runs(child) for child in children)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_loader_processes_outlast_a_notice_to_the_whole_group() -> None:
    with Loader(drawings(), Order(5, SAMPLES), divide(8, None, 1), 0, 2) as loader:
        prepared = loader.batches(0)
        next(prepared)
        for each in loader._processes:
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
