"""Measures worker pools beside plain processes and plain Dask with TLS: medians and ratios of interleaved runs.

    scripts/speed-pools [--runs 5] [--only import,start,call,throughput,scan] [--workers 4] [--calls 10000] [--json]

Both sides have as many workers, each with one thread and without a nanny. They are up at the same time, and take turns.
Nothing here fails a build: a target that is missed is marked in the table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import spotmpi
from scripts.speed import PROJECT, Figure, _interleaved, _spread, table
from spotmpi.agent import protocol
from spotmpi.core.certificates import run_certificates, write_certificates
from spotmpi.core.names import EXAMPLES
from tests.testbed.redis_servers import PREFIXES, redis_installed, redis_servers

if TYPE_CHECKING:
    from distributed import Client

CALLS = """\
import time

def same(value):
    return value

def sleep_1_ms(value):
    time.sleep(0.001)
    return value
"""
FIRST_RESULT = """\
import sys
import spotmpi
with spotmpi.pool(workers=int(sys.argv[1]), echo=lambda text: None) as pool:
    print(pool.submit(abs, -1).result(), flush=True)
"""
PLAIN_PROCESSES = """\
import subprocess, sys
command = [sys.executable, "-c", "import distributed; print(1, flush=True)"]
processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(int(sys.argv[1]) + 1)]
print(*{process.communicate()[0].decode().strip() for process in processes}, flush=True)
"""
PLAIN_DASK = """\
import sys
from distributed import Client, LocalCluster
from distributed.security import Security
if __name__ == "__main__":
    security = Security.temporary()
    options = {"threads_per_worker": 1, "protocol": "tls", "security": security, "dashboard_address": None}
    with LocalCluster(n_workers=int(sys.argv[1]), **options) as cluster, Client(cluster, security=security) as client:
        print(client.submit(abs, -1).result(), flush=True)
"""
KEYS, DELAY = 500, 0.2  # of each prefix on a Redis server, and seconds that a request to it takes more
SETTLE = 1.0  # seconds between the sides: Dask releases results after they are collected
BLOCK = 50  # small calls of one side before it is the other's turn


def main() -> None:
    """Run the selected measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["import", "start", "call", "throughput", "scan"]
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs of each side")
    parser.add_argument("--only", default=",".join(names), help="which of: " + ", ".join(names))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--calls", type=int, default=10_000, help="of 1 ms")
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")
    options = parser.parse_args()
    selected = [name for name in options.only.split(",") if name]
    if not set(selected) <= set(names) or options.runs < 1 or options.workers < 1:
        parser.error(f"--only takes {', '.join(names)}; --runs and --workers at least 1")
    figures = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "import" in selected:
            figures += measure_import(max(options.runs, 10))
        if "start" in selected:
            figures += measure_start(folder, options.workers, options.runs)
        if {"call", "throughput"} & set(selected):
            print("starting both sides", file=sys.stderr, flush=True)
            with both_sides(folder, options.workers) as (pool, client):
                if "call" in selected:
                    figures += measure_call(pool, client, options.runs)
                if "throughput" in selected:
                    figures += measure_throughput(pool, client, options.workers, options.calls, options.runs)
        if "scan" in selected:
            figures += measure_scan(folder, options.runs)
    result = {"load": os.getloadavg(), "cores": os.cpu_count(), "figures": [asdict(figure) for figure in figures]}
    print(json.dumps(result, indent=1) if options.json else table(figures))


def measure_import(count: int) -> list[Figure]:
    """``import spotmpi`` in a fresh interpreter, by its own clock."""
    print("measuring import", file=sys.stderr, flush=True)
    code = "from time import perf_counter as now; began = now(); import spotmpi; spotmpi.pool; print(now() - began)"
    alone = code.replace(" spotmpi.pool;", "")
    sides = {
        "import spotmpi": lambda: float(subprocess.check_output([sys.executable, "-c", alone])),
        "with spotmpi.pool": lambda: float(subprocess.check_output([sys.executable, "-c", code])),
    }
    samples = _interleaved(sides, count)
    median = statistics.median(samples["import spotmpi"])
    details = {name: _spread(values) for name, values in samples.items()}
    return [Figure("import spotmpi", median * 1000, "ms", "at most 60", median <= 0.06, details)]


def measure_start(folder: Path, workers: int, count: int) -> list[Figure]:
    """A new process until it has the first result of its pool, beside as many processes that only import Dask."""
    print("measuring start", file=sys.stderr, flush=True)
    programs = {"spotmpi": FIRST_RESULT, "plain processes": PLAIN_PROCESSES, "plain Dask": PLAIN_DASK}
    sides: dict[str, Callable[[], float]] = {}
    for name, text in programs.items():
        path = folder / f"start-{name.replace(' ', '-')}.py"
        path.write_text(text)
        sides[name] = lambda path=path: _first_line([sys.executable, str(path), str(workers)], folder)  # type: ignore[misc]
    samples = _interleaved(sides, count)
    beyond = statistics.median(samples["spotmpi"]) - statistics.median(samples["plain processes"])
    details = {name: _spread(values) for name, values in samples.items()}
    return [Figure("pool to its first result, beyond processes", beyond, "s", "at most 4", beyond <= 4, details)]


def measure_call(pool: spotmpi.Pool, client: Client, count: int) -> list[Figure]:
    """The time of one small call, alone: the median of each block, and the median of blocks."""
    print("measuring call", file=sys.stderr, flush=True)
    from speed_calls import same  # type: ignore[import-not-found]

    sides = {
        "spotmpi": lambda: _median_call(lambda value: pool.submit(same, value).result()),
        "plain Dask": lambda: _median_call(lambda value: client.submit(same, value, pure=False).result()),
    }
    samples = _interleaved(sides, max(count, 10))
    ratio = statistics.median(samples["spotmpi"]) / statistics.median(samples["plain Dask"])
    details = {name: _spread(values) for name, values in samples.items()}
    return [Figure("a small call / plain Dask", ratio, "", "at most 1.25", ratio <= 1.25, details)]


def measure_throughput(pool: spotmpi.Pool, client: Client, workers: int, calls: int, count: int) -> list[Figure]:
    """Calls of 1 ms a second, all results collected."""
    print("measuring throughput", file=sys.stderr, flush=True)
    from speed_calls import sleep_1_ms

    def own() -> float:
        return _rate(calls, lambda: list(pool.map(sleep_1_ms, range(calls))))

    def plain() -> float:
        return _rate(calls, lambda: client.gather(client.map(sleep_1_ms, range(calls), pure=False)))

    samples = _interleaved({"spotmpi": own, "plain Dask": plain}, count)
    ratio = statistics.median(samples["spotmpi"]) / statistics.median(samples["plain Dask"])
    details = {f"{name}, calls/s": _spread(values) for name, values in samples.items()}
    name = f"{calls} calls of 1 ms, {workers} workers / Dask"
    return [Figure(name, ratio, "", "at least 0.8", ratio >= 0.8, details)]


def measure_scan(folder: Path, count: int) -> list[Figure]:
    """The example that scans Redis servers, each behind a delay, with 8 workers beside 1."""
    name, target = "8 servers scanned by 8 workers / by 1", "at least 6"
    if not redis_installed():
        return [Figure(name, 0.0, "", target, None)]
    print("measuring scan", file=sys.stderr, flush=True)
    sys.path.insert(0, str(EXAMPLES))
    from scan_redis import scan  # type: ignore[import-not-found]

    os.environ["SPOTMPI_RUNS"] = str(folder / "runs")
    files = [EXAMPLES / "scan_redis.py"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))  # what workers print
        servers = [proxy.address for proxy in stack.enter_context(redis_servers(folder, 8, KEYS, DELAY))]
        pools = {workers: stack.enter_context(spotmpi.pool(workers=workers, files=files)) for workers in (8, 1)}

        def seconds(workers: int) -> float:
            began = time.perf_counter()
            total: Counter[str] = sum(pools[workers].map(scan, servers), Counter())
            took = time.perf_counter() - began
            assert total == dict.fromkeys(PREFIXES, 8 * KEYS), total
            return took

        for workers, pool in pools.items():
            pool.run(abs, each=range(workers))
        samples = _interleaved({"8 workers": lambda: seconds(8), "1 worker": lambda: seconds(1)}, count)
    ratio = statistics.median(samples["1 worker"]) / statistics.median(samples["8 workers"])
    details = {side: _spread(values) for side, values in samples.items()}
    return [Figure(name, ratio, "times", target, ratio >= 6, details)]


@contextlib.contextmanager
def both_sides(folder: Path, workers: int) -> Iterator[tuple[spotmpi.Pool, Client]]:
    """A pool, and a client of a plain Dask scheduler with as many workers, all of which are connected."""
    os.environ["SPOTMPI_RUNS"] = str(folder / "runs")
    module = folder / "speed_calls.py"
    module.write_text(CALLS)
    sys.path.insert(0, str(folder))
    with plain_dask(folder, workers) as client, spotmpi.pool(workers=workers, files=[module]) as pool:
        pool.run(abs, each=range(workers))
        client.wait_for_workers(workers, timeout=120)
        yield pool, client


@contextlib.contextmanager
def plain_dask(folder: Path, workers: int) -> Iterator[Client]:
    """Dask's own scheduler and workers with TLS, as their command line starts them."""
    from distributed import Client
    from distributed.security import Security

    tls = write_certificates(folder / "tls", run_certificates("plain"))
    files = {"ca-file": protocol.TLS_CA, "cert": protocol.TLS_CERTIFICATE, "key": protocol.TLS_KEY}
    options = [f"--tls-{name}={tls / file}" for name, file in files.items()]
    options += [f"--scheduler-file={folder / 'scheduler.json'}"]
    dask = [sys.executable, "-m", "dask"]
    scheduler = [*dask, "scheduler", "--protocol=tls", "--host=127.0.0.1", "--port=0", "--no-dashboard", *options]
    worker = [*dask, "worker", "--protocol=tls", "--nthreads=1", "--no-nanny", "--no-dashboard", *options]
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{PROJECT}"}
    quiet = {"env": environment, "cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    commands = [scheduler, *[worker] * workers]
    processes = [subprocess.Popen(command, **quiet) for command in commands]  # type: ignore[call-overload]
    try:
        while not (folder / "scheduler.json").exists():
            if processes[0].poll() is not None:
                raise RuntimeError(f"plain Dask's scheduler ended with exit code {processes[0].returncode}")
            time.sleep(0.1)
        address = json.loads((folder / "scheduler.json").read_text())["address"]
        cert, key = str(tls / protocol.TLS_CERTIFICATE), str(tls / protocol.TLS_KEY)
        security = Security(
            require_encryption=True, tls_ca_file=str(tls / protocol.TLS_CA), tls_client_cert=cert, tls_client_key=key
        )
        with Client(address, security=security, set_as_default=False) as client:
            yield client
    finally:
        for process in processes:
            process.kill()  # some of Dask's workers do not end on SIGTERM
            process.wait()


def _first_line(command: list[str], folder: Path) -> float:
    """Seconds from the start of *command* to its first line on stdout."""
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        line = process.stdout.readline()
        took = time.perf_counter() - began
        process.stdout.read()
    assert line == b"1\n", line
    return took


def _median_call(call: Callable[[int], Any]) -> float:
    """Seconds of one call, the median of a block."""
    times = []
    for value in range(BLOCK):
        began = time.perf_counter()
        assert call(value) == value
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _rate(calls: int, collect: Callable[[], Any]) -> float:
    """Calls per second of what gives the results of this many; what the other side has still to release is over."""
    time.sleep(SETTLE)
    began = time.perf_counter()
    assert collect() == list(range(calls))
    return calls / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
