"""Runs on a real Slurm cluster: launchers over its nodes, and what ends or interrupts a job."""

from __future__ import annotations

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import record
from spotmpi.agent.plan import COORDINATOR
from spotmpi.api.stopping import stop_run
from spotmpi.backends.slurm.backend import SlurmBackend
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.events import Event
from tests.command_line import SPOTMPI, spotmpi_process
from tests.contract import processes
from tests.contract.conftest import BackendHarness
from tests.contract.event_values import command, iterations, kinds, texts
from tests.contract.fake_program import fake_job
from tests.contract.processes import wait_until
from tests.testbed.slurm import CLOSED, URGENT, Slurm

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(200)]

DIGITS: dict[str, Any] = {
    "image": "chainermn",
    "program": "digits",
    "args": ["--global-batch", "64", "--epochs", "2"],
    "nodes": 2,
    "slots": 1,
    "checkpoint": {"every": "0.2s"},
}


def reasons(events: list[Event], kind: str) -> list[str]:
    return [str(event.reason) for event in events if event.kind == kind]


def without_waits(events: list[Event]) -> list[str]:
    return [kind for kind in kinds(events) if kind != record.WAITING]


def first_iterations(events: list[Event]) -> list[int]:
    """The first iteration of each attempt."""
    firsts: dict[int, int] = {}
    for event in events:
        if event.kind == record.METRIC and event.values.get("kind") == "metric":
            firsts.setdefault(event.attempt, event.values["iteration"])
    return list(firsts.values())


def parameters(events: list[Event]) -> str:
    return [str(event.values["parameters"]) for event in events if event.values.get("kind") == "result"][-1]


@pytest.fixture(scope="module")
def finished(cluster: Slurm, tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """The events of an undisturbed run of the digits on two nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.configuration))
        harness = BackendHarness(SlurmBackend(tmp_path_factory.mktemp("undisturbed"), look=0.3))
        return harness.all_events(DIGITS)


def test_mpirun_starts_ranks_on_all_nodes_by_srun(finished: list[Event]) -> None:
    assert without_waits(finished) == ["submitted", "started", "succeeded"], finished[-1]
    started = next(event for event in finished if event.kind == "started")
    assert [machine["name"] for machine in started.values["machines"]] == ["n0", "n1"]
    assert iterations(finished)[-1] == 45
    context = next(event.values for event in finished if event.values.get("kind") == "context")
    assert context["world_size"] == 2


def test_a_requeued_run_continues_from_its_checkpoint_to_the_same_parameters(
    harness: BackendHarness, finished: list[Event]
) -> None:
    run = harness.submit(DIGITS)
    harness.wait_for_iteration(run, 10)
    harness.backend.inject_fault(run, COORDINATOR, "evict")
    events = harness.events(run)

    assert without_waits(events)[:2] == ["submitted", "started"]
    assert without_waits(events)[-2:] == ["started", "succeeded"], events[-1]
    assert first_iterations(events)[-1] > 1
    assert parameters(events) == parameters(finished)
    state = harness.backend.state(run)
    assert (state.failures, state.interruptions) == (0, 1)
    assert "BeginTime" in " ".join(reasons(events, "waiting"))


def test_a_run_whose_mpirun_exits_with_0_after_slurm_ended_its_daemons_has_not_succeeded(
    harness: BackendHarness, finished: list[Event]
) -> None:
    """As for one of five jobs that are put back into the queue: the srun of mpirun's daemons ends before the agent."""
    run = harness.submit(DIGITS)
    harness.wait_for_iteration(run, 10)
    sruns = [pid for pid, text in processes.of_run(run).items() if text.startswith("srun") and "prted" in text]
    for pid in sruns:
        os.kill(pid, signal.SIGKILL)
    events = harness.events(run)

    assert sruns
    assert without_waits(events) == ["submitted", "started", "interrupted", "restarted", "started", "succeeded"]
    assert "the srun of mpirun's daemons was killed by SIGKILL" in reasons(events, "interrupted")[0]
    assert parameters(events) == parameters(finished)


@pytest.mark.nightly("slurmctld needs 10 s to come back; its double is asked by day")
def test_an_attempt_that_begins_while_slurmctld_is_down_waits_for_it(
    harness: BackendHarness, slurm: Slurm, finished: list[Event]
) -> None:
    """Without it srun starts no daemon of mpirun, at once: three attempts failed within seconds, which is all."""
    run = harness.submit(DIGITS)
    harness.wait_for_iteration(run, 10)
    recorded = Path(harness.backend.state(run).folder) / record.EVENTS
    with slurm.without_controller():
        for pid in [pid for pid, text in processes.of_run(run).items() if "digits" in text]:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: "slurmctld does not answer" in recorded.read_text())
    events = harness.events(run)

    assert without_waits(events) == ["submitted", "started", "restarted", "started", "succeeded"], events[-1]
    assert parameters(events) == parameters(finished)


@pytest.mark.nightly("sbatch tries for ten seconds; its double is asked by day")
def test_a_run_that_is_submitted_while_slurmctld_is_down_starts_once_it_is_back(
    harness: BackendHarness, slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = ""

    def is_waiting() -> bool:
        nonlocal shown
        shown += capsys.readouterr().err
        return "this waits up to 120 s for it" in shown

    with ThreadPoolExecutor(1) as thread:
        with slurm.without_controller():
            submitted = thread.submit(harness.submit, fake_job(iterations=3, nodes=2, launcher="none"))
            wait_until(is_waiting)
        events = harness.events(submitted.result())

    assert kinds(events)[-1] == "succeeded" and iterations(events) == [1, 2, 3]
    assert shown.count("cannot submit the job: ") == 1, shown


@pytest.mark.nightly("squeue tries for ten seconds; its double is asked by day")
def test_a_run_is_shown_and_stopped_while_slurmctld_is_down(
    harness: BackendHarness, slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    run = harness.submit(fake_job(iterations=10_000, pause=0.05, every=10_000, nodes=2, launcher="none"))
    harness.wait_for_iteration(run, 5)
    with slurm.without_controller():
        assert harness.backend.state(run).state == "running"
        state = stop_run(harness.backend, run, "enough")
    assert (state.state, state.reason) == ("stopped", "enough")
    shown = capsys.readouterr().err
    assert shown.count("Unable to contact slurm controller") == 1 and "what agents record counts meanwhile" in shown


def test_a_job_that_is_preempted_writes_a_checkpoint_first(harness: BackendHarness, slurm: Slurm) -> None:
    job = fake_job(iterations=120, pause=0.05, every=10_000, nodes=2, launcher="none")
    run = harness.submit(job)
    harness.wait_for_iteration(run, 5)
    slurm.command("sbatch", f"--partition={URGENT}", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    events = harness.events(run)

    assert kinds(events)[-1] == "succeeded"
    assert "about to end the job" in reasons(events, "interrupted")[0]
    stored = [event.values["iteration"] for event in events if event.values.get("reason") == "notice"]
    resumed = [event.values["iteration"] for event in events if event.values.get("kind") == "resumed"]
    assert stored == resumed and resumed[0] >= 5
    assert iterations(events) == list(range(1, 121))


def with_a_node_switched_off(harness: BackendHarness, slurm: Slurm, run: str, place: int) -> tuple[str, list[Event]]:
    """The name of that node of a run, and all events of the run, which goes on without it."""
    machines = next(event for event in harness.backend.events(run, False) if event.kind == "started").values["machines"]
    victim = str(machines[place]["name"])
    try:
        slurm.kill_node(victim)
        return victim, harness.events(run)
    finally:
        slurm.start_node(victim)


@pytest.mark.nightly("Slurm takes half a minute to notice; a job that is requeued goes the same way")
def test_a_node_that_is_switched_off_is_replaced(harness: BackendHarness, slurm: Slurm) -> None:
    run = harness.submit(fake_job(iterations=150, pause=0.05, every=5, nodes=2, launcher="none"))
    harness.wait_for_iteration(run, 12)
    victim, events = with_a_node_switched_off(harness, slurm, run, 1)

    assert kinds(events)[-1] == "succeeded", events[-1]
    assert f"lost {victim}" in reasons(events, "interrupted")[0]
    last = [event for event in events if event.kind == "started"][-1]
    assert victim not in [machine["name"] for machine in last.values["machines"]]
    assert first_iterations(events)[-1] > 1


SAVES = """
import json, os, time, spotmpi
from spotmpi.agent import protocol
if os.environ["RANK"] != "0":
    raise SystemExit
found = spotmpi.checkpoint.load(broadcast=lambda value: value)
for iteration in range(found.iteration + 1 if found else 1, 151):
    time.sleep(0.05)
    print(protocol.encode("metric", iteration=iteration), flush=True)
    spotmpi.checkpoint.save(iteration, str(iteration))
"""


@pytest.mark.nightly("Slurm takes half a minute to notice; agents by themselves are tested by day")
def test_node_0_that_is_switched_off_costs_no_more_than_the_newest_copy_in_memory_of_the_next(
    harness: BackendHarness, slurm: Slurm
) -> None:
    """The run folder has no checkpoint then: its interval is an hour."""
    job = {"command": [sys.executable, "-c", SAVES], "launcher": "none", "nodes": 2}
    run = harness.submit({**job, "checkpoint": {"memory": "1", "every": "1h"}})
    reached = harness.wait_for_iteration(run, 40)
    _, events = with_a_node_switched_off(harness, slurm, run, 0)

    assert kinds(events)[-1] == "succeeded", events[-1]
    assert first_iterations(events)[-1] > reached - 20, "copies are made ten times a second"
    assert harness.backend.state(run).interruptions == 1


def test_a_node_whose_gpu_has_errors_is_excluded_from_the_job(
    harness: BackendHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (smi := tmp_path / "bin" / "nvidia-smi").parent.mkdir()
    smi.write_text('#!/bin/sh\n[ "$(hostname)" = n0 ] && echo 0, 3 || echo 0, 0\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{smi.parent}:{os.environ['PATH']}")
    job = {**command("hostname"), "nodes": 2, "slots": 1, "resources": {"gpu": 1}}
    events = harness.all_events(job)

    assert kinds(events)[-1] == "succeeded", events[-1]
    assert reasons(events, "interrupted") == ["node 0: GPU 0: 3 uncorrected ECC errors"]
    assert {"n1", "n2"} == set(texts(events))


@pytest.mark.nightly("imports PyTorch on each node")
@pytest.mark.parametrize("launcher", ["accelerate", "torchrun"])
def test_launchers_of_each_node_find_the_first(harness: BackendHarness, launcher: str) -> None:
    code = (
        "import torch.distributed as d, torch; d.init_process_group('gloo'); x = torch.ones(1) * (d.get_rank() + 1);"
        "d.all_reduce(x); print('sum', int(x), flush=True); d.destroy_process_group()"
    )
    job = {"image": "pytorch", "command": ["python3", "-c", code], "launcher": launcher, "nodes": 2, "slots": 1}
    events = harness.all_events(job)

    assert kinds(events)[-1] == "succeeded", events[-1]
    assert [text for text in texts(events) if text.startswith("sum")] == ["sum 3"] * 2


@pytest.mark.nightly("eight seconds; by day a run on this machine gets no such variable (test_output)")
def test_a_run_on_this_machine_stays_there_in_a_terminal_that_is_a_job(slurm: Slurm, tmp_path: Path) -> None:
    """mpirun takes the nodes of that job for its own: the second rank was on n1."""
    job = 'name = "x"\nimage = "chainermn"\nslots = 2\ncommand = ["hostname"]\n'
    (tmp_path / "job.toml").write_text(job)
    spotmpi = f"{SPOTMPI} run {tmp_path}/job.toml --runs {tmp_path}/here"
    slurm.command("sbatch", "--wait", "--nodes=2", f"--output={tmp_path}/out", f"--wrap={spotmpi}")
    assert [line for line in (tmp_path / "out").read_text().splitlines() if line in slurm.names] == ["n0"] * 2


# Options of a terminal, and what a terminal has that is itself a job, such as a notebook: the last three.
TERMINAL = {
    **{"SBATCH_JOB_NAME": "mine", "SBATCH_ARRAY_INX": "1-2", "SBATCH_NO_REQUEUE": "1", "SBATCH_WAIT": "1"},
    **{"SQUEUE_PARTITION": CLOSED, "SQUEUE_STATES": "TIMEOUT", "SQUEUE_FORMAT2": "jobid", "SCANCEL_STATE": "PENDING"},
    **{"SLURM_MEM_PER_CPU": "50", "SLURM_NTASKS": "7", "SLURM_JOB_ID": "4711"},
}


@pytest.mark.parametrize("args", [[], ["--export=NONE"]])
def test_no_variable_of_the_terminal_changes_what_a_job_is(
    harness: BackendHarness, monkeypatch: pytest.MonkeyPatch, args: list[str]
) -> None:
    """``--export=NONE``, as many sites advise: srun takes it over, and agents did not find their package."""
    for name, value in TERMINAL.items():  # those of sbatch win over the options in a script
        monkeypatch.setenv(name, value)
    run = harness.submit(command("sleep", "60", nodes=2, resources={"memory": "100Mi"}, slurm={"args": args}))
    harness.wait_for_state(run, "running")
    harness.backend.stop(run, "enough", now=True)
    assert kinds(harness.events(run))[-1] == "stopped"


def test_a_failed_attempt_is_retried_on_the_same_nodes_without_a_wait(harness: BackendHarness) -> None:
    run = harness.submit(fake_job(iterations=9, every=3, fault={1: [5, "exit 3"]}, nodes=2))
    events = harness.events(run)

    started = [event for event in events if event.kind == "started"]
    assert [len(event.values["machines"]) for event in started] == [2, 2]
    assert not [reason for reason in reasons(events[events.index(started[0]) :], "waiting") if "queue" in reason]
    assert iterations(events) == [1, 2, 3, 4, 5, 4, 5, 6, 7, 8, 9]


DIES_ONCE = """
import os, signal, time
if os.environ["SPOTMPI_ATTEMPT"] == "1":
    from mpi4py import MPI
    MPI.COMM_WORLD.barrier()
    print("shared", *(len(os.listdir(folder)) for folder in FOLDERS), flush=True)
    MPI.COMM_WORLD.barrier()
    if MPI.COMM_WORLD.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
left = [name for folder in FOLDERS for name in os.listdir(folder) if not name.startswith("spotmpi")]
print("left", *left, flush=True)
"""


def test_killed_ranks_leave_nothing_in_the_memory_of_nodes(harness: BackendHarness) -> None:
    """A node of Slurm is used by others, too: what stayed in its /dev/shm would take memory until it is restarted."""
    folders = "FOLDERS = [path for path in ('/dev/shm', *__import__('glob').glob('/dev/shm/spotmpi-*/mpi'))]"
    job = {"image": "chainermn", "command": ["python3", "-c", folders + DIES_ONCE], "nodes": 2, "slots": 2}
    events = harness.all_events(job)

    assert kinds(events)[-1] == "succeeded", events[-1]
    shared = [text.split()[1:] for text in texts(events) if text.startswith("shared")]
    assert len(shared) == 4 and all(others == "1" and int(own) > 0 for others, own in shared)
    assert [text for text in texts(events) if text.startswith("left")] == 4 * ["left"]


def test_why_a_run_waits_is_said_once_and_limits_start_ends_it(harness: BackendHarness, tmp_path: Path) -> None:
    closed = SlurmBackend(tmp_path / "runs", partition=CLOSED, look=0.3)
    waiting = BackendHarness(closed)
    run = waiting.submit(command("true", limits={"start": "3s"}))
    wait_until(lambda: "PartitionDown" in str(closed.state(run).reason))
    events = waiting.events(run)

    assert len(reasons(events, "waiting")) == len(set(reasons(events, "waiting")))
    assert "limits.start (3s) is over" in str(events[-1].reason) and "its partition is down" in str(events[-1].reason)
    assert kinds(events)[-1] == "failed"
    wait_until(lambda: (job := closed.job(run)) is not None and job.over)


def test_a_waiting_run_is_stopped_at_once(harness: BackendHarness, tmp_path: Path) -> None:
    closed = SlurmBackend(tmp_path / "runs", partition=CLOSED, look=0.3)
    run = BackendHarness(closed).submit(command("true"))
    closed.stop(run, "not today", now=False)

    state = closed.state(run)
    assert (state.state, state.reason) == ("stopped", "not today")


def test_a_job_that_is_cancelled_by_hand_ends_the_run(harness: BackendHarness, slurm: Slurm) -> None:
    run = harness.submit(command("sleep", "60"))
    harness.wait_for_state(run, "running")
    slurm.command("scancel", f"--name={run}")

    assert kinds(harness.events(run))[-1] == "stopped"
    assert "was cancelled" in str(harness.backend.state(run).reason)


def test_agents_that_cannot_start_fail_the_run_with_what_they_printed(harness: BackendHarness) -> None:
    events = harness.all_events(command("true", slurm={"setup": ["rm -r package"]}))

    assert kinds(events)[-1] == "failed"
    assert "ended as FAILED" in str(events[-1].reason) and "No module named" in str(events[-1].reason)


@pytest.mark.parametrize("launcher", ["none", "mpirun"])
def test_ranks_have_all_processors_of_a_job_whose_cluster_binds_tasks(harness: BackendHarness, launcher: str) -> None:
    """An agent is a task of one processor, as mpirun's daemons are: all ranks of a node shared it."""
    look = "import os; print('processors:', len(os.sched_getaffinity(0)))"
    events = harness.all_events(
        command("python3", "-c", look, image="chainermn", launcher=launcher, nodes=2, resources={"cpu": 2})
    )

    assert kinds(events)[-1] == "succeeded", events[-1]
    assert [text for text in texts(events) if text.startswith("processors")] == [
        f"processors: {len(os.sched_getaffinity(0))}"
    ] * 2


def test_a_line_of_setup_that_fails_is_named_in_the_reason(harness: BackendHarness) -> None:
    events = harness.all_events(command("true", slurm={"setup": ["module load no-such-module"]}))

    assert kinds(events)[-1] == "failed"
    assert "last output: slurm.setup: module load no-such-module ended with exit code 127" in str(events[-1].reason)


def test_a_job_that_sbatch_refuses_is_an_error_with_its_words(slurm: Slurm, tmp_path: Path) -> None:
    backend = SlurmBackend(tmp_path / "runs", partition="no-such-partition")
    with pytest.raises(SpotmpiError, match=r"cannot submit the job: .*invalid partition"):
        BackendHarness(backend).submit(command("true"))
    assert [state.state for state in backend.list()] == ["failed"]


def test_resources_are_those_of_the_spec(harness: BackendHarness) -> None:
    resources = {"cpu": 1.5, "memory": "100Mi", "gpu": 1}
    show = ["sh", "-c", "scontrol show job --oneliner $SLURM_JOB_ID; env | grep ^SLURM | cut -d= -f1 | sort"]
    job = {"command": show, "launcher": "none", "nodes": 2, "resources": resources, "limits": {"run": "10m"}}
    lines = texts(harness.all_events({**job, "run_on": "first", "slurm": {"args": ["--comment=mine"]}}))

    text = " ".join(lines)
    for part in ("NumNodes=2", "CPUs/Task=2", "gpu:1", "MinMemoryNode=100M", "TimeLimit=00:11:00", "Comment=mine"):
        assert part in text, part
    of_job = ("SLURM_JOB", "SLURM_SUBMIT", "SLURM_C")
    assert not [line for line in lines if line.startswith("SLURM") and not line.startswith(of_job)]


def test_commands_find_a_run_by_its_record(harness: BackendHarness, tmp_path: Path) -> None:
    run = harness.submit(fake_job(iterations=10_000, pause=0.05))
    harness.wait_for_iteration(run, 2)
    runs = ("--runs", str(tmp_path / "runs"))

    status = spotmpi_process("status", run, "--json", *runs)
    shell = harness.backend.shell(run, COORDINATOR)
    listed = spotmpi_process("list", "--on", "slurm", "--json", *runs)
    pulled = spotmpi_process("pull", run, *runs)
    stopped = spotmpi_process("stop", run, *runs)

    assert json.loads(status.stdout)["state"] == "running", status.stderr
    assert [line["id"] for line in json.loads(listed.stdout)] == [run], listed.stderr
    assert list(shell[:1]) == ["srun"] and list(shell[-2:]) == ["--pty", "/bin/sh"]
    assert pulled.returncode == 0 and str(tmp_path / "runs" / run) in pulled.stdout.replace(
        "runs/", str(tmp_path) + "/runs/"
    )
    assert stopped.returncode == 0, stopped.stderr
    assert harness.wait_for_state(run, "stopped").state == "stopped"
