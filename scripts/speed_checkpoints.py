"""Trains SSD300, in every second block of iterations with checkpoints in memory, and compares it with its neighbours.

Single iterations mislead: what happens in the background slows down the next one, too. The copy alone is measured
beside them, on as many bytes: it shows what the difference of blocks hides in their spread.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy

from scripts.checkpoint_blocks import BLOCK
from scripts.speed import PROJECT
from spotmpi.agent import launchers, protocol
from spotmpi.checkpoint.memory import Memory
from spotmpi.checkpoint.store import Store
from spotmpi.images import environment as image_environment

_SIZE = 210_000_000  # bytes: 26 million parameters of 4 bytes, and their momentum
_ARRAYS = 142
SKIPPED = 2  # iterations of a block, in which the last checkpoint of the one before is completed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", choices=("chainermn", "pytorch"), default="chainermn")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4, help="images of a rank in an iteration")
    parser.add_argument("--blocks", type=int, default=7, help=f"of {BLOCK} iterations")
    options = parser.parse_args()
    memory = Path(f"/dev/shm/spotmpi-speed-{os.getpid()}")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    try:
        copies, rest = copy_seconds(memory)
        seconds = iteration_seconds(options, memory)
    finally:
        shutil.rmtree(memory, ignore_errors=True)
    blocks = [statistics.fmean(seconds[start + SKIPPED : start + BLOCK]) for start in range(0, len(seconds), BLOCK)]
    usual = statistics.median(blocks[::2])
    ratios = [blocks[place] / statistics.fmean(blocks[place - 1 : place + 2 : 2]) for place in range(1, len(blocks), 2)]
    print(f"an iteration: {usual:.3f} s without, {statistics.median(blocks[1::2]):.3f} s with checkpoints in memory")
    print(f"blocks beside their neighbours: {', '.join(f'{100 * ratio - 100:+.2f} %' for ratio in ratios)}")
    print(f"copy: {1000 * copies:.0f} ms, {100 * copies / usual:.2f} % of an iteration", end="; ")
    print(f"in the background: {1000 * rest:.0f} ms, {100 * rest / usual:.2f} %")
    print(f"load {os.getloadavg()[0]:.1f}")


def copy_seconds(memory: Path) -> tuple[float, float]:
    """Median seconds for which a checkpoint of 210 MB keeps a rank from its next iteration, and of the rest of it."""
    state = {str(number): numpy.full(_SIZE // 4 // _ARRAYS, number, "f4") for number in range(_ARRAYS)}
    own = Memory(str(memory), "1", "speed")
    own.prepare()
    store, times = Store(str(memory / "none"), 1, {}, "speed", own), []
    for iteration in range(1, 13):
        start = time.perf_counter()
        store.remember(iteration, {}, state)
        copied = time.perf_counter()
        own.wait()
        times.append((copied - start, time.perf_counter() - copied))
    return statistics.median(copy for copy, _ in times[2:]), statistics.median(rest for _, rest in times[2:])


def iteration_seconds(options: argparse.Namespace, memory: Path) -> list[float]:
    """Seconds of each iteration of SSD300 on random images."""
    place = image_environment.prepare(options.image)
    with tempfile.TemporaryDirectory() as scratch:
        variables = {
            **os.environ,
            **launchers.session_environment(f"{scratch}/mpi"),
            "PYTHONPATH": f"{PROJECT / 'jobs'}{os.pathsep}{PROJECT}",
            **{"OMP_NUM_THREADS": "1", "OMPI_MCA_btl": "^ofi"},
            **dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"),
            protocol.ENV_CHECKPOINT_MEMORY: "1",
            protocol.ENV_CHECKPOINT_MEMORY_PATH: str(memory / "ssd"),
        }
        command = [str(place / "bin" / "mpirun"), "-np", str(options.ranks), "--oversubscribe", "--bind-to", "none"]
        command += [str(place / "bin" / "python"), "-m", "scripts.checkpoint_blocks"]
        command += [f"spotmpi.programs.{options.image}.ssd", "--synthetic"]
        command += ["--batch-per-worker", str(options.batch), "--iterations", str(options.blocks * BLOCK)]
        command += ["--report-every", str(options.blocks * BLOCK), "--checkpoint-path", f"{scratch}/checkpoints"]
        ran = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    lines = [json.loads(line) for line in ran.stdout.splitlines() if protocol.is_report(line.encode())]
    return [second for line in lines if line["spotmpi"] == protocol.METRIC for second in line["seconds"]]


if __name__ == "__main__":
    main()
