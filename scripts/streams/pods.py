"""Both predictions on the same pods, in turn: `python -m scripts.streams.pods ROUNDS WORKERS FILES BATCHES`.

It is the command of a run with a stream, and uses its workers. Their pods also get workers of plain Dask with TLS, by
the same certificate, and this pod gets the scheduler of those, beside that of the stream. It prints the rows a second
of each round and the processor seconds of all processes of its side, as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from distributed import Client

from scripts.streams import sides, work
from spotmpi.agent import protocol
from spotmpi.programs.pool.settings import security
from spotmpi.streams.engine import Engine

RATES = "rates: "  # precedes the JSON
PORT = 8790  # of plain Dask's scheduler
PREPARATIONS = ("light", "heavy")
_FOLDER = Path(__file__).parents[2]  # from which functions are imported
_CONNECT = 300  # seconds for the processes of a busy machine


def start_dask(role: str, *options: str) -> None:
    """Start a program of plain Dask in this pod, as its command line does."""
    tls = Path(os.environ[protocol.ENV_POOL_TLS])
    files = {"ca-file": protocol.TLS_CA, "cert": protocol.TLS_CERTIFICATE, "key": protocol.TLS_KEY}
    command = [sys.executable, "-m", "dask", role, *options, "--protocol=tls", "--no-dashboard"]
    command += [f"--tls-{name}={tls / file}" for name, file in files.items()]
    subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=_FOLDER)


def processor_seconds(client: Client) -> float:
    """The processor seconds so far of this process, a scheduler and its workers."""
    workers: dict[str, float] = client.run(time.process_time)
    scheduler: float = client.run_on_scheduler(time.process_time)
    return time.process_time() + scheduler + sum(workers.values())


def main(rounds: str, workers: str, files: str, batches: str) -> None:
    """Measure; the first round of each side counts for nothing."""
    folder, url = Path(os.environ[protocol.ENV_STREAM_FOLDER]), os.environ[protocol.ENV_POOL]
    tls, source = os.environ[protocol.ENV_POOL_TLS], folder / "set"
    folder.mkdir(parents=True, exist_ok=True)
    work.write_files(source, int(files), int(batches) // int(files))
    engine = Engine(url, tls)
    while len(engine.workers()) < int(workers):
        time.sleep(1)
    plain = f"{url.rpartition(':')[0]}:{PORT}"
    start_dask("scheduler", f"--port={PORT}")
    with (
        Client(url, security=security(tls), set_as_default=False) as own,
        Client(plain, security=security(tls), set_as_default=False, timeout=_CONNECT) as client,
    ):
        own.run(start_dask, "worker", plain, "--nthreads=1", "--no-nanny", "--local-directory=/tmp")
        client.wait_for_workers(int(workers), timeout=_CONNECT)
        both = {
            "spotmpi": (sides.stream_side(engine, source, int(workers)), own),
            "Dask": (sides.dask_side(client, source), client),
        }
        sides.require_equal_results([side for side, _ in both.values()], folder)
        for preparation in PREPARATIONS:
            for turn in range(int(rounds) + 1):
                for name in sorted(both, reverse=turn % 2 == 0):
                    side, scheduler = both[name]
                    before = processor_seconds(scheduler)
                    value = sides.rate(side, preparation, folder)
                    used = processor_seconds(scheduler) - before
                    if turn:
                        print(RATES + json.dumps([preparation, name, value, used, os.getloadavg()[0]]), flush=True)
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
