"""How large a batch is, for all and for each rank, and how long training lasts."""

import math
from dataclasses import dataclass

from spotmpi.programs.ending import Fatal

STRONG, WEAK = "strong", "weak"


@dataclass(frozen=True)
class Batching:
    """The batch of one iteration: *per_rank* samples on each rank, *in_all* over the world."""

    per_rank: int
    in_all: int
    scaling: str


def divide(global_batch: int | None, batch_per_worker: int | None, world_size: int) -> Batching:
    """The batch from whichever of the two was asked for.

    Raises Fatal for a global batch that the ranks cannot share evenly: the mean of the ranks' gradients would then not
    be the gradient of the global batch.
    """
    if batch_per_worker is not None:
        return Batching(batch_per_worker, batch_per_worker * world_size, WEAK)
    assert global_batch is not None
    if global_batch % world_size:
        below = global_batch // world_size * world_size
        near = f"{below} or {below + world_size}" if below else str(world_size)
        raise Fatal(f"--global-batch {global_batch} cannot be shared evenly by {world_size} ranks: use {near}")
    return Batching(global_batch // world_size, global_batch, STRONG)


def iterations_left(epochs: float, samples: int, position: int, in_all: int) -> int:
    """Iterations of *in_all* samples until at least *epochs* passes over *samples* are done, from *position* on."""
    return max(0, math.ceil((epochs * samples - position) / in_all))
