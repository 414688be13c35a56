"""One worker of a pool.

    python -m spotmpi.programs.pool.worker --worker worker/K --address tls://HOST:8786 --folder FOLDER

It executes one call at a time, in FOLDER, from which functions can import. It ends with 0 on SIGTERM, with 75 when the
scheduler is gone, and with 78 where starting it again cannot help. It has no nanny: who started it starts it again.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import signal
import sys
import traceback
from pathlib import Path

import dask
from distributed import Worker
from distributed.core import rpc
from distributed.security import Security

from spotmpi.agent import protocol
from spotmpi.agent.plan import read_member
from spotmpi.programs.pool import collect_garbage, files
from spotmpi.programs.pool.execution import CancelledCalls, ExecutionFile
from spotmpi.programs.pool.output import forward_output, sendable
from spotmpi.programs.pool.settings import security, settings, use_steady_time, version_difference, versions

_SCRATCH = ".dask"  # in the working folder
CLOSE_TIMEOUT = 2.0  # seconds to say goodbye to the scheduler
PLENTY = 1e9  # of the resources that pin calls to a worker or to those of its role: each takes 1


async def work(options: argparse.Namespace) -> int:
    """Execute calls until a signal, or until the scheduler is gone; the exit code."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    certificates = security(os.environ[protocol.ENV_POOL_TLS])
    execution = ExecutionFile(Path(f"{options.folder}.call"))
    member = options.worker
    try:
        connection = certificates.get_connection_args("worker")
        async with rpc(options.address, timeout=options.timeout, connection_args=connection) as scheduler:
            description = await scheduler.spotmpi_pool()
            if difference := version_difference(versions(), description["versions"], "the image of node 0"):
                remedy = "give these workers an image with the same"
                print(protocol.encode(protocol.FATAL, reason=f"{difference}: {remedy}"), flush=True)
                return protocol.NOT_RETRYABLE
            if execution.former is not None:  # before the scheduler sends a call, which may end this process too
                await scheduler.spotmpi_death(worker=member.text, executed=execution.former)
        worker = await _join(options, certificates, execution)
    except Exception as error:  # Dask wraps what it could not do
        print(f"{member} cannot reach {options.address}: {error}", file=sys.stderr)
        return protocol.INTERRUPTED
    finished = asyncio.ensure_future(worker.finished())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait([finished, stopped], return_when=asyncio.FIRST_COMPLETED)
    if not stop.is_set():
        return protocol.INTERRUPTED
    closing = asyncio.ensure_future(worker.close(timeout=CLOSE_TIMEOUT, reason="spotmpi-stop"))
    await asyncio.wait([closing], timeout=2 * CLOSE_TIMEOUT)
    return 0


async def _join(options: argparse.Namespace, certificates: Security, execution: ExecutionFile) -> Worker:
    """A worker that the scheduler knows."""
    member = options.worker
    worker = Worker(
        options.address,
        name=f"{member.file}-{secrets.token_hex(3)}",
        nthreads=1,
        memory_limit=0,
        host=options.host,
        protocol="tls",
        security=certificates,
        plugins=(execution, CancelledCalls()),
        resources={member.file: PLENTY, member.role: PLENTY},
        death_timeout=options.timeout,
        local_directory=str(Path(options.folder, _SCRATCH)),
        dashboard=False,
        dashboard_address="127.0.0.1:0",
    )
    # It is part of messages, which cannot hold a path that is not UTF-8.
    worker.local_directory = sendable(worker.local_directory)
    forward_output(worker, member.number)
    await worker
    return worker


def is_relevant(message: logging.LogRecord) -> bool:
    """Whether to show a message of Dask: none about a lost connection, which ends this process or is restored.

    Dask logs it with a traceback, to the scheduler in `Worker.heartbeat`, to other workers in `Worker.gather_dep`, and
    in `Worker.get_data` to whoever has asked for a result, such as a rank that has ended. Nor is one shown about what a
    call raised: drivers and ranks get that.
    """
    is_os_error = message.exc_info is not None and isinstance(message.exc_info[1], OSError)
    if str(message.msg).startswith("Compute Failed"):
        return False
    return not (is_os_error and message.funcName in ("heartbeat", "gather_dep", "get_data"))


def main(arguments: list[str]) -> int:
    """Work as the options say."""
    parser = argparse.ArgumentParser(prog="spotmpi.programs.pool.worker")
    parser.add_argument("--worker", type=read_member, required=True, help="role and number, such as worker/0")
    parser.add_argument("--address", required=True)
    parser.add_argument("--folder", required=True, help="working folder")
    parser.add_argument("--host", default=None, help="address of this node")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for the scheduler")
    options = parser.parse_args(arguments)
    os.environ[protocol.ENV_POOL_WORKER] = str(options.worker.number)
    Path(options.folder).mkdir(parents=True, exist_ok=True)
    os.chdir(options.folder)
    sys.path[0] = options.folder  # in place of the folder in which this process was started
    files.folder = options.folder
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    for name in ("distributed", "tornado"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("distributed.worker").addFilter(is_relevant)
    use_steady_time()
    collect_garbage()
    with dask.config.set(settings()):
        return asyncio.run(work(options))


def start(arguments: list[str]) -> int:
    """As `main`; an error of its own ends with a code that says that starting it again cannot help."""
    try:
        return main(arguments)
    except Exception:
        traceback.print_exc()
        return protocol.NOT_RETRYABLE


if __name__ == "__main__":
    code = start(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a call that still executes must not hold it
