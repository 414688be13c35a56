"""Starts one rank: it dies with its launcher, and gets the environment that the agent wrote for it.

    python rank_wrapper.py [--env FILE] [--fork SOCKET | --may-fork SOCKET] [--report] [--tag] COMMAND [ARGUMENT ...]

FILE holds one JSON object of strings; mpirun over ssh carries neither an image's ENV nor a pod's variables.
SOCKET is that of a fork server of this node (fork_server.py), whose process becomes the rank in place of this one.
Where there can be none, --fork prints the reason; a user who has not asked for forks (--may-fork) needs none.
--report tells the agent at once that a rank has failed, for which launchers take half a second: by a line at the end of
its output, which `protocol.read_rank_end` reads. A rank that replaces this process is not reported.
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
    from _socket import socket
    from types import ModuleType

_PR_SET_PDEATHSIG = 1
_ENDED = "killed from outside, as for lack of memory, or by an import of `preload`; the next attempt starts another one"
_SIGKILL = 9  # on every POSIX system; the import of `signal` would take a third of this start
# Seconds after a report until the launcher learns that the rank has ended. It passes on no output while it ends others.
_REPORT_TIME = 0.25
_signals: list[int] = []  # that have arrived


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

        with open(arguments[1], encoding="utf-8") as file:
            os.environ.update(json.load(file))
        arguments = arguments[2:]
    server, explains = None, arguments[:1] == ["--fork"]
    if arguments[:1] in (["--fork"], ["--may-fork"]):
        server, arguments = arguments[1], arguments[2:]
    reports, arguments = arguments[:1] == ["--report"], arguments[arguments[:1] == ["--report"] :]
    die_with_parent()
    # Open MPI 5 gives rank 0 a pipe that has no end: who reads there waits for ever.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    is_tagged = arguments[:1] == ["--tag"]
    status = _run_tagged(arguments[1:], server, explains) if is_tagged else _run(arguments, server, explains)
    if reports and status:
        _report(status, is_tagged)
    return _end_as(status)


def _run(arguments: list[str], server: str | None, explains: bool) -> int:
    """The wait status of the command as a fork of the server, where that can fork; else it replaces this process.

    What prevents the fork is printed if it *explains*.
    """
    status = None if server is None else _run_forked(arguments, server, explains)
    return _exec(arguments) << 8 if status is None else status


def _exec(arguments: list[str]) -> int:
    """The exit code of a command that cannot be executed."""
    try:
        os.execvp(arguments[0], arguments)
    except FileNotFoundError:
        sys.stderr.write("%s: command not found\n" % arguments[0])
        return 127
    except OSError as error:
        sys.stderr.write("%s: cannot be run: %s\n" % (arguments[0], error.strerror))
        return 126


def _run_forked(arguments: list[str], server: str, explains: bool) -> int | None:
    """Stand for a process that the server forks until it has ended; its wait status, or None where none was forked."""
    import _signal  # type: ignore[import-not-found]  # `signal` and `socket` would take a third of this start each
    import _socket

    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    is_forked, answer = False, b""

    def forward(number: int, frame: object) -> None:
        """Send a signal on; where no process has been forked yet, end by it."""
        _signals.append(number)
        try:
            if is_forked or connection.recv(1, _socket.MSG_PEEK | _socket.MSG_DONTWAIT) == b"f":
                connection.send(bytes([number]))
                return
        except OSError:
            if is_forked:  # it has just ended
                return
        _signal.signal(number, _signal.SIG_DFL)
        os.kill(os.getpid(), number)

    try:
        connection.connect(server)
        text = _request(arguments, _signal)
        for number in map(int, (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGUSR1, _signal.SIGUSR2)):
            if _signal.getsignal(number) != _signal.SIG_IGN:
                _signal.signal(number, forward)
        files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
        connection.sendmsg([len(text).to_bytes(8, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
        connection.sendall(text)
        # Left in the socket, where `forward` sees it too until `is_forked` is set.
        is_forked = connection.recv(1, _socket.MSG_PEEK) == b"f"
        answer = b"f" if is_forked else _rest(connection)
        reason, remedy = answer[1:].decode(), "correct `preload` in the spec, or set it to []"
        if not answer:
            reason, remedy = "the fork server has ended", _ENDED
    except OSError as error:
        reason, remedy = "no fork server: %s" % error.strerror, _ENDED
    if not is_forked:
        local_rank = os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", os.environ.get("LOCAL_RANK", "0"))
        if explains and reason and (answer or local_rank == "0"):  # the server gives its reason to one rank
            _print_error("ranks start without preload: %s; %s" % (reason, remedy))
        return None
    status = _rest(connection)[1:]
    if len(status) == 4:
        return int.from_bytes(status, "big")
    if _is_first(server + ".ended"):  # removed where another server starts
        _print_error("the fork server of this node has ended, and every rank that it had started with it")
    return _SIGKILL


def _is_first(report: str) -> bool:
    """Whether no other process of this node has made this *report*, the path of a file; True if there can be none."""
    try:
        os.close(os.open(report, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    except OSError:
        pass
    return True


def _print_error(text: str) -> None:
    sys.stderr.write("spotmpi: %s\n" % text)
    sys.stderr.flush()


def _request(arguments: list[str], signal: ModuleType) -> bytes:
    """What the process of a rank is to have from this one, as `fork_server.receive` reads it."""
    ignored = [n for n in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) == signal.SIG_IGN]
    umask = os.umask(0)
    os.umask(umask)
    lists = (",".join(map(str, numbers)) for numbers in (sorted(os.sched_getaffinity(0)), map(int, ignored)))
    fields = [os.getcwd(), str(umask), *lists, str(len(arguments)), *arguments]
    fields += ["%s=%s" % item for item in os.environ.items()]
    return b"\0".join(map(os.fsencode, fields))


def _rest(connection: socket) -> bytes:
    """What arrives until the other end is closed."""
    parts = iter(lambda: connection.recv(1 << 12), b"")
    return b"".join(parts)


def _report(status: int, is_tagged: bool) -> None:
    """Report a failed rank on stdout and stderr, after what it has printed there, and leave the agent time to act.

    One that was asked to end has not failed, and of one that exits under MPI only mpirun tells whether by MPI_Abort.
    """
    import contextlib
    import select
    import signal

    rank, code = os.environ.get("OMPI_COMM_WORLD_RANK"), os.WEXITSTATUS(status)
    if os.WIFSIGNALED(status):
        code = -os.WTERMSIG(status)
    if {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}.intersection(_signals) or (rank is not None and code > 0):
        return
    rank = rank or os.environ.get("RANK", "0")
    line = b'{"spotmpi":"rank_end","rank":%d,"code":%d}\n' % (int(rank), code)
    with contextlib.suppress(OSError):  # the launcher has ended
        for descriptor, stream in ((1, "stdout"), (2, "stderr")):
            if descriptor in select.select([], [descriptor], [], 0)[1]:  # it may read no more
                if is_tagged:
                    Tagger(rank, stream, descriptor).feed(line)
                else:
                    os.write(descriptor, line)
    select.select([], [], [], _REPORT_TIME)


def _end_as(status: int) -> int:
    """The exit code of a wait status, or the end of this process by the same signal."""
    if os.WIFSIGNALED(status):
        import resource
        import signal

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core file is that of the process which had the error
        if os.WTERMSIG(status) != signal.SIGKILL:  # which cannot be caught
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
            # Who started this process may have blocked it, as abort(3) expects: the exit code would be 0.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [os.WTERMSIG(status)])
        os.kill(os.getpid(), os.WTERMSIG(status))
    return os.WEXITSTATUS(status)


def _run_tagged(arguments: list[str], server: str | None, explains: bool) -> int:
    """Start the command as a child and forward its output line by line; its wait status."""
    import contextlib
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
        os._exit(_end_as(_run(arguments, server, explains)))

    def forward(number: int, frame: object) -> None:
        _signals.append(number)
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, forward)
    with selectors.DefaultSelector() as selector:
        for descriptor, (stream, (reading, writing)) in enumerate(pipes.items(), 1):
            os.close(writing)
            selector.register(reading, selectors.EVENT_READ, Tagger(os.environ.get("RANK", "0"), stream, descriptor))
        return _forward(selector, child)


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
