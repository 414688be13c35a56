"""Starts one rank: it dies with its launcher, and gets the environment that the agent wrote for it.

    python starter.py [--env FILE] [--tag] COMMAND [ARGUMENT ...]

FILE holds one JSON object of strings; mpirun over ssh carries neither an image's ENV nor a pod's variables.
--tag marks every line of output with its rank, as mpirun does by itself: torchrun lets all ranks write into one pipe,
where parts of their lines would mix.
It is run by path, alone, and imports nothing else of this package; every rank waits for it, so it imports little.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing's own costs an import; type checkers know the name
if TYPE_CHECKING:
    import selectors

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9  # on every POSIX system; the import of `signal` would take a third of this start


def die_with_parent(number: int = _SIGKILL) -> None:
    """Ask Linux to send signal *number* to this process when its parent ends; does nothing on other systems."""
    if sys.platform.startswith("linux"):
        import ctypes

        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os.kill(os.getpid(), number)


def main(arguments: list[str]) -> int:
    """Replace this process by the command; 127 when the command is not found, 126 when it cannot be run."""
    if arguments[:1] == ["--env"]:
        import json

        with open(arguments[1]) as file:
            os.environ.update(json.load(file))
        arguments = arguments[2:]
    die_with_parent()
    if arguments[:1] == ["--tag"]:
        return _run_tagged(arguments[1:])
    return _exec(arguments)


def _exec(arguments: list[str]) -> int:
    try:
        os.execvp(arguments[0], arguments)
    except FileNotFoundError:
        sys.stderr.write("%s: command not found\n" % arguments[0])
        return 127
    except OSError as error:
        sys.stderr.write("%s: cannot be run: %s\n" % (arguments[0], error.strerror))
        return 126


def _run_tagged(arguments: list[str]) -> int:
    """Start the command as a child, forward its output line by line, and exit as it exits."""
    import selectors
    import signal

    pipes = {"stdout": os.pipe(), "stderr": os.pipe()}
    child = os.fork()
    if child == 0:
        for descriptor, (reading, writing) in enumerate(pipes.values(), 1):
            os.close(reading)
            os.dup2(writing, descriptor)
            os.close(writing)
        die_with_parent()
        os._exit(_exec(arguments))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda received, frame: os.kill(child, received))
    with selectors.DefaultSelector() as selector:
        for descriptor, (stream, (reading, writing)) in enumerate(pipes.items(), 1):
            os.close(writing)
            selector.register(reading, selectors.EVENT_READ, Tagger(os.environ.get("RANK", "0"), stream, descriptor))
        status = _forward(selector, child)
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:  # which cannot be caught
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    return os.WEXITSTATUS(status)


def _forward(selector: selectors.BaseSelector, child: int) -> int:
    """Forward output until the child has ended and its pipes are empty; its wait status.

    A process that it leaves behind may hold the pipes open for ever: its output is dropped.
    """
    status = None
    while status is None or selector.get_map():
        ready = selector.select(0.0 if status is not None else 0.2)
        for key, _ in ready:
            data = os.read(key.fd, 1 << 16)
            key.data.feed(data)
            if not data:
                selector.unregister(key.fileobj)
        if not ready:
            for key in selector.get_map().values():
                key.data.flush()
            if status is not None:
                break
        if status is None:
            ended, child_status = os.waitpid(child, os.WNOHANG if selector.get_map() else 0)
            status = child_status if ended else None
    return status


class Tagger:
    """Writes lines with their rank and stream in front, each by one write, so that no other rank's output gets into it.

    A pipe takes at most `ATOMIC` bytes at once: longer lines, and those that are not finished for a while, go in parts,
    all but the last marked with a plus.
    """

    ATOMIC = 4096

    def __init__(self, rank: str, stream: str, descriptor: int) -> None:
        self._tag = ("[0,%s]<%s>: " % (rank, stream)).encode()
        self._part_tag = ("[0,%s]<%s>+: " % (rank, stream)).encode()
        self._descriptor = descriptor
        self._buffer = b""

    def feed(self, data: bytes) -> None:
        """Write the lines that *data* completes; empty data is the end."""
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._write_line(line, self._tag)
        if not data and self._buffer:
            self._write_line(self._buffer, self._tag)
            self._buffer = b""
        elif len(self._buffer) > self.ATOMIC:
            self.flush()

    def flush(self) -> None:
        """Write the part of an unfinished line that has arrived."""
        if self._buffer:
            self._write_line(self._buffer, self._part_tag)
            self._buffer = b""

    def _write_line(self, line: bytes, tag: bytes) -> None:
        room = self.ATOMIC - len(self._part_tag) - 1
        while len(line) > room:
            self._write(self._part_tag + line[:room] + b"\n")
            line = line[room:]
        self._write(tag + line + b"\n")

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
