"""Measures what measuring costs: iterations of digits on 2 ranks, with and without it, block by block in one run.

    scripts/speed-measuring [--blocks 300] [--iterations 10]

Without: a batch, an update, and every 10 iterations the mean of the scalars over the ranks. With: the same, and marks
in time, the wait for the batch, and every 10 iterations the times of all ranks, gathered and made into a line.

Batches and updates differ from block to block by more than measuring costs. So the same blocks run without both as
well: what is left is measuring and the mean, and its cost is told as a share of a whole iteration. Neighbouring blocks
are compared; what is told is the mean of the middle half of their differences, since single blocks are slow for
reasons of their own, and where that mean lies in 95 of 100 resamples.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

_PROJECT = Path(__file__).resolve().parent.parent
_RANKS = 2
_EVERY = 10


def main() -> None:
    """Start the ranks in the image's environment; what rank 0 prints is the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=300, help="of each kind")
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
    empty = _Empty(trainee.clock)
    whole = _by_turns(lambda measured: _block(trainee, world, batches, iterations, measured), world, blocks)
    bare = _by_turns(lambda measured: _block(empty, world, repeat(None), iterations, measured), world, 10 * blocks)
    if world.rank == 0:
        usual = statistics.median(before for before, _ in whole) / iterations
        print(
            f"an iteration takes {usual * 1e3:.3f} ms, the median of {blocks} blocks of {iterations} without measuring"
        )
        print(f"measuring costs {_told(bare, iterations, usual)}: blocks without batches and updates")
        print(f"measuring costs {_told(whole, iterations, usual)}: blocks with them")
        print("load " + ", ".join(f"{load:.1f}" for load in os.getloadavg()))


class _Empty:
    """A trainee that does nothing."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock

    def step(self, batch: Any, number: int) -> dict[str, float]:
        """Scalars as digits have them."""
        return {"loss": 0.5, "accuracy": 0.5}


def _by_turns(block: Callable[[bool], float], world: Any, blocks: int) -> list[tuple[float, float]]:
    """Seconds of neighbouring blocks (without, with measuring); neither always comes first."""
    block(True)
    pairs = []
    for number in range(blocks):
        seconds = {}
        for measured in (False, True) if number % 2 else (True, False):
            world.gather(None)
            seconds[measured] = block(measured)
        pairs.append((seconds[False], seconds[True]))
    return pairs


def _told(pairs: list[tuple[float, float]], iterations: int, usual: float) -> str:
    """The cost of an iteration in words, with its 95 % interval by resampling."""
    import numpy

    def means(drawn: Any) -> Any:
        size = drawn.shape[-1]
        return numpy.sort(drawn)[..., size // 4 : size - size // 4].mean(axis=-1)

    given = numpy.array([(after - before) / iterations for before, after in pairs])
    chance = numpy.random.default_rng(1)
    low, high = numpy.quantile([means(chance.choice(given, len(given))) for _ in range(2000)], (0.025, 0.975))
    middle = float(means(given))
    shares = f"{middle / usual:+.2%} (95 % interval {low / usual:+.2%} to {high / usual:+.2%})"
    return f"{middle * 1e6:.1f} us an iteration, {shares}"


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
            told, times = {name: float(value) for name, value in scalars.items()}, watch.take()
            means, ranks = world.together(told, times.seconds)
            if measured and world.rank == 0:
                seconds = [round(second, 6) for second in times.seconds]
                protocol.encode(
                    protocol.METRIC, **means, seconds=seconds, waited=times.waited, ranks=protocol.pack(ranks)
                )
    return time.perf_counter() - began


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        measure(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
