"""Measures the bandwidth of allreduce over message sizes, as nccl-tests define it, and checks its sums.

Algorithm bandwidth is bytes / time; bus bandwidth is that times 2 (n - 1) / n, which does not depend on the number of
ranks where every link is equally fast. 5 calls warm up, 20 are measured.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any, Protocol

import numpy as np

from spotmpi.agent.protocol import counted
from spotmpi.programs.exits import Failed, Fatal
from spotmpi.programs.options import Parser, at_least, positive
from spotmpi.programs.reporting import Reporter
from spotmpi.programs.world import World

WARM_UP, MEASURED = 5, 20
_ITEM = 4  # bytes of a float32


class Buffer(Protocol):
    """A float32 vector in the memory that the transport uses."""

    def fill(self, values: Any) -> None:
        """Set it to *values*, a host array of its length."""

    def allreduce(self) -> None:
        """Replace it by the sum over ranks, and wait for that."""

    def values(self) -> Any:
        """A copy on the host."""


def bandwidth_parser(description: str) -> Parser:
    """A parser with --min-bytes, --max-bytes and --factor."""
    parser = Parser(description)
    parser.add_argument("--min-bytes", type=positive, default=1024, help="smallest message")
    parser.add_argument("--max-bytes", type=positive, default=64 * 1024 * 1024, help="largest message")
    parser.add_argument("--factor", type=factor, default=4, help="from one size to the next")
    return parser


def factor(text: str) -> int:
    """A whole number of at least 2."""
    return at_least(2, text)


def sizes(smallest: int, largest: int, ratio: int) -> Iterator[int]:
    """Message sizes in bytes, whole float32 items, each *ratio* times the one before; Fatal where there is none."""
    size = max(smallest // _ITEM, 1) * _ITEM
    if size > largest:
        raise Fatal(
            f"options: --max-bytes {largest} is smaller than the first message, which has {counted(size, 'byte')}"
        )
    while size <= largest:
        yield size
        size *= ratio


def measure(
    world: World,
    create_buffer: Callable[[int], Buffer],
    message_sizes: list[int],
    details: Mapping[str, Any],
    reporter: Reporter,
) -> None:
    """Measure and report the bandwidth of each size in bytes; *create_buffer* makes one of so many items.

    Raises Failed where a sum is wrong.
    """
    reporter.context(
        world_size=world.size, hosts=list(world.hosts), total_iterations=MEASURED * len(message_sizes), **details
    )
    best, done = 0.0, 0
    for size in message_sizes:
        times, wrong = _one_size(world, create_buffer(size // _ITEM), size // _ITEM)
        done += MEASURED
        if wrong:
            what = f"{counted(size, 'byte')} over {counted(world.size, 'rank')}"
            raise Failed(f"allreduce of {what} gave wrong sums on ranks {wrong}")
        scalars = bandwidths(size, world.size, times)
        best = max(best, scalars["busbw"])
        reporter.metric(done, 0.0, times, {"bytes": size, **scalars})
    reporter.result(done, {"best_busbw": best, "sizes": len(message_sizes)})


def bandwidths(size: int, ranks: int, times: list[float]) -> dict[str, float]:
    """Median seconds, and algorithm and bus bandwidth in GB/s (10^9 bytes), of messages of *size* bytes."""
    typical = median(times)
    algorithm = size / typical / 1e9
    return {"median_seconds": typical, "algbw": algorithm, "busbw": algorithm * 2 * (ranks - 1) / ranks}


def _one_size(world: World, buffer: Buffer, items: int) -> tuple[list[float], list[int]]:
    """Seconds of each measured call, of the slowest rank, and the ranks that got a wrong sum."""
    buffer.fill(_contribution(world.rank, items))
    buffer.allreduce()
    correct = np.array_equal(buffer.values(), sum(_contribution(rank, items) for rank in range(world.size)))
    buffer.fill(np.zeros(items, np.float32))  # sums of sums would overflow
    for _ in range(WARM_UP):
        buffer.allreduce()
    world.gather(None)
    times = [_seconds(buffer) for _ in range(MEASURED)]
    results = world.gather((times, correct))
    slowest = [max(calls) for calls in zip(*(seconds for seconds, _ in results), strict=True)]
    return slowest, [rank for rank, (_, correct) in enumerate(results) if not correct]


def _contribution(rank: int, items: int) -> Any:
    """Small whole numbers, different on each rank and at neighbouring places: float32 adds them exactly."""
    return ((np.arange(items) + 7 * rank) % 251).astype(np.float32)


def _seconds(buffer: Buffer) -> float:
    start = time.perf_counter()
    buffer.allreduce()
    return time.perf_counter() - start
