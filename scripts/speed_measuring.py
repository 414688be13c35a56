"""Measures what measuring costs: iterations of digits on 2 ranks, with and without it, block by block in one run.

    scripts/speed-measuring [--blocks 1000] [--iterations 10]

Without: a batch, an update, and every 10 iterations the mean of the scalars over the ranks. With: the same, and marks
in time, the wait for the batch, and every 10 iterations the times of all ranks, gathered and packed for the line.

Neighbouring blocks are compared, as they share the moods of the machine. What is told is the mean of the middle half
of their ratios, since single blocks are slow for reasons of their own, and where that mean lies in 95 of 100 resamples.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PROJECT = Path(__file__).resolve().parent.parent
_RANKS = 2
_EVERY = 10


def main() -> None:
    """Start the ranks in the image's environment; what rank 0 prints is the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=1000, help="of each kind")
    parser.add_argument("--iterations", type=int, default=10, help="in a block")
    asked = parser.parse_args()
    from jobs.backends import image_environment
    from jobs.pod import launchers

    bin_folder = image_environment.prepare("chainermn", lambda text: print(text, file=sys.stderr)) / "bin"
    start = launchers.mpirun(str(bin_folder / "mpirun"), 5, _RANKS, os.geteuid() == 0)
    rank = [
        str(bin_folder / "python"),
        "-m",
        "scripts.speed_measuring",
        "rank",
        str(asked.blocks),
        str(asked.iterations),
    ]
    environment = {**os.environ, "PYTHONPATH": str(_PROJECT), "OMP_NUM_THREADS": "1"}
    sys.exit(subprocess.run([*start, *rank], env=environment, cwd=_PROJECT).returncode)


def measure(blocks: int, iterations: int) -> None:
    """One rank: blocks with and without measuring by turns, their medians, and what measuring costs."""
    from jobs.programs.batching import divide
    from jobs.programs.chainermn import digits
    from jobs.programs.chainermn.exchange import communicator, world_of
    from jobs.programs.digits_data import load_digits
    from jobs.programs.loader import Loader
    from jobs.programs.order import Order

    options = digits.parse(["--global-batch", "64", "--iterations", "1"])
    comm = communicator(options)
    world, (training, test) = world_of(comm), load_digits(0)
    trainee = digits.build(options, comm, test)
    batches = Loader(training, Order(0, len(training)), divide(64, None, world.size), world.rank).batches(0)
    _block(trainee, world, batches, iterations, True)
    found: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * blocks):
        measured = (number + number // 2) % 2 == 1  # without, with, with, without: neither always comes first
        world.gather(None)
        found[measured].append(_block(trainee, world, batches, iterations, measured))
    if world.rank == 0:
        bare, watched = (statistics.median(found[kind]) / iterations * 1e3 for kind in (False, True))
        ratios = [after / before - 1 for before, after in zip(found[False], found[True], strict=True)]
        cost, low, high = _middle(ratios)
        print(f"without {bare:.3f} ms, with {watched:.3f} ms an iteration: medians of {blocks} blocks of {iterations}")
        load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
        print(f"measuring costs {cost:+.2%} (95 % interval {low:+.2%} to {high:+.2%}), load {load}")


def _middle(ratios: list[float]) -> tuple[float, float, float]:
    """The mean of the middle half, and its 95 % interval by resampling."""
    import numpy

    def means(drawn: Any) -> Any:
        size = drawn.shape[-1]
        return numpy.sort(drawn)[..., size // 4 : size - size // 4].mean(axis=-1)

    given = numpy.array(ratios)
    chance = numpy.random.default_rng(1)
    low, high = numpy.quantile(means(given[chance.integers(0, len(given), (2000, len(given)))]), (0.025, 0.975))
    return float(means(given)), float(low), float(high)


def _block(trainee: Any, world: Any, batches: Iterator[Any], iterations: int, measured: bool) -> float:
    """Seconds of a block."""
    from jobs.pod import protocol
    from jobs.programs.timing import Stopwatch

    watch = Stopwatch(trainee.clock)
    watch.start()
    began = time.perf_counter()
    for number in range(1, iterations + 1):
        scalars = trainee.step(watch.batch(batches) if measured else next(batches), number)
        if measured:
            watch.lap()
        if number % _EVERY == 0:
            told = {name: float(value) for name, value in scalars.items()}
            _, ranks = world.together(told, watch.take().seconds if measured else [])
            if measured:
                protocol.pack(ranks)
    return time.perf_counter() - began


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        measure(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
