"""Files in the memory that the system keeps of what was read: let go, or brought there."""

import os
from collections.abc import Iterable
from pathlib import Path

from spotmpi.programs.world import World

COLD, WARM = "cold", "warm"


def files_in(folder: Path) -> list[Path]:
    """All files below *folder*, sorted."""
    return sorted(Path(place, name) for place, _, files in os.walk(folder) for name in files)


def let_go(files: Iterable[Path]) -> None:
    """Give the pages of *files* back, as far as the system lets go of them."""
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(files: Iterable[Path]) -> int:
    """Read *files* whole; how many bytes that were."""
    return sum(len(path.read_bytes()) for path in files)


def prepare(folder: Path, state: str, world: World) -> None:
    """Have each node begin with *folder* cold or warm; called by all ranks, one per node does the work."""
    if world.local_rank == 0:
        files = files_in(folder)
        if state == COLD:
            let_go(files)
        else:
            read(files)
    world.gather(None)
