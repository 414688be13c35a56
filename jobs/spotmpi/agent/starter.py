"""Starts one rank: it dies with its launcher, and gets the environment that the agent wrote for it.

    python starter.py [--env FILE] [--tag] COMMAND [ARGUMENT ...]

FILE holds one JSON object of strings; mpirun over ssh carries neither an image's ENV nor a pod's variables.
--tag marks every line of output with its rank, as mpirun does by itself: torchrun lets all ranks write into one pipe,
where the halves of their lines mix.
Run by path, alone: it imports nothing of ours.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask Linux to send this process *number* when its parent ends; elsewhere nothing happens."""
    if sys.platform.startswith("linux"):
        import ctypes

        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os.kill(os.getpid(), number)


def main(arguments: list[str]) -> int:
    """Become the command; 127 when there is no such command, 126 when it cannot be run."""
    if arguments[:1] == ["--env"]:
        with open(arguments[1]) as file:
            os.environ.update(json.load(file))
        arguments = arguments[2:]
    die_with_parent()
    if arguments[:1] == ["--tag"]:
        return _tagged(arguments[1:])
    return _become(arguments)


def _become(arguments: list[str]) -> int:
    try:
        os.execvp(arguments[0], arguments)
    except FileNotFoundError:
        sys.stderr.write("%s: no such command on PATH\n" % arguments[0])
        return 127
    except OSError as error:
        sys.stderr.write("%s: cannot be run: %s\n" % (arguments[0], error.strerror))
        return 126


def _tagged(arguments: list[str]) -> int:
    """Start the command as a child, pass its output on line by line, and end as it ends."""
    pipes = {"stdout": os.pipe(), "stderr": os.pipe()}
    child = os.fork()
    if child == 0:
        for descriptor, (reading, writing) in enumerate(pipes.values(), 1):
            os.close(reading)
            os.dup2(writing, descriptor)
            os.close(writing)
        die_with_parent()
        os._exit(_become(arguments))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda taken, frame: os.kill(child, taken))
    with selectors.DefaultSelector() as selector:
        for descriptor, (stream, (reading, writing)) in enumerate(pipes.items(), 1):
            os.close(writing)
            selector.register(reading, selectors.EVENT_READ, Tagger(os.environ.get("RANK", "0"), stream, descriptor))
        status = _pass_on(selector, child)
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:  # whose effect nobody can change
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    return os.WEXITSTATUS(status)


def _pass_on(selector: selectors.BaseSelector, child: int) -> int:
    """Pass output on until the child has ended and its pipes are empty; its wait status.

    A process that it leaves behind may hold the pipes for ever: what that says is nobody's output any more.
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
            ended, found = os.waitpid(child, os.WNOHANG if selector.get_map() else 0)
            status = found if ended else None
    return status


class Tagger:
    """Writes lines with their rank and stream in front, each by one write, so that no other rank's can get into it.

    A pipe takes at most `ATOMIC` bytes at once: longer lines, and those that are not finished for a while, go in parts,
    all but the last marked with a plus.
    """

    ATOMIC = 4096

    def __init__(self, rank: str, stream: str, descriptor: int) -> None:
        self._last = ("[0,%s]<%s>: " % (rank, stream)).encode()
        self._part = ("[0,%s]<%s>+: " % (rank, stream)).encode()
        self._descriptor = descriptor
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Write the lines that *data* completes; no data is the end."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._write_long(line, self._last)
        if not data and self._rest:
            self._write_long(self._rest, self._last)
            self._rest = b""
        elif len(self._rest) > self.ATOMIC:
            self.flush()

    def flush(self) -> None:
        """Write what there is of an unfinished line."""
        if self._rest:
            self._write_long(self._rest, self._part)
            self._rest = b""

    def _write_long(self, line: bytes, tag: bytes) -> None:
        room = self.ATOMIC - len(self._part) - 1
        while len(line) > room:
            self._write(self._part + line[:room] + b"\n")
            line = line[room:]
        self._write(tag + line + b"\n")

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
