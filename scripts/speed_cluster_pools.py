"""One-line commands and worker pools on a cluster, beside kubectl and plain Dask with TLS."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

import spotmpi
from scripts.speed import Figure, _interleaved, _spread
from scripts.speed_bench import Bench
from scripts.speed_clients import first_line
from scripts.speed_manifests import LINE, attached_pod, printing_jobset
from scripts.speed_pools import CALLS, _median_call
from spotmpi.agent import protocol
from spotmpi.backends import targets
from spotmpi.pools.engine import Engine
from spotmpi.pools.pool import Pool, PoolSummary

if TYPE_CHECKING:
    from distributed import Client

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # pods have no scripts

WORKERS = 4
PLAIN_PORT = 8790  # of plain Dask's scheduler, beside that of the pool
FIRST_RESULT = """\
import sys
import spotmpi
with spotmpi.pool(sys.argv[1], echo=lambda text: None) as pool:
    print(sys.argv[2], pool.submit(abs, -1).result(), flush=True)
"""
REFUSED = """\
import sys
import spotmpi
from spotmpi.backends.kubernetes import backend
from spotmpi.programs.pool.settings import versions
other = {**versions(), "python": "3.99"}
backend.versions = lambda: other
try:
    with spotmpi.pool(sys.argv[1], echo=lambda text: None):
        pass
except spotmpi.SpotmpiError as error:
    print(error, flush=True)
"""
_PHASES = random.Random(1)  # kubelets look at their containers once a second


def measure_command(bench: Bench, count: int) -> list[Figure]:
    """From Enter to the line of a command in one pod."""
    command = ["--", "echo", LINE]

    def own(*volume: str) -> float:
        time.sleep(_PHASES.random())
        took = first_line([*bench.spotmpi("run", "--image", bench.image, *volume), *command], LINE)
        bench.remove("jobsets")
        return took

    def bare() -> float:
        time.sleep(_PHASES.random())
        overrides = json.dumps(attached_pod(bench.image, command[1:]))
        options = ["--image", bench.image, "--restart=Never", "--attach", "--quiet", f"--overrides={overrides}"]
        took = first_line([*bench.kubectl("run", "bare", *options), *command], LINE)
        bench.remove("pods")
        return took

    sides: dict[str, Callable[[], float]] = {
        "spotmpi": own,
        "spotmpi with a run volume": lambda: own("--set", "kubernetes.volume=shared"),
        "kubectl run": bare,
    }
    samples = _interleaved(sides, count)
    beyond = statistics.median(samples["spotmpi"]) - statistics.median(samples["kubectl run"])
    details = {side: _spread(values) for side, values in samples.items()}
    return [Figure("a command's line, beyond kubectl run", beyond, "s", "at most 0.3", beyond <= 0.3, details)]


def measure_pool(bench: Bench, count: int) -> list[Figure]:
    """A new process until it has the first result of its pool, beside a JobSet of as many pods that print."""
    script = bench.folder / "first_result.py"
    script.write_text(FIRST_RESULT)
    spec = str(_pool_spec(bench))
    printing = printing_jobset(bench.image, 1 + WORKERS, "100m")
    logs = bench.kubectl("logs", "job/bare-node-0", "--all-pods")
    os.environ["SPOTMPI_ON"], os.environ["SPOTMPI_RUNS"] = str(bench.target.on), str(bench.target.runs_folder)

    def own() -> float:
        time.sleep(_PHASES.random())
        took = first_line([sys.executable, str(script), spec, LINE], f"{LINE} 1")
        bench.remove("jobsets")
        return took

    def applied() -> float:
        time.sleep(_PHASES.random())
        took = bench.apply(printing, lambda: LINE in subprocess.run(logs, capture_output=True, text=True).stdout)
        bench.remove("jobsets")
        return took

    samples = _interleaved({"spotmpi": own, "kubectl apply": applied}, count)
    beyond = statistics.median(samples["spotmpi"]) - statistics.median(samples["kubectl apply"])
    details = {side: _spread(values) for side, values in samples.items()}
    name = f"a pool of {WORKERS} to its first result, beyond kubectl apply"
    return [Figure(name, beyond, "s", "at most 4", beyond <= 4, details)]


def measure_refusal(bench: Bench, count: int) -> list[Figure]:
    """From the start of node 0's container until a driver with another Python has read that it does not fit."""
    script = bench.folder / "refused.py"
    script.write_text(REFUSED)
    command = [sys.executable, str(script), str(bench.spec(launcher="pool", pool={"count": 1}))]
    os.environ["SPOTMPI_ON"], os.environ["SPOTMPI_RUNS"] = str(bench.target.on), str(bench.target.runs_folder)
    samples = []
    for _ in range(count):
        time.sleep(_PHASES.random())
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout
            line, moment = process.stdout.readline(), time.time()
        assert " and the driver Python 3.99, but pickled functions need the same minor version" in line, line
        samples.append(moment - _container_start(bench))
        bench.remove("jobsets")
    median = statistics.median(samples)
    details = {"from the container's start": _spread(samples)}
    return [Figure("a driver with another Python is refused", median, "s", "at most 1", median <= 1, details)]


def _container_start(bench: Bench) -> float:
    """When the container of the only node 0 was started, Unix seconds; the API has whole ones."""
    (pod,) = [pod for pod in bench.cluster.pods(bench.namespace) if "-node-0-" in pod["metadata"]["name"]]
    container = pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    started = re.compile(rf'time="([^"]+)" .*msg="StartContainer for \\"{container}\\" returns successfully"')
    logs = (path.read_text() for path in (bench.cluster.slot.folder / "logs").glob("containerd-*.log"))
    (moment,) = (match for log in logs for match in started.findall(log))
    return datetime.fromisoformat(moment[:26] + "+00:00").timestamp()


def measure_call(bench: Bench, count: int) -> list[Figure]:
    """The time of one small call, alone, three ways: the median of each block, and the median of blocks."""
    module = bench.folder / "speed_calls.py"
    module.write_text(CALLS)
    sys.path.insert(0, str(bench.folder))
    from speed_calls import same  # type: ignore[import-not-found]

    run = spotmpi.run(_pool_spec(bench, files=[str(module)]), on=bench.target, detach=True).id
    with (
        spotmpi.pool(run, on=bench.target) as pool,
        targets.backend(bench.target).pool_address(run) as address,
        plain_dask(pool, str(address.tls)) as (host, client),
        Pool(DirectConnection(run, f"tls://{host}:{protocol.POOL_PORT}", str(address.tls)), prints=False) as direct,
    ):
        sides = {
            "spotmpi through the tunnel": lambda: _median_call(lambda value: pool.submit(same, value).result()),
            "spotmpi without it": lambda: _median_call(lambda value: direct.submit(same, value).result()),
            "plain Dask without it": lambda: _median_call(
                lambda value: client.submit(same, value, pure=False).result()
            ),
        }
        samples = _interleaved(sides, max(count, 10))
    bench.remove("jobsets")
    tunnel, own, plain = (statistics.median(samples[side]) for side in sides)
    details = {side: _spread(values) for side, values in samples.items()}
    beyond = 1000 * (tunnel - plain)
    return [
        Figure(
            "a small call on the cluster / plain Dask", own / plain, "", "at most 1.25", own <= 1.25 * plain, details
        ),
        Figure("the same through the tunnel, beyond plain Dask", beyond, "ms", "at most 10", beyond <= 10),
    ]


class DirectConnection:
    """The connection of a driver that reaches the pods, as on node 0."""

    outlives = True

    def __init__(self, run: str, url: str, tls: str) -> None:
        self.run, self._url, self._tls = run, url, tls

    def open(self, output: Callable[[int, str, Sequence[str]], None]) -> Engine:
        """Connect to the scheduler."""
        return Engine(self._url, self._tls)

    def resize(self, workers: int) -> None:
        """Nothing: the pool keeps its size."""

    def summary(self) -> PoolSummary:
        """Nothing: nobody looks at it."""
        return PoolSummary()

    def close(self) -> None:
        """Nothing: the pool goes on."""


@contextlib.contextmanager
def plain_dask(pool: Pool, tls: str) -> Iterator[tuple[str, Client]]:
    """Plain Dask's scheduler in worker 0's pod and a worker in each: node 0's address, and a client of this machine."""
    from distributed import Client

    from spotmpi.programs.pool.settings import security

    scheduler = pool.workers[0].submit(start_plain, "scheduler", [f"--port={PLAIN_PORT}"]).result()
    url = f"tls://{scheduler}:{PLAIN_PORT}"
    pool.run(start_plain, "worker", [url, "--nthreads=1", "--no-nanny"])
    node_0 = pool.workers[0].submit(scheduler_host).result()
    with Client(url, security=security(tls), set_as_default=False, timeout=60) as client:
        client.wait_for_workers(WORKERS, timeout=60)
        yield node_0, client


def start_plain(role: str, options: list[str]) -> str:
    """Start a program of plain Dask in this pod; the pod's address."""
    folder = Path(os.environ[protocol.ENV_POOL_TLS])
    files = {"ca-file": protocol.TLS_CA, "cert": protocol.TLS_CERTIFICATE, "key": protocol.TLS_KEY}
    tls = [f"--tls-{name}={folder / file}" for name, file in files.items()]
    command = [sys.executable, "-m", "dask", role, *options, "--protocol=tls", "--no-dashboard", *tls]
    subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/tmp")
    return socket.gethostbyname(socket.gethostname())


def scheduler_host() -> str:
    """The address of the pool's scheduler as its workers know it."""
    host = os.environ[protocol.ENV_POOL].partition("://")[2].rpartition(":")[0]
    return socket.gethostbyname(host)


def _pool_spec(bench: Bench, **values: Any) -> Path:
    """The spec of a pool whose pods request little."""
    kubernetes = {"templates": bench.small_pods()}
    return bench.spec(launcher="pool", pool={"count": WORKERS}, kubernetes=kubernetes, **values)
