"""Measures the build of a data set beside the same work without coordination, and beside Dask by hand.

    scripts/speed-datasets [--megabytes 1000] [--workers 2] [--runs 3] [--only lines,rate] [--json]

The raw files have the shape of MovieLens 20M. ``rate`` is what workers of spotmpi reach together, hashing of the raw
files, comparison of a part and manifest included, in relation to as many processes that share nothing: each builds its
share of the parts, and the slowest counts. Workers and processes are up before, all sides take turns, and the tables
are compared. ``lines`` counts the code of a user. Nothing here fails a build: a target that is missed is marked in the
table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet

import spotmpi
from scripts.datasets import by_hand, sets, work
from scripts.speed import PROJECT, Figure, _interleaved, _spread, table
from scripts.speed_pools import plain_dask

NAMES = ["lines", "rate"]
LEAST = 3.0  # stars
ALONE, OWN, BY_HAND = "processes alone", "spotmpi", "Dask by hand"


def main() -> None:
    """Run the selected measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000, help="of raw files")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3, help="interleaved runs of each side")
    parser.add_argument("--only", default=",".join(NAMES), help="which of: " + ", ".join(NAMES))
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")
    options = parser.parse_args()
    selected = [name for name in options.only.split(",") if name]
    if not set(selected) <= set(NAMES) or min(options.runs, options.workers, options.megabytes) < 1:
        parser.error(f"--only takes {', '.join(NAMES)}; --runs, --workers and --megabytes at least 1")
    figures = [measure_lines()] if "lines" in selected else []
    if "rate" in selected:
        with tempfile.TemporaryDirectory() as name:
            figures += measure_rate(Path(name), options.megabytes, options.workers, options.runs)
    result = {"load": os.getloadavg(), "cores": os.cpu_count(), "figures": [asdict(figure) for figure in figures]}
    print(json.dumps(result, indent=1) if options.json else table(figures))


def measure_lines() -> Figure:
    """The lines that a user writes: neither blank, comment nor docstring, for the same work."""
    counts = {name: _lines(PROJECT / "scripts" / "datasets" / name) for name in ("sets.py", "by_hand.py")}
    ratio = counts["sets.py"] / counts["by_hand.py"]
    return Figure("lines of user code / by hand", ratio, "", "at most 0.5", ratio <= 0.5, counts)


def _lines(path: Path) -> int:
    import ast

    tree = ast.parse(path.read_text())
    texts = [
        each.body[0]
        for each in ast.walk(tree)
        if isinstance(each, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(each) is not None
    ]
    left_out = {line for each in texts for line in range(each.lineno, (each.end_lineno or 0) + 1)}
    lines = enumerate(path.read_text().splitlines(), 1)
    return sum(1 for number, line in lines if number not in left_out and line.strip() and line.strip()[0] != "#")


def measure_rate(folder: Path, megabytes: int, workers: int, runs: int) -> list[Figure]:
    """MB/s of raw files of all sides, and the ratios."""
    parts = max(workers, round(megabytes / 26))
    print(f"writing {parts} raw files", file=sys.stderr, flush=True)
    size = work.write_raw(folder / "raw", parts) / 1e6
    built = folder / "built"
    with contextlib.ExitStack() as stack:
        sides = {
            ALONE: stack.enter_context(alone(folder, workers)),
            OWN: stack.enter_context(own(folder, workers)),
            BY_HAND: stack.enter_context(dask(folder, workers)),
        }
        tables: dict[str, list[Any]] = {}

        def rate(name: str) -> float:
            shutil.rmtree(built, ignore_errors=True)
            began = time.perf_counter()
            files = sides[name](built)
            took = time.perf_counter() - began
            print(f"{name}: {took:.1f} s", file=sys.stderr, flush=True)
            tables.setdefault(name, [pyarrow.parquet.read_table(path) for path in (files[0], files[-1])])
            if tables[name] != tables[ALONE if ALONE in tables else name] or len(files) != parts:
                raise RuntimeError(f"{name} has built other tables")
            return size / took

        samples = _interleaved({name: lambda name=name: rate(name) for name in sides}, runs)  # type: ignore[misc]
    medians = {name: statistics.median(values) for name, values in samples.items()}
    details: dict[str, Any] = {f"{name}, MB/s": _spread(values) for name, values in samples.items()}
    details |= {"raw files, MB": round(size), "parts": parts, "workers": workers}
    ratio, other = medians[OWN] / medians[ALONE], medians[OWN] / medians[BY_HAND]
    what = f"{workers} workers together / as many processes that share nothing"
    return [
        Figure(what, ratio, "", "at least 0.8", ratio >= 0.8, details),
        Figure("spotmpi / Dask by hand", other, "", "", None),
    ]


Side = Callable[[Path], list[Path]]  # builds the data set in a new folder; its files


@contextlib.contextmanager
def alone(folder: Path, workers: int) -> Iterator[Side]:
    """Processes that know nothing of each other, each with its share of the parts."""
    program = (
        "import sys; from scripts.datasets import by_hand\n"
        "for line in sys.stdin: by_hand.build_part(*eval(line)); print(flush=True)"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": PROJECT}
    processes = [subprocess.Popen([sys.executable, "-c", program], **pipes) for _ in range(workers)]

    def build(target: Path) -> list[Path]:
        files = sorted((folder / "raw").iterdir())
        for index, process in enumerate(processes):
            assert process.stdin
            for path in files[index::workers]:
                values = (str(path), str(folder / "movies.csv"), LEAST, str(target / f"{path.stem}.parquet"))
                print(repr(values), file=process.stdin)
            process.stdin.flush()
        for index, process in enumerate(processes):
            assert process.stdout
            for _ in files[index::workers]:
                process.stdout.readline()
        return sorted(target.glob("*.parquet"))

    try:
        yield build
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def own(folder: Path, workers: int) -> Iterator[Side]:
    """A pool that is up; nothing is known of the raw files."""
    os.environ["SPOTMPI_RUNS"] = str(folder / "runs")
    with spotmpi.pool(workers=workers, files=[PROJECT / "scripts"]) as pool:

        def build(target: Path) -> list[Path]:
            os.environ["SPOTMPI_CACHE"] = str(target / "cache")
            function = sets.ratings.options(pool=pool, store=str(target / "store"))
            found = function(str(folder / "raw"), str(folder / "movies.csv"), least=LEAST)
            return sorted(Path(found.path).iterdir())

        yield build


@contextlib.contextmanager
def dask(folder: Path, workers: int) -> Iterator[Side]:
    """Workers of Dask by hand that are up."""
    (folder / "dask").mkdir()
    with plain_dask(folder / "dask", workers) as client:
        client.wait_for_workers(workers, timeout=120)
        movies = folder / "movies.csv"
        yield lambda target: sorted((by_hand.build(client, folder / "raw", movies, LEAST, target) / "files").iterdir())


if __name__ == "__main__":
    main()
