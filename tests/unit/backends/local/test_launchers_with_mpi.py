"""Every way in which ranks are started, with a small program: this machine's own mpirun too, where it has one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import launcher_output, launchers, protocol, record
from spotmpi.agent.launcher_output import Line
from spotmpi.images.environment import prepare
from spotmpi.runs import reader
from tests.contract import processes
from tests.contract.conftest import BackendHarness, local_harness
from tests.contract.event_values import texts
from tests.contract.fake_program import SOURCE, fake_job
from tests.contract.processes import wait_until
from tests.testbed.environments import python_with
from tests.testbed.web import free_ports
from tests.unit.backends.local_runs import SLOW, attempts_of, both_attempts, paths_of, rank

pytestmark = [pytest.mark.images, pytest.mark.timeout(600)]


def own_open_mpi() -> int:
    """The major version of the Open MPI on PATH, 0 without one."""
    if not shutil.which("mpirun"):
        return 0
    output = subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout
    return launchers.family(output)


# Image, launcher and more of each way. Our images have Open MPI 5, Debian has Open MPI 4.
MPIRUN = {"image": "chainermn", "launcher": "mpirun", "slots": 2}
TORCHRUN = {"image": "pytorch", "launcher": "torchrun", "nodes": 2, "slots": 1}
ACCELERATE = {**TORCHRUN, "launcher": "accelerate"}
WITH_OPEN_MPI_4 = pytest.mark.skipif(own_open_mpi() != 4, reason="needs Open MPI 4: scripts/images-packages")
AT_NIGHT = pytest.mark.nightly("starts PyTorch twice, 5 s; mpirun and the test that kills a rank take the same way")
MPIRUNS = [
    pytest.param(MPIRUN, id="mpirun"),
    pytest.param({"launcher": "mpirun", "slots": 2}, marks=WITH_OPEN_MPI_4, id="mpirun-4"),
]
BY_TORCHRUN = pytest.mark.nightly("its ranks start as those of torchrun; their variables and sum are tested by day")
OTHERS = [pytest.param(ACCELERATE, id="accelerate", marks=BY_TORCHRUN)]
LAUNCHERS = pytest.mark.parametrize("start", [*MPIRUNS, pytest.param(TORCHRUN, id="torchrun"), *OTHERS])
SELDOM_TORCHRUN = pytest.mark.parametrize(
    "start", [*MPIRUNS, pytest.param(TORCHRUN, id="torchrun", marks=AT_NIGHT), *OTHERS]
)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[BackendHarness]:
    yield from local_harness(tmp_path / "runs", SLOW)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def are_removed(temporary: Path) -> bool:
    """Whether nothing is left among the temporary files.

    A killed mpirun leaves a folder that is named after its process id, and a later one of Open MPI 5.0.11 with that id
    ends with code 213: "The PMIx server's listener thread failed to start".
    """
    return not list(temporary.iterdir())


def fake(start: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The fake program under a launcher; both images bring their own python."""
    return {**fake_job(**more), "command": ["python", "-c", SOURCE], **start}


def launcher(run: str) -> list[int]:
    """The process ids of the run's launchers."""
    modules = "|".join(each.module for each in launchers.LAUNCHERS.values() if each.module)
    words = re.compile(rf"prterun|\bmpirun |/local_ranks\.py |-m ({modules})\.")
    return wait_until(
        lambda: [pid for pid, command in processes.of_run(run).items() if words.search(command.split(" -c ")[0])]
    )


ACCELERATED = """
import torch
from accelerate import Accelerator

own = Accelerator()
total = own.reduce(torch.tensor([float(own.process_index + 1)]), "sum")
print("rank", own.process_index, "of", own.num_processes, "has", float(total))
own.end_training()
"""


@pytest.mark.parametrize(
    ("nodes", "slots"),
    [(2, 1), pytest.param(1, 1, marks=pytest.mark.nightly("5 s; one rank takes the way of two but for an option"))],
)
def test_ranks_of_accelerate_on_all_nodes_find_each_other(
    local: BackendHarness, tmp_path: Path, nodes: int, slots: int
) -> None:
    (tmp_path / "train.py").write_text(ACCELERATED)
    work = {"command": ["python", "train.py"], "files": [str(tmp_path / "train.py")]}

    preload = list(launchers.LAUNCHERS["accelerate"].preload)  # which `spotmpi init` writes
    output = texts(local.all_events({**ACCELERATE, **work, "preload": preload, "nodes": nodes, "slots": slots}))

    assert not [text for text in output if "without preload" in text]
    ranks = nodes * slots
    expected = [f"rank {rank} of {ranks} has {ranks * (ranks + 1) / 2}" for rank in range(ranks)]
    assert sorted(text for text in output if text.startswith("rank")) == expected


WITH_DEEPSPEED = """
import deepspeed, torch

deepspeed.init_distributed(dist_backend="gloo")
total = torch.tensor([float(torch.distributed.get_rank() + 1)])
torch.distributed.all_reduce(total)
print("rank", torch.distributed.get_rank(), "of", torch.distributed.get_world_size(), "has", float(total))
"""


@pytest.mark.nightly("5 GB to install, and an operation to compile; accelerate takes the same way")
def test_ranks_of_deepspeed_on_all_nodes_find_each_other(
    local: BackendHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(WITH_DEEPSPEED)
    monkeypatch.setenv("PATH", f"{python_with('deepspeed').parent}:{os.environ['PATH']}")
    work = {"command": ["python3", "train.py"], "files": [str(tmp_path / "train.py")]}

    output = texts(local.all_events({**work, "launcher": "deepspeed", "nodes": 2, "slots": 2}))

    ranks = sorted(text for text in output if text.startswith("rank "))
    assert ranks == [f"rank {rank} of 4 has 10.0" for rank in range(4)]


@LAUNCHERS
def test_a_killed_rank_is_named_and_the_next_attempt_resumes_above_zero(
    local: BackendHarness, start: dict[str, Any]
) -> None:
    run = local.submit(fake(start, iterations=100, pause=0.05))
    local.wait_for_iteration(run, 5)

    os.kill(rank(run, 1), signal.SIGKILL)

    state = local.wait_for_state(run, "succeeded")
    first, second = both_attempts(local, run)
    assert first["reason"] == "rank 1 was killed by SIGKILL" and first["cause"] == "failure"
    assert second["resumed_iteration"] > 0 and second["lost_iterations"] <= 1
    assert (state.attempt, state.failures, state.interruptions) == (2, 1, 0)


@SELDOM_TORCHRUN
def test_a_killed_launcher_takes_its_ranks_and_files_along_and_is_a_failure(
    local: BackendHarness, start: dict[str, Any], temporary: Path
) -> None:
    run = local.submit(fake(start, iterations=100, pause=0.05))
    local.wait_for_iteration(run, 5)
    before = set(processes.of_run(run))

    os.kill(launcher(run)[-1], signal.SIGKILL)

    local.wait_for_state(run, "succeeded")
    first, second = both_attempts(local, run)
    assert "the launcher on node" in first["reason"] and "killed by SIGKILL" in first["reason"]
    assert first["cause"] == "failure" and second["resumed_iteration"] > 0
    assert not before & set(processes.of_run(run))
    wait_until(lambda: are_removed(temporary))


# Says which of its files are in memory; the first attempt waits to be killed.
SHARES = """
import os, time
from mpi4py import MPI

MPI.COMM_WORLD.Barrier()
with open("/proc/self/maps") as maps:
    for path in sorted({line.split()[-1] for line in maps if "/dev/shm/" in line and "sm_segment" in line}):
        print("shares", path, flush=True)
MPI.COMM_WORLD.Barrier()
time.sleep(300 if os.environ["SPOTMPI_ATTEMPT"] == "1" else 0)
"""


def test_killed_ranks_leave_no_file_in_memory(local: BackendHarness, tmp_path: Path) -> None:
    (tmp_path / "shares.py").write_text(SHARES)
    run = local.submit({**MPIRUN, "command": ["python", "shares.py"], "files": [str(tmp_path / "shares.py")]})

    def shared() -> set[Path]:
        output = texts(list(local.backend.events(run, follow=False)))
        return {Path(text.split()[1]) for text in output if text.startswith("shares")}

    before = wait_until(lambda: shared() if len(shared()) == 2 else set())
    os.kill(launcher(run)[-1], signal.SIGKILL)

    local.wait_for_state(run, "succeeded")
    files = shared()
    assert before < files, "those of both attempts"
    wait_until(lambda: not [path for file in files for path in (file, file.parent) if path.exists()])


@SELDOM_TORCHRUN
def test_a_killed_agent_leaves_no_rank_and_no_file(
    local: BackendHarness, start: dict[str, Any], temporary: Path
) -> None:
    run = local.submit(fake(start, iterations=10_000, pause=0.05))
    local.wait_for_iteration(run, 2)

    os.kill(processes.agents(paths_of(local, run).folder)[1], signal.SIGKILL)

    wait_until(lambda: not processes.of_run(run))
    local.wait_for_state(run, "lost")
    wait_until(lambda: are_removed(temporary))


@pytest.mark.nightly("waits 20 s for no progress; the contract ends a hang on both backends")
@LAUNCHERS
def test_a_hang_is_killed_and_retried(local: BackendHarness, start: dict[str, Any]) -> None:
    job = fake(start, iterations=6, fault={1: [3, "hang"]}, limits={"no_progress": "20s"})

    events = local.all_events(job)

    reason = next(event.reason or "" for event in events if event.kind == "restarted")
    assert "no progress for limits.no_progress (20s), last iteration 3" in reason
    assert events[-1].kind == "succeeded"


@LAUNCHERS
def test_a_stop_gets_its_checkpoint_before_the_launcher_hears_of_it(
    local: BackendHarness, start: dict[str, Any]
) -> None:
    run = local.submit(fake(start, iterations=10_000, pause=0.05, every=100_000))
    local.wait_for_iteration(run, 3)

    local.backend.stop(run, "enough", now=False)

    local.wait_for_state(run, "stopped")
    reasons = [line["reason"] for line in reader.lines(paths_of(local, run).metrics) if line["kind"] == "checkpoint"]
    assert reasons == ["notice"]
    if start["launcher"] not in ("torchrun", "accelerate"):  # torchrun itself prints one on SIGTERM
        assert not [text for text in texts(local.events(run)) if "Traceback" in text]


@SELDOM_TORCHRUN
@pytest.mark.parametrize(("code", "cause"), [(75, "interruption"), (78, "not retryable"), (3, "failure")])
def test_the_exit_code_of_a_rank_is_what_counts(
    local: BackendHarness, start: dict[str, Any], code: int, cause: str
) -> None:
    limits = {"failures": 0, "interruptions": 0}
    run = local.submit(fake(start, iterations=4, fault={1: [2, f"exit {code}"]}, limits=limits))
    local.wait_for_state(run, "failed")

    (attempt,) = attempts_of(local, run)
    assert attempt["cause"] == cause and f"rank 0 ended with exit code {code}" in attempt["reason"]


@SELDOM_TORCHRUN
def test_an_exception_in_a_rank_is_the_reason(local: BackendHarness, start: dict[str, Any]) -> None:
    code = "import os, time\nif os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('RANK')) == '1':\n"
    code += "    raise ValueError('no such weights')\ntime.sleep(30)"
    run = local.submit({"command": ["python", "-c", code], "limits": {"failures": 0}, **start})

    state = local.wait_for_state(run, "failed")

    assert "rank 1 ended with exit code 1: ValueError: no such weights" in (state.reason or "")


# Each rank notes that it has printed: one that mpirun kills before that has lost nothing.
AT_ONCE = """
import os, sys
from mpi4py import MPI

rank, printed = MPI.COMM_WORLD.rank, os.path.join(sys.argv[1], os.environ["SPOTMPI_ATTEMPT"])
os.makedirs(printed, exist_ok=True)
MPI.COMM_WORLD.Barrier()
os.write(1, b"rank %d says why\\n" % rank)
os.write(2, b"rank %d warns\\n" % rank)
open(os.path.join(printed, str(rank)), "w").close()
os._exit(1)
"""
TIMES = 20


@pytest.mark.nightly("20 attempts, 10 s; of ranks that fail one after the other the last lines are tested by day")
def test_the_last_lines_of_forked_ranks_that_all_fail_at_once_are_not_lost(
    local: BackendHarness, tmp_path: Path
) -> None:
    (tmp_path / "fails.py").write_text(AT_ONCE)
    work = {"command": ["python3", "fails.py", str(tmp_path / "printed")], "files": [str(tmp_path / "fails.py")]}
    limits = {"failures": TIMES - 1}

    events = local.all_events({**MPIRUN, **work, "slots": 4, "preload": ["mpi4py.MPI"], "limits": limits})

    lines = {(event.attempt, event.values["text"]) for event in events if event.kind == record.LINE}
    printed = [(int(path.parent.name), path.name) for path in (tmp_path / "printed").glob("*/*")]
    assert len(printed) >= 3 * TIMES, "of most attempts all ranks have come to their end"
    expected = {(attempt, f"rank {rank} {what}") for attempt, rank in printed for what in ("says why", "warns")}
    assert not expected - lines


@LAUNCHERS
def test_every_rank_sees_the_same_variables_except_its_own_numbers(
    local: BackendHarness, start: dict[str, Any]
) -> None:
    requested = {"MINE": "with spaces, 'quotes', $HOME and ünïcode", "OMP_NUM_THREADS": "1"}
    own = ["SPOTMPI_RUN", "SPOTMPI_WORLD_SIZE", "SPOTMPI_ATTEMPT", "SPOTMPI_CHECKPOINT_PATH"]
    names = [*requested, *own, "PATH", "HOME"]
    code = f"import json, os; print('VARIABLES ' + json.dumps({{k: os.environ.get(k) for k in {names!r}}}))"

    output = texts(local.all_events({"command": ["python", "-c", code], "env": requested, **start}))

    first, second = [json.loads(text.partition(" ")[2]) for text in output if text.startswith("VARIABLES")]
    assert first == second
    assert {**requested, "SPOTMPI_WORLD_SIZE": "2"}.items() <= first.items()


@pytest.mark.parametrize("start", [each for each in MPIRUNS if each.id == "mpirun-4"])
def test_ranks_find_commands_in_the_order_of_path_not_first_beside_mpirun(
    local: BackendHarness, start: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `python3` in a venv, where Debian's mpirun has another one beside it."""
    own = tmp_path / "bin" / "python3"
    own.parent.mkdir()
    own.write_text("#!/bin/sh\necho the first on PATH\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", f"{own.parent}:{os.environ['PATH']}")

    output = texts(local.all_events({**start, "command": ["python3", "train.py"]}))

    assert output.count("the first on PATH") == start["slots"]


@pytest.mark.parametrize("start", MPIRUNS)
def test_quick_and_long_lines_of_each_rank_arrive_whole_and_in_order(
    local: BackendHarness, start: dict[str, Any]
) -> None:
    code = "import os; print('rank', os.environ['OMPI_COMM_WORLD_RANK'], 'x' * 50_000)\n"
    code += "for i in range(10_000): print(i, 'y' * 60)"
    events = local.all_events({"command": ["python", "-c", code], **start})

    lines = [event.values for event in events if event.kind == record.LINE]
    for number in (0, 1):
        expected = [f"rank {number} {'x' * 50_000}", *(f"{i} {'y' * 60}" for i in range(10_000))]
        assert [line["text"] for line in lines if line["rank"] == number] == expected


# In place of ssh: the daemon of the other host runs on this machine.
AGENT = """#!/bin/sh
shift
exec setsid sh -c "$*"
"""


@pytest.mark.parametrize("image", ["chainermn", "pytorch"])
def test_mpirun_that_lost_a_host_is_an_interruption_whatever_its_exit_code(image: str, tmp_path: Path) -> None:
    environment_folder, agent = prepare(image), tmp_path / "agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    command = [str(environment_folder / "bin" / "mpirun"), "--prtemca", "plm_ssh_agent", str(agent), "-np", "2"]
    command += ["--host", "elsewhere:1,localhost:1", "sh", "-c", "echo $$; exec sleep 600"]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment = {**os.environ, **root, "PATH": f"{environment_folder / 'bin'}:{os.environ['PATH']}"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as mpirun:
        assert mpirun.stdout
        ranks = [int(mpirun.stdout.readline()) for _ in range(2)]
        for process in daemons_of(agent):
            os.kill(process, signal.SIGKILL)
        try:
            _, words = mpirun.communicate(timeout=60)
        finally:
            for rank in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank, signal.SIGKILL)

    lines = [Line(None, "e", line) for line in words.splitlines()]
    effective = launcher_output.effective_exit_code(mpirun.returncode, lines)
    assert effective == protocol.INTERRUPTED, (mpirun.returncode, words)
    assert launcher_output.describe(0, mpirun.returncode, lines).startswith("lost ")


def daemons_of(agent: Path) -> list[int]:
    """The processes of the daemon that mpirun had started by *agent*."""
    candidates = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            program, *arguments = (folder / "cmdline").read_text().split("\0")
            if program.endswith("/prted") and str(agent) in arguments:
                candidates.append(int(folder.name))
    return candidates


OF_A_START = ("RUN_ID", "ERROR_FILE", "USE_AGENT_STORE", "SIGNALS_TO_HANDLE")


# What an agent passes for nothing else than ranks, and how the launcher is told the same.
BY_TORCHRUN_ITSELF = [
    *("-m", "torch.distributed.run", "--nnodes={nodes}", "--node-rank={node}", "--nproc-per-node={slots}"),
    *("--master-addr=127.0.0.1", "--master-port={port}", "--max-restarts=0", "--no-python"),
]
BY_ACCELERATE_ITSELF = [
    *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines={nodes}", "--machine_rank={node}"),
    *("--num_processes=2", "--main_process_ip=127.0.0.1", "--main_process_port={port}"),
    *("--mixed_precision=no", "--dynamo_backend=no", "--no_python"),
]


@pytest.mark.parametrize(
    ("name", "by_itself", "nodes", "variables"),
    [
        ("torchrun", BY_TORCHRUN_ITSELF, 1, {"OMP_NUM_THREADS": "1"}),
        ("accelerate", BY_ACCELERATE_ITSELF, 1, {"ACCELERATE_USE_CPU": "true", "ACCELERATE_MIXED_PRECISION": "bf16"}),
        pytest.param(
            *("accelerate", BY_ACCELERATE_ITSELF, 2, {"OMP_NUM_THREADS": "3"}),
            marks=pytest.mark.nightly("10 s; starts PyTorch twice more, for another address of node 0"),
        ),
    ],
)
def test_ranks_have_the_variables_that_their_launcher_sets(
    tmp_path: Path, name: str, by_itself: list[str], nodes: int, variables: dict[str, str]
) -> None:
    """It (torch 2.15) also names a file for errors and its own signals, and serves the store of the ranks itself."""
    left_out = {f"TORCHELASTIC_{name}" for name in OF_A_START}
    (tmp_path / "train.py").write_text("import json, os; print('variables', json.dumps(dict(os.environ)), flush=True)")
    python = str(prepare("pytorch") / "bin" / "python")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **variables}

    def ranks(starts: list[list[str]]) -> list[dict[str, str]]:
        commands = [[*start, python, "train.py"] for start in starts]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        launched = [subprocess.Popen(command, env=environment, cwd=tmp_path, **pipes) for command in commands]
        lines = [line for each in launched for line in each.communicate(timeout=120)[0].splitlines()]
        shown = [json.loads(line.removeprefix("variables ")) for line in lines if line.startswith("variables ")]
        own = [{key: value for key, value in each.items() if key not in left_out} for each in shown]
        return sorted(own, key=lambda each: each["RANK"])

    (port,) = map(str, free_ports(1))
    values = {"nodes": nodes, "slots": 2 // nodes, "port": port}
    starts = [launchers.Start(nodes=nodes, slots=2 // nodes, node=node, python=python) for node in range(nodes)]
    own = [launchers.LAUNCHERS[name].arguments(start) for start in starts]
    by_us = ranks([[part.replace(launchers.PORT, port) for part in each] for each in own])
    by_launcher = ranks([[python, *(part.format(**values, node=node) for part in by_itself)] for node in range(nodes)])

    assert len(by_us) == 2 and by_us == by_launcher
