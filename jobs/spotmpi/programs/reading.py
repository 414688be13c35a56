"""How fast the ranks together read the files of a data set: MB/s (10^6 bytes) and files/s, cold and warm.

Each rank reads its share. For the cold pass every file's pages are given back to the system first, as far as it lets
go of them; the warm pass reads the same files again. A pass is as slow as its slowest rank.
"""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spotmpi.programs import page_cache
from spotmpi.programs.ending import Fatal
from spotmpi.programs.options import Parser, data_option, positive
from spotmpi.programs.reporting import Reporter
from spotmpi.programs.world import World

_PASSES = (page_cache.COLD, page_cache.WARM)
_SEED = 0


def reading_parser(description: str) -> Parser:
    """A parser with --data and --files."""
    parser = Parser(description)
    data_option(parser)
    parser.add_argument("--files", type=positive, default=2000, help="at most so many, the same ones in any order")
    return parser


def chosen(folder: Path, most: int) -> list[Path]:
    """At most *most* of the files below *folder*, drawn by a fixed seed, the same on every rank; Fatal without any."""
    found = page_cache.files_in(folder)
    if not found:
        raise Fatal(f"--data {folder} holds no files that could be read; check the path")
    drawn = np.random.default_rng(_SEED).permutation(len(found))[:most]
    return [found[at] for at in drawn]


def measure(world: World, files: list[Path], details: Mapping[str, Any], reporter: Reporter) -> None:
    """Say how fast *files* are read, cold and warm."""
    own = files[world.rank :: world.size]
    reporter.context(world_size=world.size, hosts=list(world.hosts), total_iterations=len(_PASSES), **details)
    page_cache.let_go(own)
    scalars: dict[str, float] = {}
    for number, name in enumerate(_PASSES, 1):
        world.gather(None)
        everyone = world.gather(_read(own))
        slowest = max(seconds for seconds, _ in everyone)
        size = sum(read for _, read in everyone)
        found = {f"{name}_mb_per_second": size / slowest / 1e6, f"{name}_files_per_second": len(files) / slowest}
        reporter.metric(number, 0.0, [slowest], found)
        scalars |= found
    reporter.result(len(_PASSES), {**scalars, "files": len(files), "bytes": size})


def _read(files: Iterable[Path]) -> tuple[float, int]:
    """Seconds and bytes."""
    start = time.perf_counter()
    size = page_cache.read(files)
    return time.perf_counter() - start, size
