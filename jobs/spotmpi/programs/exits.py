"""How a rank exits: its exit codes, errors that end the whole job, and signals that announce its end."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from spotmpi.agent import protocol
from spotmpi.agent.files import write_atomically

STOPPED = 143  # 128 + SIGTERM, what an agent expects of a rank that received SIGTERM


class Fatal(Exception):
    """An error that another attempt cannot get past; the text names the problem, the value and the remedy."""


class Failed(Exception):
    """An error that ends this attempt, while another may succeed; the text is the reason, without a traceback."""


def exit_together(main: Callable[[], None]) -> Callable[[], None]:
    """Wrap *main* such that an error in one rank ends the whole job.

    Otherwise a rank that raises waits in MPI_Finalize for the others, which wait for it in a collective.
    """

    def run() -> None:
        """*main*, of which an error on one rank ends this process at once with a code that agents know."""
        try:
            main()
        except Fatal as problem:
            end_job(str(problem))
        except Failed as problem:
            print(f"error: {problem}", file=sys.stderr)
            leave(protocol.FAILED)
        except SystemExit as error:
            if error.code:
                leave(error.code if isinstance(error.code, int) else protocol.FAILED)
            raise
        except KeyboardInterrupt:
            leave(130)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)  # that of a stream leaves with a code of its own
            leave(protocol.FAILED)

    return run


def leave(code: int) -> NoReturn:
    """Exit at once, without waiting for a collective; launchers then end the job."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)


def launcher_rank() -> int:
    """The rank of this process, from the environment variables of mpirun or torchrun, or 0; needs no framework."""
    return int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("RANK") or 0)


def end_job(reason: str) -> NoReturn:
    """End the whole job for good: another attempt would meet the same *reason*, which the agent is told."""
    # Most fatal errors occur on every rank at once: rank 0 reports them, which ends the others.
    if launcher_rank():
        time.sleep(1)
    print(protocol.encode(protocol.FATAL, reason=reason), flush=True)
    print(f"error: {reason}", file=sys.stderr)
    leave(protocol.NOT_RETRYABLE)


# Seconds after SIGTERM: rank 0 needs the others to finish its iteration before it can write a checkpoint.
_OTHER_RANKS_GRACE = 20.0
# Seconds after the checkpoint of a notice. The agent answers it with SIGTERM, and mpirun (measured: Open MPI 5.0.11)
# kills ranks 0.25 s after it has passed that on: iterations in between would be lost.
_END_WAIT = 5.0


class Notices:
    """Handles SIGUSR1 (write a checkpoint) and SIGTERM (write a checkpoint and exit) between iterations of rank 0.

    `between_iterations` calls *act*, with whether to exit, if a signal has arrived. After SIGUSR1 it waits up to
    *end_wait* seconds for SIGTERM.
    """

    def __init__(self, act: Callable[[bool], None], pid_file: Path | None = None, end_wait: float = _END_WAIT) -> None:
        self._act = act
        self._pid_file = pid_file
        self._end_wait = end_wait
        self._pending = False
        self._exit_requested = False
        self._immediate = False

    def install_handlers(self) -> None:
        """Install the signal handlers, and then write the pid file, by which the agent knows about them."""
        signal.signal(signal.SIGUSR1, self._handle_signal)
        signal.signal(signal.SIGTERM, self._handle_signal)
        if self._pid_file:
            write_atomically(self._pid_file, f"{os.getpid()}\n")

    def between_iterations(self) -> bool:
        """Act on a signal that arrived during the iteration; whether there was one."""
        acted = self._pending
        if self._pending:
            self._pending = False
            self._act(self._exit_requested)
            if not self._exit_requested:
                self._wait_for_end()
        return acted

    def _wait_for_end(self) -> None:
        until = time.monotonic() + self._end_wait
        while not self._exit_requested and time.monotonic() < until:
            time.sleep(0.01)
        if self._exit_requested:
            self._pending = False
            self._act(True)

    @contextmanager
    def parameters_unchanged(self) -> Iterator[None]:
        """A phase, such as an evaluation, in which a signal is acted on at once, since the parameters do not change."""
        self.between_iterations()
        self._immediate = True
        try:
            yield
        finally:
            self._immediate = False
        self.between_iterations()

    def close(self) -> None:
        """Remove the pid file; later signals have their default effect, except that SIGUSR1 is ignored."""
        if self._pid_file:
            with suppress(OSError):
                self._pid_file.unlink()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        self._pending = True
        self._exit_requested = self._exit_requested or number == signal.SIGTERM
        if self._immediate:
            self._immediate = False  # a second signal waits until this one is done
            self.between_iterations()
            self._immediate = True


def wait_for_rank_zero() -> None:
    """On every other rank: ignore SIGUSR1, and on SIGTERM stay long enough for rank 0 to write its checkpoint."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit_later)


def _exit_later(number: int, frame: FrameType | None) -> None:
    timer = threading.Timer(_OTHER_RANKS_GRACE, leave, [STOPPED])
    timer.daemon = True
    timer.start()
