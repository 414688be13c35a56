"""Reads the files of a data set: prepares the page cache, and measures MB/s (10^6 bytes) and files/s, cold and warm.

Each rank reads its share. For the cold pass the pages of every file are dropped from the page cache first, as far as
the system does that; the warm pass reads the same files again. A pass is as slow as its slowest rank.
"""

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spotmpi.agent.store import files as files_below
from spotmpi.programs.exits import Fatal
from spotmpi.programs.options import Parser, data_option, positive
from spotmpi.programs.reporting import Reporter
from spotmpi.programs.world import World

COLD, WARM = "cold", "warm"


def files_in(folder: Path) -> list[Path]:
    """All files below *folder*, sorted; OSError where a folder cannot be read, whose files would be missing."""
    return sorted(folder / name for name in files_below(str(folder)))


def drop_pages(files: Iterable[Path]) -> None:
    """Drop the pages of *files* from the page cache, as far as the system does that."""
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_files(files: Iterable[Path]) -> int:
    """Read *files* completely; their bytes."""
    return sum(len(path.read_bytes()) for path in files)


def prepare_cache(folder: Path, state: str, world: World) -> None:
    """Make *folder* cold or warm in the page cache of each node; called by all ranks, one per node does it."""
    if world.local_rank == 0:
        files = files_in(folder)
        if state == COLD:
            drop_pages(files)
        else:
            read_files(files)
    world.gather(None)


_PASSES = (COLD, WARM)
_SEED = 0


def reading_parser(description: str) -> Parser:
    """A parser with --data and --files."""
    parser = Parser(description)
    data_option(parser)
    parser.add_argument("--files", type=positive, default=2000, help="at most so many, always the same ones")
    return parser


def choose_files(folder: Path, maximum: int) -> list[Path]:
    """At most *maximum* of the files below *folder*, by a fixed seed, the same on every rank; Fatal without any."""
    files = files_in(folder)
    if not files:
        raise Fatal(f"--data {folder} contains no files; check the path")
    chosen = np.random.default_rng(_SEED).permutation(len(files))[:maximum]
    return [files[index] for index in chosen]


def measure(world: World, files: list[Path], details: Mapping[str, Any], reporter: Reporter) -> None:
    """Measure and report how fast *files* are read, cold and warm."""
    share = files[world.rank :: world.size]
    reporter.context(world_size=world.size, hosts=list(world.hosts), total_iterations=len(_PASSES), **details)
    drop_pages(share)
    scalars: dict[str, float] = {}
    for number, name in enumerate(_PASSES, 1):
        world.gather(None)
        results = world.gather(_time_read(share))
        slowest = max(seconds for seconds, _ in results)
        size = sum(read for _, read in results)
        rates = {f"{name}_mb_per_second": size / slowest / 1e6, f"{name}_files_per_second": len(files) / slowest}
        reporter.metric(number, 0.0, [slowest], rates)
        scalars |= rates
    reporter.result(len(_PASSES), {**scalars, "files": len(files), "bytes": size})


def _time_read(files: Iterable[Path]) -> tuple[float, int]:
    """Seconds and bytes."""
    start = time.perf_counter()
    size = read_files(files)
    return time.perf_counter() - start, size
