"""Forks the ranks of a node from a process that has imported the program's libraries: a rank starts in milliseconds.

So are the processes of a pool or stream on one machine, from one that has imported Dask.

    python [-u ...] fork_server.py SOCKET MODULE,... SCRIPT|-m MODULE

It is run by path, alone, by the interpreter of the ranks and with their environment. SOCKET is the number of a socket
that listens. Each rank has a wrapper (rank_wrapper.py), which sends what a rank inherits from its parent: command,
environment, working folder, files and the like. The forked process becomes the rank; the wrapper forwards signals, gets
its wait status and stands for it, and the rank ends where the wrapper does.

MPI, GPUs and threads do not survive a fork. Where the imports leave any, the wrappers start new interpreters instead.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import selectors
import signal
import socket
import struct
import sys
from importlib import import_module
from types import CodeType, ModuleType, TracebackType
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, Type

OPTIONS = ("-u", "-B", "-O", "-OO")  # of interpreters, with which a server is started too
FORKED, NEW = b"f", b"n"  # answers: forked, or start a new interpreter for the reason that follows
_HEAD = struct.Struct("!Q")  # the length of a request
_STATUS = struct.Struct("!i")
_GPUS = ("/dev/nvidia", "/dev/kfd")
_PR_SET_PDEATHSIG = 1
_PATIENCE = 10.0  # seconds for a rank wrapper to send its request


class Entry(NamedTuple):
    """A command that a fork can execute: interpreter with options, then a script or ``-m`` with a module, arguments."""

    interpreter: List[str]
    module: bool
    name: str
    arguments: List[str]


class ForkRequest(NamedTuple):
    """What a rank wrapper sends for its rank."""

    command: List[str]
    environment: Dict[bytes, bytes]
    folder: bytes
    umask: int
    cores: List[int]  # that it may use
    ignored: List[int]  # signals
    files: Tuple[int, ...]  # stdin, stdout and stderr


def entry(command: List[str]) -> Optional[Entry]:
    """What a fork has to execute for *command*; None where it cannot: it is no Python, or has other options."""
    count = 1
    while count < len(command) and command[count] in OPTIONS:
        count += 1
    rest = command[count:]
    is_python = bool(command) and os.path.basename(command[0]).rstrip("0123456789.") == "python"
    if not is_python or not rest:
        return None
    if rest[0] == "-m" and len(rest) > 1:
        return Entry(command[:count], True, rest[1], rest[2:])
    is_script = rest[0].endswith(".py") and not rest[0].startswith("-")
    return Entry(command[:count], False, rest[0], rest[1:]) if is_script else None


class Libraries:
    """The modules that are imported before ranks start, and why no process can be forked with them, if so."""

    def __init__(self, modules: List[str], program: Entry) -> None:
        self.problem: Optional[str] = None
        self.output = (b"", b"")  # what the imports have printed on stdout and stderr
        self._threads = "an import"
        # The first folder of modules: the script's, or the current one for `-m`.
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = os.getcwd() if program.module else os.path.dirname(os.path.realpath(program.name))
        self.mpi = Mpi()
        gc.disable()  # imports make hardly any garbage
        with _captured_output() as files:
            for module in modules:
                self.problem = self.problem or self._import(module)
        self.output = tuple(_content(file) for file in files)  # type: ignore[assignment]
        self.problem = self.problem or self._threads_left()
        gc.freeze()

    def _import(self, module: str) -> Optional[str]:
        """Import a module for all ranks; why its import must not be shared, or None."""
        before = _thread_count()
        try:
            import_module(module)
        except BaseException as error:
            return 'cannot import "%s": %s: %s' % (module, type(error).__name__, str(error).split("\n")[0])
        if _thread_count() > before:
            self._threads = 'the import of "%s"' % module
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is not None and mpi.Is_initialized():
            return 'the import of "%s" initializes MPI' % module
        if any(path.startswith(_GPUS) for path in _open_files()):
            return 'the import of "%s" opens a GPU' % module
        return None

    def _threads_left(self) -> Optional[str]:
        """The threads that a fork would lose: not those of OpenBLAS, which ends its own before a fork."""
        if _thread_count() > 1:
            import warnings

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python's own about such forks
                child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
        count = _thread_count() - 1
        if not count:
            return None
        return "%s leaves %s running" % (self._threads, "1 thread" if count == 1 else "%d threads" % count)


class Mpi:
    """Keeps mpi4py, whose import initializes MPI, from doing so here, and makes up for it in ranks."""

    def __init__(self) -> None:
        self._initialize: Any = None
        self._finalize: Any = None
        with contextlib.suppress(ImportError):
            mpi4py = import_module("mpi4py")
            self._initialize, self._finalize = mpi4py.rc.initialize, mpi4py.rc.finalize
            mpi4py.rc.initialize, mpi4py.rc.finalize = False, True

    def start(self) -> None:
        """Let a later import initialize MPI as ever, or do it now where the import is done."""
        if "mpi4py" not in sys.modules:
            return
        mpi4py = sys.modules["mpi4py"]
        mpi4py.rc.initialize, mpi4py.rc.finalize = self._initialize, self._finalize
        module = sys.modules.get("mpi4py.MPI")
        if module is not None and self._initialize in (None, True):
            module.Init_thread(getattr(module, "THREAD_" + str(mpi4py.rc.thread_level).upper()))


@contextlib.contextmanager
def _captured_output() -> Iterator[Tuple[int, int]]:
    """Let what is printed go into two files, whose descriptors it gives."""
    files = (os.memfd_create("stdout"), os.memfd_create("stderr"))
    for number, file in enumerate(files, 1):
        os.dup2(file, number)
    try:
        yield files
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.close(nowhere)


def _content(file: int) -> bytes:
    with os.fdopen(file, "rb") as reader:
        reader.seek(0)
        return reader.read()


def _thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


def _open_files() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            yield os.readlink("/proc/self/fd/" + name)


class Server:
    """Forks a process for each request; `serve` returns in those alone."""

    def __init__(self, listener: socket.socket, libraries: Libraries) -> None:
        self._listener, self._libraries, self._process = listener, libraries, os.getpid()
        self._ranks: Dict[int, Optional[socket.socket]] = {}  # the connection to the rank wrapper of each process
        self._selector = selectors.DefaultSelector()
        self._woken, self._wakes = socket.socketpair()
        for end in (self._woken, self._wakes, listener):
            end.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wakes.fileno())

    def serve(self) -> ForkRequest:
        """The request that this process, a fork of the server's, is to carry out."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    request = self._accept()
                    if request is not None:
                        return request
                elif key.fileobj is self._woken:
                    with contextlib.suppress(BlockingIOError):
                        self._woken.recv(1 << 12)
                    self._reap()
                else:
                    self._forward(key.data)

    def _accept(self) -> Optional[ForkRequest]:
        """Answer a rank wrapper; its request where this process is the fork."""
        with contextlib.suppress(OSError, ValueError):
            connection, _ = self._listener.accept()
            connection.settimeout(_PATIENCE)
            request = receive(connection)
            try:
                if self._libraries.problem is None:
                    return self._fork(connection, request)
                problem, self._libraries.problem = self._libraries.problem, ""  # one rank reports it
                with connection:
                    connection.sendall(NEW + problem.encode("utf-8", "replace"))
            finally:
                if os.getpid() == self._process:
                    _close(request.files)
        return None

    def _fork(self, connection: socket.socket, request: ForkRequest) -> Optional[ForkRequest]:
        """Fork a process for the request, which returns it; no process, and an answer that says so, if that fails."""
        waits, go = os.pipe()
        try:
            process = os.fork()
            if process == 0:
                os.close(go)
                os.read(waits, 1)  # until the rank wrapper can forward signals, which may follow the first output
                # What belongs to the server alone.
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self._selector.close()
                for each in (self._listener, self._woken, self._wakes, *filter(None, self._ranks.values())):
                    each.close()
                connection.close()
                return request
            self._ranks[process] = connection
            self._selector.register(connection, selectors.EVENT_READ, process)
            connection.sendall(FORKED)
        except BlockingIOError as error:  # of fork: a limit of processes
            with connection:
                connection.sendall(NEW + b"cannot fork: " + str(error.strerror).encode())
        finally:
            os.close(waits)
            if os.getpid() == self._process:
                os.close(go)
        return None

    def _forward(self, process: int) -> None:
        """Send the signals on that a rank wrapper sends, and SIGKILL where the rank wrapper has ended."""
        connection = self._ranks.get(process)
        if connection is None:
            return
        try:
            numbers = connection.recv(1 << 8)
        except OSError:
            numbers = b""
        if not numbers:
            self._selector.unregister(connection)
            connection.close()
            self._ranks[process] = None
        for number in numbers or [signal.SIGKILL]:
            try:
                os.killpg(process, number)
            except ProcessLookupError:  # it has no group of its own yet
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)

    def _reap(self) -> None:
        """Tell the rank wrappers of processes that have ended how they have."""
        with contextlib.suppress(ChildProcessError):
            while True:
                process, status = os.waitpid(-1, os.WNOHANG)
                if process == 0:
                    return
                connection = self._ranks.pop(process, None)
                if connection is not None:
                    self._selector.unregister(connection)
                    with connection, contextlib.suppress(OSError):
                        connection.sendall(_STATUS.pack(status))


def receive(connection: socket.socket) -> ForkRequest:
    """The request that a rank wrapper sends; OSError or ValueError where it is none."""
    space = socket.CMSG_SPACE(3 * struct.calcsize("i"))
    head, control, _, _ = connection.recvmsg(_HEAD.size, space, socket.MSG_CMSG_CLOEXEC | socket.MSG_WAITALL)
    files: Tuple[int, ...] = ()
    for _, _, data in control:
        files += struct.unpack("%di" % (len(data) // 4), data)
    try:
        (length,) = _HEAD.unpack(head)
        text = b""
        while len(text) < length:
            part = connection.recv(length - len(text))
            if not part:
                raise ValueError("the request ends early")
            text += part
        folder, umask, cores, ignored, count, *rest = text.split(b"\0")
        command = [os.fsdecode(part) for part in rest[: int(count)]]
        environment = dict(variable.split(b"=", 1) for variable in rest[int(count) :])
        return ForkRequest(command, environment, folder, int(umask), _numbers(cores), _numbers(ignored), files)
    except (ValueError, struct.error) as error:
        _close(files)
        raise ValueError(str(error)) from error


def _close(files: Tuple[int, ...]) -> None:
    for file in files:
        os.close(file)


def _numbers(text: bytes) -> List[int]:
    return [int(part) for part in text.split(b",") if part]


def become(request: ForkRequest, output: Tuple[bytes, ...], server: int) -> None:
    """Take over what a rank inherits from its rank wrapper; it ends with the *server*."""
    for number, file in enumerate(request.files):
        os.dup2(file, number)
        os.close(file)
    os.setsid()
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os.kill(os.getpid(), signal.SIGKILL)
    os.umask(request.umask)
    os.chdir(request.folder)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, request.cores)
    for number in request.ignored:
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGHUP):  # ignored by the agent, but not by mpirun's children
        if number not in request.ignored and signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.environb.clear()
    os.environb.update(request.environment)
    _open_streams()
    for number, text in enumerate(output, 1):
        while text:
            text = text[os.write(number, text) :]
    # Each process has random states of its own; Python's is seeded again at a fork.
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    gc.enable()
    if "triton" in sys.modules:  # it prints as leaked what is not collected at exit, a second's work with PyTorch
        atexit.register(gc.unfreeze)


def _open_streams() -> None:
    """New streams over the files of this process, which may be terminals, unlike those of the server."""
    import io

    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, name)
        through = getattr(before, "write_through", False)
        raw: Any = io.open(number, "rb" if number == 0 else "wb", 0 if through and number else -1, closefd=False)
        getattr(raw, "raw", raw).name = "<%s>" % name
        lines = os.isatty(number) or (number == 2 and before.line_buffering)
        stream: Any = io.TextIOWrapper(raw, before.encoding, before.errors, "\n" if number else None, lines, through)
        stream.mode = "r" if number == 0 else "w"
        setattr(sys, name, stream)
        setattr(sys, "__%s__" % name, stream)


def execute(program: Entry, mpi: Mpi) -> None:
    """Execute the program as the main module, as its interpreter would."""
    main = ModuleType("__main__")
    vars(main)["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    words = [*program.interpreter, *(["-m"] if program.module else []), program.name, *program.arguments]
    vars(sys).get("orig_argv", [])[:] = words
    sys.argv[:] = ["-m" if program.module else program.name, *program.arguments]
    mpi.start()
    if program.module:
        import runpy

        sys.modules.pop(program.name, None)  # it is executed once more, as the main module
        runpy._run_module_as_main(program.name)  # type: ignore[attr-defined]  # as the interpreter itself does
    else:
        exec(_code(program.name, main), vars(main))


def _code(path: str, main: ModuleType) -> CodeType:
    from importlib.machinery import SourceFileLoader

    if sys.version_info >= (3, 9):
        path = os.path.join(os.getcwd(), path)
    loader = SourceFileLoader("__main__", path)
    names = {"__file__": path, "__loader__": loader, "__spec__": None, "__package__": None, "__cached__": None}
    vars(main).update(names)
    return compile(loader.get_data(path), path, "exec", dont_inherit=True)


def run(request: ForkRequest, mpi: Mpi) -> None:
    """Run the rank of *request*; an error of the program is reported as its interpreter would."""
    program = entry(request.command)
    if program is None or not (program.module or os.path.isfile(program.name)):
        # A new interpreter, which has the messages for a program that does not exist.
        os.execvp(request.command[0], request.command)
    try:
        execute(program, mpi)
    except SystemExit:
        raise
    except BaseException as error:
        _hide_own_frames(error)
        raise


def _hide_own_frames(error: BaseException) -> None:
    """Let the interpreter, which reports *error* and ends accordingly, leave the frames of this file out."""
    trace, hook = error.__traceback__, sys.excepthook
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next

    def report(kind: Type[BaseException], value: BaseException, whole: Optional[TracebackType]) -> None:
        hook(kind, value.with_traceback(trace) if value is error else value, trace if value is error else whole)

    sys.excepthook = report


def main(arguments: List[str]) -> None:
    """Import the modules and serve; in a fork, run the rank."""
    listener = socket.socket(fileno=int(arguments[0]))
    program = entry(["python", *arguments[2:]])
    assert program is not None, "the agent has read the command"
    libraries = Libraries(list(filter(None, arguments[1].split(","))), program)
    server = os.getpid()
    request = Server(listener, libraries).serve()  # returns in forks
    become(request, libraries.output, server)
    run(request, libraries.mpi)


if __name__ == "__main__":
    main(sys.argv[1:])
