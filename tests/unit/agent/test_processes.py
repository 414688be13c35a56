"""What keeps the program of a run from the output of its agent, on a kernel that has it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotmpi.agent import __main__ as agent_main
from spotmpi.agent import processes
from spotmpi.agent.plan import COORDINATOR
from spotmpi.core import names

# Another process of the same user tries to open what belongs to this one.
PROGRAM = """
import os, sys
from spotmpi.agent import processes
ready, running = os.pipe(), os.pipe()
agent = os.fork()
if agent == 0:
    if sys.argv[1] == "protected":
        processes.protect_output()
    os.write(ready[1], b"x")
    os.read(running[0], 1)
    os._exit(0)
os.read(ready[0], 1)
for name in ("fd/1", "environ", "mem"):
    try:
        os.close(os.open("/proc/%d/%s" % (agent, name), os.O_RDONLY if name == "environ" else os.O_WRONLY))
        print(name, "opened")
    except OSError as error:
        print(name, type(error).__name__)
os.write(running[1], b"x")
os.waitpid(agent, 0)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no /proc")
@pytest.mark.parametrize(("state", "result"), [("protected", "PermissionError"), ("as it is", "opened")])
def test_a_program_cannot_write_to_the_output_of_an_agent_of_its_user(state: str, result: str) -> None:
    """Like in a pod, whose container has no CAP_SYS_PTRACE; nor has an ordinary user."""
    command = [sys.executable, "-c", PROGRAM, state]
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("needs setpriv of util-linux")
        command = [setpriv, "--bounding-set", "-all", "--inh-caps", "-all", *command]
    answer = subprocess.run(command, cwd=names.SOURCE, capture_output=True, text=True)
    if "setpriv" in answer.stderr:
        pytest.skip("may not change the capabilities of a process here")
    assert answer.stdout.splitlines() == [f"{name} {result}" for name in ("fd/1", "environ", "mem")]


def test_an_agent_protects_its_output_before_it_does_anything_for_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    mounts = SimpleNamespace(work=os.devnull)
    context: Any = SimpleNamespace(
        is_coordinator=True, member=COORDINATOR, mounts=mounts, clock=lambda: 0.0, plan={"environment": {}}
    )
    transport: Any = SimpleNamespace(exchange=None)
    notice: Any = None
    monkeypatch.setattr(os, "makedirs", lambda *arguments, **options: None)
    monkeypatch.setattr(processes, "adopt_orphans", lambda: calls.append("orphans"))
    monkeypatch.setattr(processes, "protect_output", lambda: calls.append("protected"))

    def run(*arguments: object) -> int:
        calls.append("run")
        return 0

    monkeypatch.setattr("spotmpi.agent.coordinator.run", run)
    assert agent_main.run_member(context, transport, notice) == 0
    assert calls.index("protected") < calls.index("run")


GUARDED = """
import os, signal, sys, time
from spotmpi.agent import processes

fork = os.fork

def fork_and_receive():
    child = fork()
    if child:
        os.kill(os.getpid(), signal.SIGTERM)
    return child

os.fork = fork_and_receive
print(os.getpid(), flush=True)
sys.exit(processes.run_guarded(lambda: time.sleep(60) or 0))
"""


def test_a_signal_that_arrives_with_the_start_of_a_guarded_process_ends_both() -> None:
    """The guard alone was ended by it, so that its child went on without one."""
    began = time.monotonic()
    guard = subprocess.run([sys.executable, "-c", GUARDED], stdout=subprocess.PIPE, timeout=90, check=False)
    assert guard.returncode == 128 + signal.SIGTERM and time.monotonic() < began + 50


ORPHANS = """
import os, subprocess, time
from spotmpi.agent import processes

def zombies():
    return sum(each.state == "Z" and each.parent == os.getpid() for each in processes._processes())

processes.adopt_orphans()
direct = subprocess.Popen(["sh", "-c", "exit 4"])
launcher = processes.start(["sh", "-c", "(true &) ; (true &) ; (true &) ; exit 3"], dict(os.environ), "/")
while zombies() < 5:
    time.sleep(0.01)
processes.reap_orphans()
print(zombies(), direct.wait(), launcher.wait())
"""


def test_orphans_that_have_ended_are_reaped_and_nothing_else(tmp_path: Path) -> None:
    """Each takes an entry of a pod's limit of processes, and training may go on for weeks."""
    run = subprocess.run([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert run.stdout == "2 4 3\n", "those of which somebody waits for the end are left"


LEFT_BEHIND = """
import os, time
from types import SimpleNamespace
from spotmpi.agent import processes

processes.adopt_orphans()
clock = SimpleNamespace(uptime=lambda: clock.now, now=0.0)
watch = processes.RankWatch(clock)
# As mpirun does, cat waits for all that hold the output of a rank open.
rank = "OMPI_COMM_WORLD_RANK=0 sh -c 'sleep 1000 & echo on; read _; echo done' | cat"
launcher = processes.subprocess.Popen(["sh", "-c", rank], stdin=-1, stdout=-1, text=True)

def look():
    clock.now += processes.LOOK_INTERVAL
    return [name.split(" (")[0] for name in watch.look([launcher.pid])]

print(launcher.stdout.readline().strip(), look(), look())
launcher.stdin.close()
done = launcher.stdout.readline().strip()
others = lambda: [each for each in processes._processes() if each.parent == os.getpid() and each.pid != launcher.pid]
while not others():  # the rank has ended when what it leaves behind gets another parent
    time.sleep(0.01)
print(done, look(), look(), launcher.wait())
"""


def test_what_ranks_have_left_behind_is_killed_and_lets_mpirun_end() -> None:
    """As by Slurm and Kubernetes, and not while a rank still runs; the second look leaves it time to end by itself."""
    run = subprocess.run([sys.executable, "-c", LEFT_BEHIND], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert run.stdout == "on [] []\ndone [] ['sleep 1000'] 0\n"


def test_a_rank_that_polls_in_mpi_finalize_while_another_one_spins_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the shares of a processor that were measured with Open MPI 5.0 on two busy cores."""
    clock: Any = SimpleNamespace(uptime=lambda: clock.now, now=0.0)
    watch = processes.RankWatch(clock, "A_VARIABLE_OF_RANKS")
    monkeypatch.setattr(watch, "_rank", {7: 0, 8: 1, 9: 1}.get)

    def look(*shares: float) -> str | None:
        clock.now += processes.LOOK_INTERVAL
        times = [share * clock.now for share in shares]
        found = [processes._Process(7 + number, "S", os.getpid(), 1, each) for number, each in enumerate(times)]
        monkeypatch.setattr(processes, "_processes", lambda: found)
        monkeypatch.setattr(processes, "reap_orphans", lambda: None)
        assert watch.look([7, 8, 9]) == []
        return watch.lone_rank(30.0)

    assert [look(0.52, 0.01, 0.03) for _ in range(4)] == [None] * 3 + [
        "rank 1 hardly uses its processor, as in MPI_Finalize, while others run"
    ]
    assert look(0.52, 0.01, 0.4) is None, "a process of it works"
    assert [look(0.05, 0.01, 0.03) for _ in range(5)] == [None] * 5, "all wait for something else"


def test_the_ranks_of_other_nodes_count_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one rank on each node, none was named: each looked as if it were the only one."""
    clock: Any = SimpleNamespace(uptime=lambda: clock.now, now=0.0)
    monkeypatch.setattr(processes, "reap_orphans", lambda: None)
    watches = [processes.RankWatch(clock) for _ in range(2)]
    for rank, watch in enumerate(watches):
        monkeypatch.setattr(watch, "_rank", {7: rank}.get)

    def look(*shares: float | None) -> str | None:
        clock.now += processes.LOOK_INTERVAL
        for watch, share in reversed([*zip(watches, shares, strict=True)]):
            found = [] if share is None else [processes._Process(7, "S", os.getpid(), 1, share * clock.now)]
            monkeypatch.setattr(processes, "_processes", lambda found=found: found)
            assert watch.look([7], [watches[1].states] if watch is watches[0] else []) == []
        return watches[0].lone_rank(30.0)

    assert [look(0.5, 0.4)] * 4 == [None] * 4
    idle = "rank 1 hardly uses its processor, as in MPI_Finalize, while others run"
    assert [look(0.5, 0.0) for _ in range(4)] == [None] * 3 + [idle]
    idle = "rank 0 hardly uses its processor, as in MPI_Finalize, while others run"
    assert [look(0.0, 0.5) for _ in range(5)][-1] == idle
    assert [look(0.5, None) for _ in range(5)][-1] == "rank 1 has ended while others run"
    assert look(0.5, 0.5) is None


MISNAMED = """
import ctypes, os, time
from spotmpi.agent import processes

child = os.fork()
if child == 0:
    ctypes.CDLL(None).prctl(15, b"d\\xc3", 0, 0, 0)  # PR_SET_NAME
    time.sleep(60)
while b"\\xc3" not in open("/proc/%d/comm" % child, "rb").read():
    time.sleep(0.01)
try:
    print(child in processes.descendants())
finally:
    os.kill(child, 9)
"""


def test_a_process_whose_name_the_kernel_has_cut_within_a_letter_is_found() -> None:
    """Of a name 15 bytes are kept: the agent of any run beside such a process failed with UnicodeDecodeError."""
    run = subprocess.run([sys.executable, "-c", MISNAMED], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert run.stdout == "True\n"


@pytest.mark.parametrize(("folder", "is_used"), [("/", True), ("/no/such", False), (".", False)])
def test_a_run_keeps_its_files_in_tmpdir_where_that_is_the_absolute_path_of_a_folder(
    folder: str, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal may still name that of a job which has ended: mpirun could not make it, and ended."""
    monkeypatch.setattr(os, "access", lambda path, mode: path in ("/", "."))
    monkeypatch.setenv("TMPDIR", folder)
    assert agent_main.temporary_folder() == (folder if is_used else "/tmp")
