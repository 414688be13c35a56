"""What scheduler, workers and drivers of a pool have to agree on: Dask's settings, TLS and versions."""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotmpi.agent import protocol
from spotmpi.agent.files import key_log_text
from spotmpi.agent.plan import WORKER, Member, read_member

if TYPE_CHECKING:
    from distributed.security import Security

WORKER_TTL = "15s"  # without a heartbeat, a worker counts as lost
# For which a driver whose connection was cut may come back, before others collect its calls: it takes up to 5 s each to
# end a connection and to make another.
DRIVER_RETURN = 15.0  # seconds
CONNECT_TIMEOUT = "15s"  # start-up fails with 10 s on a busy machine
# They log a cut connection with tracebacks.
_QUIET = ("distributed.batched", "distributed.client", "distributed.comm.tcp", "distributed.core")
_PACKAGES = ("distributed", "cloudpickle", "msgpack")


def settings(interruptions: int = 100) -> dict[str, Any]:
    """The values of ``dask.config`` in every process of a pool; *interruptions* is ``limits.interruptions``."""
    return {
        "distributed.scheduler.allowed-failures": interruptions,
        "distributed.scheduler.worker-ttl": WORKER_TTL,
        "distributed.scheduler.http.routes": [],
        "distributed.scheduler.dashboard.enabled": False,
        "distributed.worker.http.routes": [],
        "distributed.worker.profile.enabled": False,
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.pause": False,
        "distributed.worker.memory.terminate": False,
        "distributed.worker.use-file-locking": False,
        "distributed.nanny.pre-spawn-environ": {"MALLOC_TRIM_THRESHOLD_": ""},
        "distributed.comm.timeouts.connect": CONNECT_TIMEOUT,
        "distributed.comm.timeouts.tcp": CONNECT_TIMEOUT,
        "distributed.comm.require-encryption": True,
        "distributed.admin.tick.interval": "1s",  # of delays, for pages: every 20 ms took 1.4 % of a core per process
        "distributed.admin.system-monitor.gil.enabled": False,
        "distributed.admin.low-level-log-length": 100,  # of each topic, too: the scheduler keeps what workers print
        "distributed.admin.large-graph-warning-threshold": "1TiB",  # calls warn by themselves, and say what to do
        "distributed.diagnostics.nvml": False,
    }


def quiet_loggers() -> None:
    """Have Dask log errors alone, and not that a connection which takes too long to end was left to itself."""
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)
        logging.getLogger(name).addFilter(_is_no_cancellation)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    return not (record.exc_info and type(record.exc_info[1]).__name__ == "CancelledError")


@functools.cache
def use_steady_time() -> None:
    """Let Dask and Tornado of this process measure time that nobody sets, counted from now.

    Both compare Unix time: once the clock is set back, messages wait until it has caught up, and so do heartbeats.
    Tornado's documentation of `PeriodicCallback` says so, and Dask's `BatchedSend` has a deadline for each message.
    """
    from distributed import metrics
    from tornado.ioloop import IOLoop

    unix, monotonic, offset = metrics.time, time.monotonic, time.time() - time.monotonic()

    def steady() -> float:
        return offset + monotonic()

    steady.__name__ = unix.__name__  # by which Dask's pages find it (distributed.http.scheduler.info)
    for name, module in list(sys.modules.items()):
        if name.startswith("distributed.") and getattr(module, "time", None) is unix:
            vars(module)["time"] = steady
    IOLoop.time = lambda self: steady()  # type: ignore[method-assign]


def resource(worker: int) -> str:
    """The abstract resource that worker number *worker* alone offers, and its replacement after it."""
    return Member(WORKER, worker).file


def pinned_worker(resources: Iterable[str]) -> int:
    """The number of the worker that offers one of these resources; -1 where none of them is a worker's."""
    numbers = (name.removeprefix("worker-") for name in resources)
    return max((int(number) for number in numbers if number.isdecimal()), default=-1)


def worker_member(name: str) -> Member | None:
    """The member whose worker is called *name*, such as worker-3-a9f3; None where the name is none of ours."""
    try:
        return read_member(name.rpartition("-")[0].replace("-", "/"))
    except ValueError:
        return None


def security(folder: str) -> Security:
    """The TLS settings of a pool from the PEM files in *folder*; without them nobody is served.

    Raises:
        OSError: SSLKEYLOGFILE names a file that cannot be written.
    """
    from distributed.security import Security

    if key_log := os.environ.get("SSLKEYLOGFILE"):
        try:
            Path(key_log).open("ab").close()
        except OSError as error:
            raise OSError(key_log_text(error)) from error
    ca, certificate, key = (str(Path(folder, name)) for name in protocol.TLS_FILES)
    roles = {
        f"tls_{role}_{part}": path
        for role in ("scheduler", "worker", "client")
        for part, path in (("cert", certificate), ("key", key))
    }
    return Security(require_encryption=True, tls_ca_file=ca, **roles)


def versions() -> dict[str, str]:
    """The versions that driver and pool must have in common."""
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return {"python": python, **{package: importlib.metadata.version(package) for package in _PACKAGES}}


def version_difference(own: dict[str, str], other: dict[str, str], place: str = "the pool") -> str | None:
    """What of these versions does not fit those of *place*, with both versions; None where all fit."""
    different = [
        f"{name} {own[name]} here and {other.get(name)} in {place}" for name in own if own.get(name) != other.get(name)
    ]
    return "; ".join(different) or None
