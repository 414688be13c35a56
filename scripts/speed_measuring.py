"""Measures what measuring costs: iterations of digits on 2 ranks, with and without it, window by window in one run.

    scripts/speed-measuring [--pairs 1500] [--iterations 10]

Without: a batch, an update, and every 10 iterations the mean of the scalars over the ranks. With: the same, and marks
in time, the wait for the batch, and every 10 iterations the times of all ranks, gathered and made into a line.

Neighbouring windows of 10 iterations are pairs, one with and one without, in an order drawn for each pair (seed 1).
What is told is the mean of the middle half of their differences, since single windows are slow for reasons of their
own, and where that mean lies in 95 of 100 resamples. It is told three times:

- of windows without batches and updates, as a share of a whole iteration: the measuring itself, and the mean;
- of whole iterations by processor time, the mean over ranks: what others do on the machine counts little there;
- of the same by the clock on the wall.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

_PROJECT = Path(__file__).resolve().parent.parent
_RANKS = 2
_EVERY = 10
_SEED = 1


def main() -> None:
    """Start the ranks in the image's environment; what rank 0 prints is the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1500, help="of windows of whole iterations")
    parser.add_argument("--iterations", type=int, default=10, help="in a window")
    options = parser.parse_args()
    from spotmpi.agent import launchers
    from spotmpi.images import environment as image_environment

    bin_folder = image_environment.prepare("chainermn", lambda text: print(text, file=sys.stderr)) / "bin"
    start = launchers.LAUNCHERS["mpirun"].arguments(
        launchers.Start(1, _RANKS, mpi=launchers.OpenMpi(str(bin_folder / "mpirun"), 5, os.geteuid() == 0))
    )
    rank = [
        str(bin_folder / "python"),
        "-m",
        "scripts.speed_measuring",
        "rank",
        str(options.pairs),
        str(options.iterations),
    ]
    environment = {**os.environ, "PYTHONPATH": str(_PROJECT / "jobs"), "OMP_NUM_THREADS": "1"}
    sys.exit(subprocess.run([*start, *rank], env=environment, cwd=_PROJECT).returncode)


class Spent(NamedTuple):
    """Seconds of a window: on the wall, and of this rank's processor."""

    wall: float
    processor: float


Pairs = list[tuple[Spent, Spent]]  # without, with measuring


def measure(pairs: int, iterations: int) -> None:
    """One rank: windows with and without measuring by turns, what they took, and what measuring costs."""
    from spotmpi.programs.chainermn import digits
    from spotmpi.programs.chainermn.gradients import communicator, create_world
    from spotmpi.programs.digits import load_digits
    from spotmpi.programs.loader import Loader
    from spotmpi.programs.sampling import Order, divide

    options = digits.parse(["--global-batch", "64", "--iterations", "1"])
    comm = communicator(options)
    world, (training, test) = create_world(comm), load_digits(0)
    adapter = digits.build(options, comm, test)
    batches = Loader(training, Order(0, len(training)), divide(64, None, world.size), world.rank).batches(0)
    empty = _Empty(adapter.clock)
    whole = _by_turns(lambda measured: _window(adapter, world, batches, iterations, measured), world, pairs)
    bare = _by_turns(lambda measured: _window(empty, world, repeat(None), iterations, measured), world, 2 * pairs)
    if world.rank == 0:
        usual = Spent(*(statistics.median(side) / iterations for side in zip(*(one for one, _ in whole), strict=True)))
        print(
            f"an iteration without measuring takes {usual.wall * 1e3:.2f} ms on the wall and "
            f"{usual.processor * 1e3:.2f} ms of a rank's processor (medians of {pairs} windows of {iterations})"
        )
        print(f"measuring costs {_summary(_of(bare, 0), iterations, usual.wall)}: windows without batches and updates")
        print(
            f"measuring costs {_summary(_of(whole, 1), iterations, usual.processor)}: whole iterations, processor time"
        )
        print(f"measuring costs {_summary(_of(whole, 0), iterations, usual.wall)}: whole iterations, time on the wall")
        print("load " + ", ".join(f"{load:.1f}" for load in os.getloadavg()))


class _Empty:
    """An adapter that does nothing."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock

    def step(self, batch: Any, number: int) -> dict[str, float]:
        """Scalars as digits have them."""
        return {"loss": 0.5, "accuracy": 0.5}


def _by_turns(window: Callable[[bool], Spent], world: Any, pairs: int) -> Pairs:
    """Neighbouring windows, the mean over ranks; which side comes first is drawn, alike on all ranks."""
    chance = random.Random(_SEED)
    window(True)
    differences = []
    for _ in range(pairs):
        spent = {}
        for measured in chance.sample((False, True), 2):
            world.gather(None)
            spent[measured] = window(measured)
        differences.append((spent[False], spent[True]))
    everyone = world.gather(differences)
    return [(_mean(side[0] for side in pair), _mean(side[1] for side in pair)) for pair in zip(*everyone, strict=True)]


def _mean(spent: Iterable[Spent]) -> Spent:
    return Spent(*(statistics.fmean(side) for side in zip(*spent, strict=True)))


def _of(pairs: Pairs, which: int) -> list[float]:
    """What the measured side took longer, in seconds on the wall (0) or of the processor (1)."""
    return [after[which] - before[which] for before, after in pairs]


def _summary(differences: list[float], iterations: int, usual: float) -> str:
    """The cost of an iteration in words, with its 95 % interval by resampling."""
    import numpy

    def means(drawn: Any) -> Any:
        size = drawn.shape[-1]
        return numpy.sort(drawn)[..., size // 4 : size - size // 4].mean(axis=-1)

    values = numpy.array(differences) / iterations
    chance = numpy.random.default_rng(_SEED)
    low, high = numpy.quantile([means(chance.choice(values, len(values))) for _ in range(2000)], (0.025, 0.975))
    middle = float(means(values))
    shares = f"{middle / usual:+.2%} (95 % interval {low / usual:+.2%} to {high / usual:+.2%})"
    return f"{middle * 1e6:.1f} us an iteration, {shares}"


def _window(adapter: Any, world: Any, batches: Iterator[Any], iterations: int, measured: bool) -> Spent:
    """What a window took on this rank."""
    from spotmpi.agent import protocol
    from spotmpi.programs.reporting import Stopwatch

    watch = Stopwatch(adapter.clock)
    watch.start()
    began, worked = time.perf_counter(), time.process_time()
    for number in range(1, iterations + 1):
        scalars = adapter.step(watch.next_batch(batches) if measured else next(batches), number)
        if measured:
            watch.split()
        if number % _EVERY == 0:
            numbers, times = {name: float(value) for name, value in scalars.items()}, watch.collect()
            means, ranks = world.average_scalars(numbers, times.seconds)
            if measured and world.rank == 0:
                seconds = [round(second, 6) for second in times.seconds]
                protocol.encode(
                    protocol.METRIC, **means, seconds=seconds, waited=times.waited, ranks=protocol.pack(ranks)
                )
    return Spent(time.perf_counter() - began, time.process_time() - worked)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        measure(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
