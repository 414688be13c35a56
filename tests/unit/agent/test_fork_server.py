"""Ranks that are forks of a process with their libraries imported: they run as in a new interpreter, or in one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import fork_server, preload, processes, protocol
from spotmpi.core import names
from tests.contract.processes import are_gone, wait_until

RANK_WRAPPER = [sys.executable, "-I", "-S", str(names.SOURCE / "spotmpi" / "agent" / "rank_wrapper.py")]
# What a program may notice of its process, but for the ids and what the operating system counts.
FACTS = """
import json, os, signal, sys
import library
print("imported", library.__name__, file=sys.stderr)
facts = {
    "argv": sys.argv, "main": [__name__, __file__, str(__spec__ and __spec__.name), __package__, __doc__],
    "path": sys.path, "original": getattr(sys, "orig_argv", 0), "folder": os.getcwd(), "flags": repr(sys.flags),
    "variables": {key: value for key, value in os.environ.items() if key != "PARENT"},
    "umask": os.umask(0o22), "cores": sorted(os.sched_getaffinity(0)),
    "signals": [str(signal.getsignal(n)).split(" at ")[0] for n in (1, 2, 10, 12, 13, 15, 17)],
    "streams": [[s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.newlines, s.isatty()]
                for s in (sys.stdin, sys.stdout, sys.stderr)],
    "same": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    "input": sys.stdin.read(), "modules": sys.modules["__main__"].__dict__ is globals(),
    "files": sorted(os.listdir("/proc/self/fd"))[:3],
}
print(json.dumps(facts, indent=1))
"""


class Ranks:
    """A folder with a library and programs, and a fork server for one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.library("library", "print('library says hello'); import os; PROCESS = os.getpid()")
        self.socket = ""

    def library(self, name: str, code: str) -> None:
        (self.folder / f"{name}.py").write_text(textwrap.dedent(code))

    def serve(self, code: str, modules: Sequence[str] = ("library",), *python: str) -> None:
        """Start a server for the program `train.py` with that *code*."""
        self.library("train", code)
        self.serve_for([sys.executable, *python, "train.py"], *modules)

    def serve_for(self, command: list[str], *modules: str) -> None:
        self.command = command
        plan: Any = {"roles": [{"command": command}], "preload": modules}
        server = preload.of_ranks(plan, str(self.folder))
        assert server is not None
        preload.serve(server, str(self.folder), RANK_WRAPPER, {})
        self.socket = server.path

    @property
    def server(self) -> subprocess.Popen[bytes]:
        return preload._servers[self.socket]

    def start(
        self, *arguments: str, how: str = "--fork", options: Sequence[str] = (), **more: Any
    ) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": self.folder}
        command = [*RANK_WRAPPER, how, self.socket, *options, *self.command, *arguments]
        return subprocess.Popen(command, **{**pipes, **more})

    def run(self, *arguments: str, **more: Any) -> tuple[int, str, str]:
        rank = self.start(*arguments, **more)
        output, errors = rank.communicate(timeout=60)
        return rank.returncode, output, errors

    def new_interpreter(self, *arguments: str, **more: Any) -> tuple[int, str, str]:
        done = subprocess.run(
            [*self.command, *arguments], capture_output=True, text=True, cwd=self.folder, timeout=60, **more
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    ranks = Ranks(tmp_path)
    yield ranks
    if ranks.socket:
        ranks.server.kill()
        ranks.server.wait()
        processes.exempt.discard(ranks.server.pid)


def test_what_triton_keeps_is_released_at_exit_as_in_a_new_interpreter(ranks: Ranks) -> None:
    """As modules of nanobind expect it, such as triton's: else they print what has leaked."""
    ranks.library(
        "triton",
        """
        class Kept:
            def __init__(self): self.itself = self
            def __del__(self, print=print): print("released")
        kept = Kept()
        """,
    )
    ranks.serve("import triton; print('up')", ("triton",))

    assert ranks.run() == ranks.new_interpreter() == (0, "up\nreleased\n", "")


@pytest.mark.parametrize("options", [[], ["-u"], ["-O", "-B"]], ids=str)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_program_sees_what_it_would_see_in_a_new_interpreter(
    ranks: Ranks, options: list[str], unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    environment = {**os.environ, "OWN": "é=\n"}
    ranks.serve(FACTS, ["library"], *options)
    nowhere = {"stdin": subprocess.DEVNULL, "env": environment, "umask": 0o27}

    forked, new = ranks.run("a b", "", **nowhere), ranks.new_interpreter("a b", "", **nowhere)

    assert forked == new and forked[0] == 0 and "library says hello" in forked[1]


def test_a_module_of_a_package_runs_as_in_a_new_interpreter(ranks: Ranks) -> None:
    (ranks.folder / "package").mkdir()
    (ranks.folder / "package" / "__init__.py").touch()
    (ranks.folder / "package" / "program.py").write_text(FACTS + "\nfrom . import other")
    (ranks.folder / "package" / "other.py").touch()
    ranks.serve_for([sys.executable, "-m", "package.program"], "library")
    nowhere = {"stdin": subprocess.DEVNULL}

    assert ranks.run("x", **nowhere) == ranks.new_interpreter("x", **nowhere)


def test_a_program_that_is_itself_preloaded_runs_once_more_as_the_main_module(ranks: Ranks) -> None:
    (ranks.folder / "package").mkdir()
    (ranks.folder / "package" / "__init__.py").touch()
    (ranks.folder / "package" / "program.py").write_text(
        "import os, library\nprint(__name__, library.PROCESS == os.getpid())"
    )
    ranks.serve_for([sys.executable, "-m", "package.program"], "package.program")

    code, output, errors = ranks.run()

    assert (code, errors) == (0, "") and output.splitlines()[-2:] == ["package.program True", "__main__ False"]


def test_a_rank_on_a_terminal_has_the_streams_of_a_terminal(ranks: Ranks) -> None:
    ranks.serve("import sys; print(sys.stdout.isatty(), sys.stdout.line_buffering, flush=True)", ["json"])
    ours, theirs = os.openpty()
    rank = ranks.start(stdout=theirs)
    os.close(theirs)
    assert os.read(ours, 100) == b"True True\r\n" and rank.wait(60) == 0
    os.close(ours)


def test_libraries_are_imported_once_for_all_ranks_and_attempts(ranks: Ranks) -> None:
    ranks.serve("import library, os; print(library.PROCESS, os.getppid(), os.getpid())")
    outputs = [ranks.run()[1].split("\n")[1].split() for _ in range(3)]
    assert {tuple(each[:2]) for each in outputs} == {(str(ranks.server.pid),) * 2}
    assert len({each[2] for each in outputs}) == 3


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit(7)",
        "import sys; sys.exit('no such data')",
        "def f(): raise ValueError('é')\nf()",
        "import atexit; atexit.register(print, 'bye'); print('end')",
        "import os; os._exit(75)",
        "1 +",
        "raise KeyboardInterrupt",
        "import os; os.kill(os.getpid(), 9)",
        "import os, signal; os.kill(os.getpid(), 15)",
        "import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()",
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
    ],
    ids=lambda code: code.split(";")[-1].split("\n")[0],
)
def test_a_rank_ends_as_in_a_new_interpreter_with_the_same_output(ranks: Ranks, code: str) -> None:
    ranks.serve(code, ["json"])
    assert ranks.run() == ranks.new_interpreter()


def test_a_program_that_is_missing_is_reported_as_ever(ranks: Ranks) -> None:
    ranks.serve("", ["json"])
    (ranks.folder / "train.py").unlink()
    code, output, errors = ranks.run()
    assert (code, output, errors) == ranks.new_interpreter() and "No such file" in errors


def test_signals_to_a_rank_wrapper_reach_its_rank(ranks: Ranks) -> None:
    ranks.serve(
        """
        import os, signal, sys, time
        signal.signal(signal.SIGUSR1, lambda *ignored: os.write(1, b"usr1\\n"))
        signal.signal(signal.SIGTERM, lambda *ignored: sys.exit(9))
        os.write(1, b"up\\n")
        while True: time.sleep(0.01)  # pause() waits for ever if the signal comes just before it
        """,
        ["json"],
    )
    rank = ranks.start()
    assert rank.stdout and rank.stdout.readline() == "up\n"
    rank.send_signal(signal.SIGUSR1)
    assert rank.stdout.readline() == "usr1\n"
    rank.send_signal(signal.SIGTERM)
    assert rank.wait(60) == 9


WITH_CHILD = """
import os, subprocess, time
child = subprocess.Popen(["sleep", "300"])
print(os.getpid(), child.pid, flush=True)
time.sleep(300)
"""


def test_a_rank_and_its_children_end_with_its_rank_wrapper(ranks: Ranks) -> None:
    ranks.serve(WITH_CHILD, ["json"])
    rank, other = ranks.start(), ranks.start()
    assert rank.stdout and other.stdout
    pids, others = [[int(pid) for pid in each.stdout.readline().split()] for each in (rank, other) if each.stdout]

    rank.kill()

    wait_until(lambda: are_gone(pids))
    assert rank.wait(60) == -signal.SIGKILL and not are_gone(others) and ranks.server.poll() is None
    other.kill()
    wait_until(lambda: are_gone(others))


def test_a_server_that_is_killed_takes_ranks_along_and_another_one_is_started(ranks: Ranks) -> None:
    ranks.serve("import os, sys, time; print(os.getpid(), flush=True); time.sleep(float(sys.argv[1]))", ["json"])
    rank, before = ranks.start("300"), ranks.server
    assert rank.stdout
    pid = int(rank.stdout.readline())

    before.kill()

    wait_until(lambda: are_gone([pid]))
    assert rank.wait(60) == -signal.SIGKILL and rank.stderr
    assert "the fork server of this node has ended" in rank.stderr.read()
    code, output, errors = ranks.run("0")
    assert code == 0 and output
    reason = "no fork server: Connection refused; killed from outside, as for lack of memory, or by an import of `pre"
    assert f"ranks start without preload: {reason}" in errors and "correct" not in errors
    code, output, errors = ranks.run("0", how="--may-fork")  # for who has not asked for forks
    assert (code, errors) == (0, "") and output
    ranks.serve((ranks.folder / "train.py").read_text(), ["json"])
    assert ranks.server.pid != before.pid and before.pid not in processes.exempt
    assert ranks.run("0")[2] == ""


@pytest.mark.parametrize("how", ["--fork", "--may-fork"])
def test_the_end_of_each_server_is_reported_by_one_of_its_ranks(ranks: Ranks, how: str) -> None:
    """All of them did, so also each process of a pool."""
    for _ in range(2):
        ranks.serve("import time; print(flush=True); time.sleep(300)", ["json"])
        started = [ranks.start(how=how) for _ in range(3)]
        for rank in started:
            assert rank.stdout and rank.stdout.readline()
        ranks.server.kill()
        errors = [rank.communicate(timeout=60)[1] for rank in started]
        ranks.server.wait()
        assert sorted(error.count("the fork server of this node has ended") for error in errors) == [0, 0, 1]


def test_the_end_of_an_attempt_leaves_the_server_and_kills_its_ranks(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks.serve(WITH_CHILD, ["json"])
    rank = ranks.start()
    assert rank.stdout
    pids = [int(pid) for pid in rank.stdout.readline().split()]
    below = {rank.pid, *pids, ranks.server.pid}
    assert below <= set(processes.descendants())
    descendants = processes.descendants
    monkeypatch.setattr(processes, "descendants", lambda: [pid for pid in descendants() if pid in below])

    processes.kill_descendants()
    assert processes.mortal_descendants() == []

    wait_until(lambda: are_gone(pids))
    assert ranks.server.poll() is None


THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(300,), daemon=True).start()\n"


@pytest.mark.parametrize(
    ("module", "code", "problem"),
    [
        ("nowhere", None, "cannot import \"nowhere\": ModuleNotFoundError: No module named 'nowhere'"),
        ("bad", "1/0", 'cannot import "bad": ZeroDivisionError: division by zero'),
        ("leaves", "import sys; sys.exit(3)", 'cannot import "leaves": SystemExit: 3'),
        ("threads", THREAD * 2, 'the import of "threads" leaves 2 threads running'),
        (
            "gpu",
            "import __main__\n__main__._open_files = lambda: ['/dev/null', '/dev/nvidia-uvm']",
            'the import of "gpu" opens a GPU',
        ),
        ("mpi", "from mpi4py import MPI\nMPI.Init_thread(3)", 'the import of "mpi" initializes MPI'),
        (
            "ends",
            "import os; os._exit(1)",
            "the fork server has ended|Connection reset by peer|Connection refused|Broken pipe",
        ),
    ],
)
def test_where_no_fork_is_possible_a_new_interpreter_runs_the_rank_and_one_line_says_why(
    ranks: Ranks, module: str, code: str | None, problem: str
) -> None:
    mpi4py(ranks)
    if code is not None:
        ranks.library(module, code)
    ranks.serve("import os; print(os.getppid(), flush=True)", [module, "library"])

    local_ranks = ("0", "1") if module in ("ends", "bad") else ("1", "0")  # whichever asks first
    first, second = (ranks.run(env={**os.environ, "OMPI_COMM_WORLD_LOCAL_RANK": each}) for each in local_ranks)

    assert first[:2] == second[:2] == (0, f"{os.getpid()}\n"), "in the place of its rank wrapper"
    assert second[2] == ""
    remedy = r"killed from .* another one" if module == "ends" else r"correct `preload` in the spec, or set it to \[\]"
    line = rf"spotmpi: ranks start without preload: (.*); {remedy}\n"
    match = re.fullmatch(line, first[2])
    assert match and re.fullmatch(
        problem if "|" in problem else re.escape(problem), match[1].replace("no fork server: ", "")
    )


def test_threads_that_end_themselves_before_a_fork_are_no_obstacle(ranks: Ranks) -> None:
    """OpenBLAS does so (`openblas_fork_handler` in its memory.c, by pthread_atfork)."""
    ranks.library(
        "blas",
        """
        import os, threading
        end = threading.Event()
        thread = threading.Thread(target=end.wait)
        thread.start()
        os.register_at_fork(before=lambda: (end.set(), thread.join()))
        """,
    )
    ranks.serve("import os; print(os.getppid())", ["blas"])
    assert ranks.run() == (0, f"{ranks.server.pid}\n", "")


def mpi4py(ranks: Ranks) -> None:
    """A double of mpi4py 4: the import of its module MPI initializes MPI as `rc` says (mpi4py/src/mpi4py/MPI.src)."""
    folder = ranks.folder / "mpi4py"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import rc\n")
    (folder / "rc.py").write_text("initialize = True\nfinalize = None\nthreads = True\nthread_level = 'multiple'\n")
    (folder / "MPI.py").write_text(
        textwrap.dedent(
            """
            import atexit, os
            from . import rc
            THREAD_SERIALIZED, THREAD_MULTIPLE = 2, 3
            _initialized_in = None
            def Is_initialized(): return _initialized_in is not None
            def Init_thread(level):
                global _initialized_in
                _initialized_in = os.getpid(), level
            if rc.initialize: Init_thread(THREAD_MULTIPLE)
            if rc.finalize or (rc.finalize is None and rc.initialize):
                atexit.register(lambda: Is_initialized() and print("finalized", flush=True))
            """
        )
    )


@pytest.mark.parametrize("modules", [["mpi4py.MPI"], ["library"]], ids=["with MPI", "MPI later"])
def test_mpi_is_initialized_in_the_rank_and_not_in_the_server(ranks: Ranks, modules: list[str]) -> None:
    mpi4py(ranks)
    ranks.serve(
        "import os\nfrom mpi4py import MPI, rc\nprint(MPI._initialized_in == (os.getpid(), 3), rc.initialize)", modules
    )
    status, output, errors = ranks.run()
    assert status == 0 and output.splitlines()[-2:] == ["True True", "finalized"] and errors == ""


def test_the_generators_of_ranks_have_states_of_their_own(ranks: Ranks) -> None:
    ranks.serve("import numpy, random; print(numpy.random.rand(), random.random())", ["numpy.random", "random"])
    drawn = [ranks.run()[1].split() for _ in range(2)]
    assert drawn[0][0] != drawn[1][0] and drawn[0][1] != drawn[1][1]


def test_a_forked_rank_may_be_tagged(ranks: Ranks) -> None:
    ranks.serve("import sys; print('out'); print('err', file=sys.stderr); sys.exit(4)", ["json"])
    assert ranks.run(options=["--tag"], env={**os.environ, "RANK": "3"}) == (
        4,
        "[0,3]<stdout>: out\n",
        "[0,3]<stderr>: err\n",
    )


@pytest.mark.parametrize(("code", "end"), [("os.kill(os.getpid(), 9)", -9), ("os._exit(4)", 4), ("os._exit(0)", 0)])
def test_a_killed_rank_under_mpi_is_reported_after_its_output(ranks: Ranks, code: str, end: int) -> None:
    """Of one that exits only mpirun tells whether it called MPI_Abort."""
    ranks.serve(f"import os, sys; print('half', end='', flush=True); print('err', file=sys.stderr); {code}", ["json"])
    status, output, errors = ranks.run(options=["--report"], env={**os.environ, "OMPI_COMM_WORLD_RANK": "1"})

    assert status == end
    ends = [protocol.read_rank_end(text.rstrip("\n")) for text in (output, errors.replace("err\n", ""))]
    assert ends == ([("half", 1, -9), ("", 1, -9)] if end < 0 else [None, None])


def test_a_request_that_breaks_off_costs_no_other_rank_anything(ranks: Ranks) -> None:
    import socket

    ranks.serve("print('fine')", ["json"])
    for data in (b"", b"\0\0", (5).to_bytes(8, "big") + b"a\0b", (3).to_bytes(8, "big") + b"abc"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(ranks.socket)
            connection.sendall(data)
    assert ranks.run() == (0, "fine\n", "")


def test_only_this_user_may_ask_for_a_fork(ranks: Ranks) -> None:
    ranks.serve("", ["json"])
    assert Path(ranks.socket).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "train.py", "-u"], (["python"], False, "train.py", ["-u"])),
        (["/image/bin/python3.11", "-u", "-m", "a.b", "x"], (["/image/bin/python3.11", "-u"], True, "a.b", ["x"])),
        (["python3", "-m"], None),
        (["python3", "-c", "pass"], None),
        (["python3", "-X", "dev", "train.py"], None),
        (["python3", "folder"], None),
        (["python3"], None),
        (["./train.py"], None),
        (["pythonic", "train.py"], None),
        ([], None),
    ],
)
def test_a_fork_executes_scripts_and_modules(command: list[str], expected: Any) -> None:
    assert fork_server.entry(command) == expected
