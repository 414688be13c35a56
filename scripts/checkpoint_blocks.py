"""Runs the training program of a module, which takes checkpoints in memory in each second block of iterations."""

from __future__ import annotations

import runpy
import sys

from spotmpi.checkpoint.memory import Memory

BLOCK = 20  # iterations: what a checkpoint costs the iterations after it is within its block


def main(module: str) -> None:
    """Run *module*."""
    due = Memory.due

    def due_in_block(self: Memory, iteration: int) -> bool:
        return (iteration - 1) // BLOCK % 2 == 1 and due(self, iteration)

    Memory.due = due_in_block  # type: ignore[method-assign]
    sys.argv[:] = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
