"""Runs in an image that is not ours: Debian's Open MPI 4.1 and Python, and a program that knows our protocol only."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from spotmpi.agent import record
from spotmpi.core import names
from tests.cluster.runs import FollowedRun, Runs

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.pod_images("openmpi4"),
    pytest.mark.timeout(400),
    pytest.mark.nightly("an image of its own; the images tier runs Open MPI 4 on this machine"),
]

ENOUGH = 240.0  # seconds for a run with faults, on a busy machine

STEPPING = """
import itertools, json, os, signal, socket, sys, time
from mpi4py import MPI
world, notices = MPI.COMM_WORLD, []
rank, folder = world.Get_rank(), os.environ["SPOTMPI_CHECKPOINT_PATH"]
saved = os.path.join(folder, "step")

def say(kind, step, **more):
    if rank == 0:
        print(json.dumps({"spotmpi": kind, "iteration": step, **more}))

def save(step):
    os.makedirs(folder, exist_ok=True)
    with open(saved + ".part", "w") as file:
        file.write(str(step))
    os.replace(saved + ".part", saved)
    say("checkpoint", step, path=saved, seconds=0, reason="notice")

done = 0
if os.path.exists(saved):
    with open(saved) as file:
        done = int(file.read())
    say("resumed", done, path=saved)
print("rank", rank, "of", world.allreduce(1), "on", socket.gethostname(), "with", os.environ.get("OWN"))
print("by", os.environ.get("OMPI_MCA_btl"))
if rank == 0:
    signal.signal(signal.SIGUSR1, lambda *taken: notices.append(taken))
    with open(os.environ["SPOTMPI_PID_FILE"], "w") as file:
        file.write(str(os.getpid()))
for step in itertools.count(done + 1):
    assert len(world.allgather(bytes(100_000))) == world.Get_size()
    say("metric", step)
    if rank == 0 and notices:
        notices.clear()
        save(step)
    if os.environ["SPOTMPI_ATTEMPT"] != "1" and step >= done + 20:
        break
    time.sleep(0.02)
"""

STRUCK = """
import os, sys, time
if os.environ["SPOTMPI_ATTEMPT"] == "3" and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    sys.exit(78)
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
print("ready", "and", "waiting")
time.sleep(600)
"""


def older(program: str, **more: Any) -> dict[str, Any]:
    """Give the values of a spec that runs a program's text under mpirun on two nodes."""
    return {"name": "older", "command": ["python3", "-c", program], "launcher": "mpirun", "nodes": 2, **more}


def test_a_run_under_open_mpi_4_resumes_from_its_checkpoint_with_variables_arguments_and_whole_lines(
    runs: Runs,
) -> None:
    mpi = {"args": ["--map-by", "node", "-mca", "btl", "self,vader,tcp"]}
    run = runs.start(older(STEPPING, slots=2, env={"OWN": "a 'b' $c"}, mpi=mpi), image="openmpi4")
    run.until_iteration(20)
    for rank in range(4):
        says(run, 1, rank, "by")
    runs.testbed.kubectl("delete", "pod", run.pod(1)["metadata"]["name"], "-n", runs.namespace, "--wait=false")

    assert run.end(ENOUGH).kind == "succeeded", run.recent_events()
    assert run.kinds() == ["submitted", "started", "interrupted", "restarted", "started", "succeeded"]
    first, second = run.summary()["attempts"]
    assert "node 1: the pod of this node received SIGTERM" in first["reason"]
    assert second["resumed_iteration"] == first["checkpoint_iteration"] >= 20
    lines = [(event.attempt, event.values) for event in run.events if event.kind == record.LINE]
    hosts = [names.pod_host(run.id, node, job_per_node=True) for node in (0, 1)]
    texts = [(attempt, each["rank"], each["text"]) for attempt, each in lines if each["stream"] == "o"]
    assert sorted(texts) == sorted(
        (attempt, rank, text)
        for attempt in (1, 2)
        for rank in range(4)
        for text in (f"rank {rank} of 4 on {hosts[rank % 2]} with a 'b' $c", "by self,vader,tcp")
    )
    # Ranks that lose their peers may say so; those that live have nothing to complain about.
    assert not [each["text"] for attempt, each in lines if attempt == 2 and each["stream"] == "e"]


def test_a_lost_host_a_killed_rank_and_an_exit_code_are_distinguished_under_open_mpi_4(runs: Runs) -> None:
    run = runs.start(older(STRUCK), image="openmpi4")
    for attempt, struck in enumerate(("/usr/bin/orted ", "python3 -c "), 1):
        for rank in range(2):
            says(run, attempt, rank, "ready")
        kill_on_node_1(run, struck)

    end = run.end(ENOUGH)
    assert (end.kind, end.reason) == ("failed", "rank 1 ended with exit code 78"), run.recent_events()
    assert [(each["cause"], each["reason"]) for each in run.summary()["attempts"]] == [
        ("interruption", f"lost {run.id}-node-1-0: mpirun's daemon on it no longer answers"),
        ("failure", "rank 1 was killed by SIGKILL"),
        ("not retryable", "rank 1 ended with exit code 78"),
    ]


def says(run: FollowedRun, attempt: int, rank: int, text: str) -> None:
    """Wait until a rank of an attempt has printed a line that begins with *text*."""
    run.until(
        f"{text!r} of rank {rank} in attempt {attempt}",
        lambda event: (
            (event.kind, event.attempt, event.values.get("rank")) == (record.LINE, attempt, rank)
            and event.values["text"].startswith(text)
        ),
    )


def kill_on_node_1(run: FollowedRun, program: str) -> None:
    """Kill the process in node 1's pod whose command line begins with *program*."""
    os.kill(run.process(1, program, lambda command: command.startswith(program)), signal.SIGKILL)
