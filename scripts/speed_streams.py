"""Measures streams beside Dask by hand with TLS and raw ZeroMQ without: medians and ratios of interleaved runs.

    scripts/speed-streams [--runs 5] [--only lines,light,heavy,staged,full] [--workers 4] [--batches 256] [--json]

All sides read the same Parquet files, prepare batches of 4,096 rows (410 kB), score them in order in one process and
write the scores of each batch. Their workers are up at the same time, and they take turns. ``staged`` has light
preparation, and workers that postprocess the scores; those of Dask write them too. ``full`` is the rate of
chunks at which one scheduler is full, with tasks that do nothing. Nothing here fails a build: a target that is missed
is marked in the table.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.speed import PROJECT, Figure, _interleaved, _spread, table
from scripts.speed_pools import plain_dask
from scripts.streams import work, zeromq
from scripts.streams.sides import STAGED, Side, dask_side, rate, require_equal_results, stream_side
from spotmpi.agent import launch, launchers, protocol
from spotmpi.core.certificates import run_certificates, write_certificates
from spotmpi.programs.pool.settings import security
from spotmpi.streams.engine import Engine

if TYPE_CHECKING:
    from distributed import Client

NAMES = ["lines", "light", "heavy", STAGED, "full"]
FILES = 8
OWN, BY_HAND = ("flow.py", "run.py", "run.toml"), ("by_hand.py", "pods.yaml")
RANKS = 64  # of which each has a client of its own in the measurement of the scheduler
PROCESSES, INTERVALS, SECONDS = 4, 5, 3.0  # of those clients, and when their calls are counted
SETTLE = 5.0  # seconds before


def main() -> None:
    """Run the selected measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs of each side")
    parser.add_argument("--only", default=",".join(NAMES), help="which of: " + ", ".join(NAMES))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batches", type=int, default=256)
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")
    options = parser.parse_args()
    selected = [name for name in options.only.split(",") if name]
    if not set(selected) <= set(NAMES) or options.runs < 1 or options.workers < 1 or options.batches < FILES:
        parser.error(f"--only takes {', '.join(NAMES)}; --runs and --workers at least 1, --batches {FILES}")
    figures = [measure_lines()] if "lines" in selected else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if {"light", "heavy", STAGED} & set(selected):
            work.write_files(folder / "set", FILES, options.batches // FILES)
            with contextlib.ExitStack() as stack:
                sides = {
                    "spotmpi": stack.enter_context(own_side(folder, options.workers)),
                    "Dask by hand": stack.enter_context(plain_dask_side(folder, options.workers)),
                    "ZeroMQ": stack.enter_context(zeromq_side(folder, options.workers)),
                }
                for preparation in ("light", "heavy", STAGED):
                    if preparation in selected:
                        figures += measure_rate(sides, preparation, folder, options.runs)
        if "full" in selected:
            (folder / "full").mkdir()
            figures.append(measure_scheduler(folder / "full", options.workers))
    result = {"load": os.getloadavg(), "cores": os.cpu_count(), "figures": [asdict(figure) for figure in figures]}
    print(json.dumps(result, indent=1) if options.json else table(figures))


def measure_lines() -> Figure:
    """The lines that a user writes: neither blank nor comment, for the same work."""
    own, other = ({name: _lines(name) for name in names} for names in (OWN, BY_HAND))
    ratio = sum(own.values()) / sum(other.values())
    return Figure("lines of user code / by hand", ratio, "", "at most 0.5", ratio <= 0.5, {**own, **other})


def _lines(name: str) -> int:
    text = (PROJECT / "scripts" / "streams" / name).read_text()
    return sum(1 for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", '"""')))


def measure_rate(sides: dict[str, Side], preparation: str, folder: Path, count: int) -> list[Figure]:
    """Rows a second of all sides, and the ratios."""
    print(f"measuring {preparation} preparation", file=sys.stderr, flush=True)
    if preparation == STAGED:
        sides = {name: side for name, side in sides.items() if name != "ZeroMQ"}
    if preparation == "light":
        require_equal_results(sides.values(), folder)
    rates = {name: functools.partial(rate, side, preparation, folder) for name, side in sides.items()}
    samples = _interleaved(dict[str, Callable[[], float]](rates), count)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    details = {f"{name}, rows/s": _spread(values) for name, values in samples.items()}
    least = 1.0 if preparation == "heavy" else 1.3
    ratios = {name: medians["spotmpi"] / median for name, median in medians.items()}
    dask, raw = ratios["Dask by hand"], ratios.get("ZeroMQ")
    what = "three stages" if preparation == STAGED else f"{preparation} preparation"
    figures = [Figure(f"{what} / Dask by hand", dask, "", f"at least {least}", dask >= least, details)]
    return figures + ([Figure(f"{what} / raw ZeroMQ", raw, "", "at least 0.6", raw >= 0.6)] if raw else [])


@contextlib.contextmanager
def stream_workers(folder: Path, workers: int) -> Iterator[tuple[str, str]]:
    """The workers of a stream as a run on this machine starts them: the address of their scheduler, and its TLS."""
    control = write_certificates(folder / "own", run_certificates("own"))
    environment = {**os.environ, protocol.ENV_POOL_TLS: str(control), "PYTHONPATH": str(PROJECT)}
    address = Path(control, launch.ADDRESS)
    scheduler = launchers.pool_scheduler(sys.executable, workers, interruptions=100)
    scheduler += ["--host=127.0.0.1", "--port=0", f"--address-file={address}"]
    with contextlib.ExitStack() as ends:

        def start(arguments: list[str]) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            ends.callback(process.wait)
            ends.callback(process.terminate)
            return process

        process = start(scheduler)
        while not address.exists():
            if process.poll() is not None:
                raise RuntimeError(f"the scheduler of the stream ended with exit code {process.returncode}")
            time.sleep(0.05)
        url = json.loads(address.read_text())["url"]
        for number in range(workers):
            start(
                [
                    *launchers.pool_worker(sys.executable, f"worker/{number}", url, str(folder / f"worker-{number}")),
                    "--host=127.0.0.1",
                ]
            )
        yield url, str(control)


@contextlib.contextmanager
def own_side(folder: Path, workers: int) -> Iterator[Side]:
    """A stream, as a rank has it in a run."""
    with stream_workers(folder, workers) as (url, tls):
        engine = Engine(url, tls)
        while len(engine.workers()) < workers:
            time.sleep(0.1)
        yield stream_side(engine, folder / "set", workers)
        engine.close()


@contextlib.contextmanager
def plain_dask_side(folder: Path, workers: int) -> Iterator[Side]:
    """Dask by hand, with TLS and as many workers of one thread."""
    with plain_dask(folder, workers) as client:
        client.wait_for_workers(workers, timeout=120)
        yield dask_side(client, folder / "set")


@contextlib.contextmanager
def zeromq_side(folder: Path, workers: int) -> Iterator[Side]:
    """Raw ZeroMQ over TCP of this machine."""
    import zmq

    context = zmq.Context()
    push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    ports = [each.bind_to_random_port("tcp://127.0.0.1") for each in (push, pull)]
    command = [sys.executable, "-m", "scripts.streams.zeromq", *(f"tcp://127.0.0.1:{port}" for port in ports)]
    processes = [subprocess.Popen(command, cwd=PROJECT) for _ in range(workers)]
    try:
        yield lambda preparation, results: zeromq.predict(push, pull, preparation, str(folder / "set"), results)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        context.destroy(linger=0)


def measure_scheduler(folder: Path, workers: int) -> Figure:
    """Calls a second of many ranks, and the processor time of the scheduler for each: it is full at its inverse."""
    print(f"measuring {RANKS} ranks", file=sys.stderr, flush=True)
    from distributed import Client

    with (
        stream_workers(folder, workers) as (url, tls),
        Client(url, security=security(tls), set_as_default=False) as own,
    ):
        command = [sys.executable, "-m", "scripts.streams.ranks", url, tls, str(RANKS // PROCESSES)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes = [subprocess.Popen(command, cwd=PROJECT, **pipes) for _ in range(PROCESSES)]
        try:
            for process in processes:
                _answer(process)
            for process in processes:
                print(file=process.stdin, flush=True)
            time.sleep(SETTLE)  # the first calls import what they need
            samples = [_sample(own, processes)]
            for _ in range(INTERVALS):
                time.sleep(SECONDS)
                samples.append(_sample(own, processes))
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return _scheduler_figure(samples)


def _scheduler_figure(samples: list[tuple[float, float, int]]) -> Figure:
    """The figure from samples of the scheduler: seconds, its processor seconds, and calls that have ended."""
    steps = [tuple(after - before for before, after in zip(*pair, strict=True)) for pair in itertools.pairwise(samples)]
    rates = [count / seconds for seconds, _, count in steps]
    costs = [processor / count for _, processor, count in steps]
    full = 1 / statistics.median(costs)
    details = {
        "calls/s meanwhile": _spread(rates),
        "processor ms of the scheduler for a call": _spread([1000 * cost for cost in costs]),
        "share of a core": statistics.median(processor / seconds for seconds, processor, _ in steps),
    }
    return Figure(f"{RANKS} ranks: the scheduler is full at", full, "/s", "none", None, details)


def _sample(client: Client, processes: list[subprocess.Popen[str]]) -> tuple[float, float, int]:
    """The time now, the processor seconds of the scheduler so far, and how many calls have ended."""
    for process in processes:
        print(file=process.stdin, flush=True)
    calls = sum(int(_answer(process)) for process in processes)
    return time.perf_counter(), client.run_on_scheduler(time.process_time), calls


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a process with ranks ended with exit code {process.wait()}")
    return line


if __name__ == "__main__":
    main()
