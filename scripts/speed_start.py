"""Compares how long this checkout's commands take to start with those of another checkout, interleaved.

    scripts/speed-start [--against FOLDER] [--runs 30] [--json]

Rows are wall-clock time and, where a command leaves no process behind, processor time, which depends less on what else
the machine does. Without --against, only this checkout is measured. Bare mpirun starts the same line without spotmpi.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

import tomli_w  # noqa: E402

from spotmpi.images import environment as image_environment  # noqa: E402

IMAGE = "chainermn"
LINE = "import os; print('here', flush=True)"


class Sample(NamedTuple):
    """Seconds of one start."""

    wall: float
    processor: float


def main() -> None:
    """Measure all starts of each side in turn, and print medians and minima."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout, set up")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")
    options = parser.parse_args()
    checkouts = {"this": PROJECT, **({"other": options.against.resolve()} if options.against else {})}
    image_environment.prepare(IMAGE)
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        results = {start: measure(starts, options.runs) for start, starts in all_starts(checkouts).items()}
    load = [round(each, 1) for each in os.getloadavg()]
    print(json.dumps({"load": load, "starts": results}, indent=1) if options.json else table(results, load))


def all_starts(checkouts: dict[str, Path]) -> dict[str, dict[str, Callable[[], Sample]]]:
    """What is measured, by name and side."""
    image = image_environment.location(IMAGE) / "bin"
    specs = {"run of a command": ["echo", "here"], "run of two ranks": ["python", "-c", LINE]}
    Path("echo.toml").write_text(tomli_w.dumps({"command": specs["run of a command"], "launcher": "none"}))
    Path("ranks.toml").write_text(tomli_w.dumps({"image": IMAGE, "command": specs["run of two ranks"], "slots": 2}))
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    bare = [str(image / "mpirun"), "-np", "2", "--bind-to", "none", "--oversubscribe", *root, str(image / "python")]
    starts = {
        "--help": ["--help"],
        "list": ["list"],
        "run --dry-run": ["run", "echo.toml", "--dry-run"],
        "run of a command": ["run", "echo.toml"],
        "run of two ranks": ["run", "ranks.toml"],
    }
    sides = {
        name: {side: _start([str(folder / ".venv/bin/spotmpi"), *words]) for side, folder in checkouts.items()}
        for name, words in starts.items()
    }
    sides["run of two ranks"]["bare mpirun"] = _start([*bare, "-c", LINE])
    sides["run of a command"]["bare echo"] = _start(["echo", "here"])
    return sides


def measure(sides: dict[str, Callable[[], Sample]], count: int) -> dict[str, dict[str, float]]:
    """Median and minimum of each side, *count* times in turn after one round that is not counted."""
    samples: dict[str, list[Sample]] = {side: [] for side in sides}
    for turn in range(count + 1):
        for side in list(sides) if turn % 2 else list(reversed(sides)):
            sample = sides[side]()
            if turn:
                samples[side].append(sample)
    return {side: _summary(values) for side, values in samples.items()}


def _summary(values: list[Sample]) -> dict[str, float]:
    walls, processor = [each.wall for each in values], [each.processor for each in values]
    return {
        "median": statistics.median(walls),
        "minimum": min(walls),
        "processor median": statistics.median(processor),
        "processor minimum": min(processor),
    }


def _start(command: list[str]) -> Callable[[], Sample]:
    """From the start of *command* to its first line; processor time is that of the command itself, to its end."""

    def sample() -> Sample:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout
            process.stdout.readline()
            wall = time.perf_counter() - began
            process.stdout.read()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert process.returncode == 0, command
        return Sample(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    return sample


def table(results: dict[str, dict[str, dict[str, float]]], load: list[float]) -> str:
    """The figures in ms, with the ratio of this checkout's to the other's."""
    lines = []
    for start, sides in results.items():
        for side, figures in sides.items():
            values = ", ".join(f"{name} {1000 * value:.0f}" for name, value in figures.items())
            lines.append(f"{start:<18} {side:<12} ms: {values}")
        if "other" in sides:
            ratios = (f"{name} {sides['this'][name] / sides['other'][name]:.2f}" for name in sides["this"])
            lines.append(f"{start:<18} {'ratio':<12}     {', '.join(ratios)}")
    return "\n".join([*lines, f"load {load} on {os.cpu_count()} cores"])


if __name__ == "__main__":
    main()
