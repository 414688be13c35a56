"""A pool on one machine: scheduler, workers and the driver's command, if there is one, as children of this process.

    python -m spotmpi.programs.pool.local --workers N --folder FOLDER --control FOLDER [...] [-- COMMAND ARGUMENT ...]

A worker that ends is started again. It ends with the command, with the scheduler, or on SIGTERM, and nothing that it
started outlives it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from spotmpi.agent import hardware, launchers, protocol, starter
from spotmpi.agent.exit_diagnosis import SCHEDULER_END, process_end
from spotmpi.agent.files import write_atomically

ADDRESS = "address.json"  # in the control folder: where the scheduler listens
WORKERS = "workers"  # the number of workers that the pool shall have, which any process may write
_POLL = 0.05  # seconds between looks at the children
_GRACE = 3.0  # seconds from SIGTERM to SIGKILL
_STEADY = 5.0  # seconds after which a worker counts as started
_PAUSES = (0.0, 0.5, 1.0, 2.0, 5.0)  # seconds before a worker that ended early is started again, the last for ever


class LocalPool:
    """Starts the processes of a pool, and those of its workers again."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._control = Path(options.control)
        self._address = ""
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._started: dict[int, float] = {}
        self._early_ends: dict[int, int] = {}
        self._due: dict[int, tuple[float, str]] = {}  # when a worker is started again, and why it ended
        self._others: list[subprocess.Popen[bytes]] = []
        self._stopping = False
        self._cgroup = hardware.own_cgroup()
        self._oom_kills = hardware.oom_kills(self._cgroup)  # at the latest end of a worker

    def run(self) -> int:
        """Run the pool to its end; the exit code."""
        signal.signal(signal.SIGTERM, self._stop)
        for name in (ADDRESS, WORKERS):
            (self._control / name).unlink(missing_ok=True)
        try:
            return self._run()
        finally:
            self._end_all()

    def _run(self) -> int:
        options = self._options
        arguments = launchers.pool_scheduler(
            sys.executable, options.workers, options.interruptions, options.start_limit, options.driver_limit
        )
        arguments += ["--host=127.0.0.1", "--port=0", f"--address-file={self._control / ADDRESS}"]
        scheduler = self._start(arguments)
        self._write_pid("node-0", scheduler)
        while not (self._control / ADDRESS).exists() and scheduler.poll() is None and not self._stopping:
            time.sleep(_POLL)
        driver = None
        if scheduler.poll() is None and not self._stopping:
            self._address = json.loads((self._control / ADDRESS).read_text())["url"]
            driver = self._start(options.command, {protocol.ENV_POOL: self._address}) if options.command else None
        size = options.workers
        while not self._stopping:
            size = self._requested(size)
            ended = scheduler.poll()
            if ended is not None:
                if ended not in (0, protocol.NOT_RETRYABLE):
                    print(f"{SCHEDULER_END}{process_end(ended)}", file=sys.stderr, flush=True)
                return ended if ended > 0 else 1
            if driver is not None and driver.poll() is not None:
                return driver.returncode if driver.returncode >= 0 else 128 - driver.returncode
            failure = self._tend_workers(size)
            if failure:
                print(failure, file=sys.stderr, flush=True)
                return protocol.NOT_RETRYABLE
            time.sleep(_POLL)
        return protocol.INTERRUPTED

    def _requested(self, size: int) -> int:
        try:
            return max(1, int((self._control / WORKERS).read_text()))
        except (OSError, ValueError):
            return size

    def _tend_workers(self, size: int) -> str | None:
        """Start missing workers and stop surplus ones; why the pool cannot continue, or None."""
        now = time.monotonic()
        for worker, process in list(self._workers.items()):
            if process.poll() is not None:
                del self._workers[worker]
                failure = self._worker_ended(worker, process.returncode, now) if worker < size else None
                if failure:
                    return failure
            elif worker >= size:
                process.terminate()
        for worker in range(size):
            due, reason = self._due.get(worker, (now, ""))
            if worker not in self._workers and due <= now:
                self._start_worker(worker, reason, now)
        return None

    def _worker_ended(self, worker: int, code: int, now: float) -> str | None:
        reason = f"worker {worker} {process_end(code)}{self._memory_reason(code)}"
        if code == protocol.NOT_RETRYABLE:
            return f"{reason}, and starting it again cannot help: see its output above"
        early = self._early_ends.get(worker, 0) + 1 if now - self._started[worker] < _STEADY else 0
        self._early_ends[worker] = early
        self._due[worker] = (now + _PAUSES[min(early, len(_PAUSES) - 1)], reason)
        print(f"node {self._node(worker)}: {reason}; starting it again", file=sys.stderr, flush=True)
        return None

    def _memory_reason(self, code: int) -> str:
        """That memory ran out, where the kernel has killed a process for it since this was called last."""
        before, self._oom_kills = self._oom_kills, hardware.oom_kills(self._cgroup)
        return " for lack of memory" if code == -signal.SIGKILL and self._oom_kills > before else ""

    def _start_worker(self, worker: int, reason: str, now: float) -> None:
        folder = self._control / f"worker-{worker}"
        if worker not in self._started:  # later processes find what the calls of earlier ones wrote
            _copy(Path(self._options.folder), folder)
        arguments = launchers.pool_worker(sys.executable, worker, self._address, str(folder))
        arguments += ["--host=127.0.0.1", f"--reason={reason}"]
        threads = str(self._options.cpu)
        # RANK is the tag of its lines: its node.
        environment = {"RANK": str(self._node(worker)), protocol.ENV_POOL: self._address}
        environment.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads))
        process = self._start(["--tag", *arguments], environment)
        self._workers[worker], self._started[worker] = process, now
        self._write_pid(f"node-{self._node(worker)}", process)

    def _node(self, worker: int) -> int:
        """The node index of a worker, which comes after those of the ranks or of the driver."""
        return int(self._options.first_node) + worker

    def _start(self, arguments: list[str], environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-S", starter.__file__, *arguments]
        process = subprocess.Popen(command, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL)
        if arguments[0] != "--tag":
            self._others.append(process)
        return process

    def _write_pid(self, name: str, process: subprocess.Popen[bytes]) -> None:
        write_atomically(self._control / f"{name}.pid", str(process.pid))

    def _stop(self, number: int, frame: object) -> None:
        self._stopping = True

    def _end_all(self) -> None:
        """End the driver first and the scheduler last, so that neither misses the other."""
        processes = [*reversed(self._others), *self._workers.values()]
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        deadline = time.monotonic() + _GRACE
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.wait()


def _copy(source: Path, target: Path) -> None:
    """Copy what *source* has to *target*, over what an earlier attempt left there; the rest of that stays."""

    def links(folder: str, names: list[str]) -> list[str]:
        existing = target / Path(folder).relative_to(source)
        return [name for name in names if (existing / name).is_symlink()]  # which `copytree` cannot replace

    shutil.copytree(source, target, symlinks=True, ignore=links, dirs_exist_ok=True)


def process_ids(control: Path) -> Iterator[tuple[int, int]]:
    """The (node, process id) of every process that a local pool has started for a node, from its control folder."""
    for path in sorted(control.glob("node-*.pid")):
        with contextlib.suppress(OSError, ValueError):
            yield int(path.stem.removeprefix("node-")), int(path.read_text())


def main(arguments: list[str]) -> int:
    """Run the pool that the options describe."""
    parser = argparse.ArgumentParser(prog="spotmpi.programs.pool.local")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--first-node", type=int, default=1, help="node index of the first worker")
    parser.add_argument("--cpu", type=int, default=1, help="threads of each worker")
    parser.add_argument("--folder", required=True, help="what each worker finds in its working folder")
    parser.add_argument("--control", required=True, help="folder for the address and for requests")
    parser.add_argument("--interruptions", type=int, default=100)
    parser.add_argument("--start-limit", type=float, default=None)
    parser.add_argument("--driver-limit", type=float, default=None)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the driver's, after --")
    options = parser.parse_args(arguments)
    options.command = options.command[1:] if options.command[:1] == ["--"] else options.command
    return LocalPool(options).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
