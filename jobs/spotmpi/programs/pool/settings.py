"""What scheduler, workers and drivers of a pool have to agree on: Dask's settings, TLS and versions."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotmpi.agent import protocol

if TYPE_CHECKING:
    from distributed.security import Security

WORKER_TTL = "15s"  # without a heartbeat, a worker counts as lost
CONNECT_TIMEOUT = "15s"  # start-up fails with 10 s on a busy machine
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
        "distributed.admin.system-monitor.gil.enabled": False,
        "distributed.admin.large-graph-warning-threshold": "1TiB",  # calls warn by themselves, and say what to do
        "distributed.diagnostics.nvml": False,
    }


def resource(worker: int) -> str:
    """The abstract resource that worker number *worker* alone offers, and its replacement after it."""
    return f"worker-{worker}"


def worker_index(name: str) -> int:
    """The number of the worker called *name*; -1 where the name is none of ours."""
    front = name.partition("-")[0]
    return int(front) if front.isdecimal() else -1


def security(folder: str) -> Security:
    """The TLS settings of a pool from the PEM files in *folder*; without them nobody is served."""
    from distributed.security import Security

    ca, certificate, key = (
        str(Path(folder, name)) for name in (protocol.POOL_CA, protocol.POOL_CERTIFICATE, protocol.POOL_KEY)
    )
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


def version_difference(own: dict[str, str], other: dict[str, str]) -> str | None:
    """What of this driver's versions does not fit those of a pool, with both versions; None where all fit."""
    different = [
        f"{name} {own[name]} here and {other.get(name)} in the pool" for name in own if own.get(name) != other.get(name)
    ]
    return "; ".join(different) or None
