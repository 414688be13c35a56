"""The scheduler and a command in node 0's pod, as children of this process: a pool's driver, or a stream's launcher.

    python -m spotmpi.programs.pool.driver [--fork=SOCKET] [--wait-for=FILE] SCHEDULER-OPTION ... -- COMMAND ...

The scheduler is a fork of the fork server at SOCKET, if there is one. The run ends with the command; after one that
succeeded, once FILE exists: the ranks of other nodes need the scheduler.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from spotmpi.agent import launchers, protocol, rank_wrapper
from spotmpi.agent.launcher_output import SCHEDULER_END, SCHEDULER_SIGNALED, process_end

_FORK, _WAIT_FOR, _ADDRESS = "--fork=", "--wait-for=", "--address-file="
_POLL = 0.05  # seconds between looks at the children
_GRACE = 3.0  # seconds from SIGTERM to SIGKILL


class Stopped(Exception):
    """This process received SIGTERM."""


def main(arguments: list[str]) -> int:
    """Run both to the end of either; the exit code of the one that ended first."""
    signal.signal(signal.SIGTERM, _stop)
    gc.enable()  # it imports little
    split = arguments.index("--")
    options, command = arguments[:split], arguments[split + 1 :]
    forks: list[str] = []
    if options[:1] and options[0].startswith(_FORK):
        forks, options = ["--may-fork", options[0].removeprefix(_FORK)], options[1:]
    wait_for = None
    if options[:1] and options[0].startswith(_WAIT_FOR):
        wait_for, options = Path(options[0].removeprefix(_WAIT_FOR)), options[1:]
    children: list[subprocess.Popen[bytes]] = []
    given = [option.removeprefix(_ADDRESS) for option in options if option.startswith(_ADDRESS)]
    # In the folder of this pod's agent: one for each driver would stay where the driver is killed.
    address = Path(*given) if given else Path(os.environ[protocol.ENV_PID_FILE]).with_name("scheduler.json")
    options = options if given else [*options, f"{_ADDRESS}{address}"]
    scheduler = [*forks, sys.executable, "-m", launchers.POOL_SCHEDULER, *options]
    try:
        address.unlink(missing_ok=True)  # of a driver that was killed
        children.append(_start(scheduler))
        while children[0].poll() is None and not address.exists():
            time.sleep(_POLL)
        if children[0].poll() is None:
            children.append(_start(command))
        return _first_end(children, wait_for)
    except Stopped:
        return protocol.INTERRUPTED
    finally:
        address.unlink(missing_ok=True)  # no worker is to be started any more
        _end(children)


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-I", "-S", rank_wrapper.__file__, *command], stdin=subprocess.DEVNULL)


def _stop(number: int, frame: object) -> None:
    raise Stopped


def _first_end(children: list[subprocess.Popen[bytes]], wait_for: Path | None) -> int:
    while True:
        for child in reversed(children):
            code = child.poll()
            if code == 0 and child is not children[0] and wait_for is not None and not wait_for.exists():
                continue
            if code is not None:
                if child is children[0] and code != protocol.NOT_RETRYABLE:
                    how = process_end(code) if code else SCHEDULER_SIGNALED
                    print(f"{SCHEDULER_END}{how}", file=sys.stderr, flush=True)
                    return max(code, 1)
                return code if code >= 0 else 128 - code
        time.sleep(_POLL)


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    """End the driver first and the scheduler last."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for child in reversed(children):
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(_GRACE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
