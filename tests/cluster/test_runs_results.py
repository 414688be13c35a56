"""Runs on real pods have the results of local runs of the same spec, and end when they are stopped."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

import pytest

from spotmpi.agent.plan import NODE, Member
from spotmpi.core.events import Event
from spotmpi.plan import manifests
from tests.cluster.runs import Runs, digits, local_events, parameters, plain

pytestmark = [pytest.mark.cluster, pytest.mark.pod_images("chainermn"), pytest.mark.timeout(300)]


def losses(events: list[Event]) -> dict[int, float]:
    """Give the loss of every iteration that was reported."""
    metrics = [event.values for event in events if event.values.get("kind") == "metric"]
    return {values["iteration"]: values["loss"] for values in metrics}


def test_digits_on_two_pods_ends_with_the_parameters_of_a_local_run_bit_for_bit(runs: Runs, tmp_path: Path) -> None:
    local = local_events(digits(epochs=3), tmp_path / "here")
    remote = runs.start(digits(epochs=3))

    assert remote.end().kind == "succeeded", remote.recent_events()
    assert parameters(remote.events) == parameters(local)
    assert losses(remote.events) and losses(remote.events) == losses(local)


@pytest.mark.nightly("four ranks on two cores; four ranks are one spec with another number")
def test_digits_on_four_pods_has_the_losses_of_four_local_ranks(runs: Runs, tmp_path: Path) -> None:
    spec = digits(epochs=2, nodes=4)  # 44 iterations; differences grow, and 1e-5 is promised for the first 50
    local = losses(local_events(spec, tmp_path / "here"))
    remote = runs.start(spec)

    assert remote.end().kind == "succeeded", remote.recent_events()
    assert len(local) >= 2
    # More than two numbers may be summed in another order over another network.
    assert losses(remote.events) == pytest.approx(local, rel=1e-5)


RENDEZVOUS = """
import os, socket, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
there = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(("", there[1])) as listener:
        met = {int(listener.accept()[0].recv(9)) for _ in range(size - 1)}
else:
    for _ in range(300):
        try:
            socket.create_connection(there).sendall(b"%d" % rank)
            break
        except OSError:
            time.sleep(0.1)
    met = set()
print(rank, "of", size, "by", *there, "met", *sorted(met), flush=True)
"""


def test_a_plain_command_connects_to_its_peers_by_pytorchjobs_variables(runs: Runs) -> None:
    run = runs.start(plain("python3", "-c", RENDEZVOUS, nodes=4), image="base")

    assert run.end().kind == "succeeded", run.recent_events()
    address = run.lines()[0].split()[4]
    assert ipaddress.ip_address(address), "no name, to which an old address may belong"
    assert sorted(run.lines()) == [
        f"0 of 4 by {address} 23456 met 1 2 3",
        *(f"{rank} of 4 by {address} 23456 met" for rank in (1, 2, 3)),
    ]
    assert sorted((event.member, event.number) for event in run.events if event.kind == "line") == [
        (Member(NODE, node), 1) for node in range(4)
    ]


@pytest.mark.parametrize("stage", ["node", pytest.param("memory", marks=pytest.mark.nightly("another mount"))])
def test_data_is_copied_to_each_node_before_its_ranks_start(runs: Runs, stage: str) -> None:
    assert runs.volume is not None
    (runs.volume / "sets" / "voc").mkdir(parents=True)
    (runs.volume / "sets" / "voc" / "labels").write_text("cat dog")
    read = 'echo "$SPOTMPI_DATA: $(cat $SPOTMPI_DATA/labels)"'
    run = runs.start(plain("sh", "-c", read, nodes=2, data={"path": "sets/voc", "stage": stage}), image="base")
    assert run.end().kind == "succeeded", run.recent_events()
    folder = {"node": "/spotmpi/work/data", "memory": "/spotmpi/memory/data"}[stage]
    assert run.lines() == [f"{folder}: cat dog"] * 2


def test_a_command_for_the_first_node_runs_only_there_and_its_objects_are_deleted_after_the_time_to_live(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "TTL_SECONDS", 2)
    script = 'echo "node $JOB_COMPLETION_INDEX, rank $RANK of $WORLD_SIZE"'
    run = runs.start(plain("sh", "-c", script, nodes=2, run_on="first"), image="base")

    assert run.end().kind == "succeeded", run.recent_events()
    assert run.lines() == ["node 0, rank 0 of 1"]
    run.wait_until_gone()
    assert runs.backend.state(run.id).state == "succeeded"


CHOSEN = ("SPOTMPI_WORLD_SIZE", "SPOTMPI_HOSTS", "OMP_NUM_THREADS", "PATH", "HOME", "OWN", "TOKEN", "NCCL_DEBUG")
SHOW = f"""
import json, os
print(json.dumps([os.environ["OMPI_COMM_WORLD_RANK"], [os.environ.get(name) for name in {CHOSEN!r}]]))
"""


def test_every_rank_on_every_node_sees_the_same_variables_of_spec_image_and_secret(runs: Runs) -> None:
    runs.apply("Secret", "tokens", stringData={"TOKEN": "s3cret"})
    spec = plain("python3", "-c", SHOW, nodes=2, slots=2, env={"OWN": "a 'b' $c\n\u00e9"}, nccl={"DEBUG": "INFO"})
    run = runs.start({**spec, "launcher": "mpirun", "kubernetes": {"secrets": ["tokens"]}})

    assert run.end().kind == "succeeded", run.recent_events()
    reports = [json.loads(line) for line in run.lines() if line.startswith("[")]
    assert sorted(rank for rank, _ in reports) == ["0", "1", "2", "3"]
    (variables,) = {tuple(values) for _, values in reports}
    path = runs.testbed.kubectl("get", "jobset", run.id, "-n", runs.namespace, "-o", "jsonpath={.spec}")
    assert "s3cret" not in path
    assert variables[:3] == ("4", "2", "1")
    assert "/opt/venv/bin" in variables[3].split(":")
    assert variables[4:] == ("/spotmpi/work", "a 'b' $c\n\u00e9", "s3cret", "INFO")


def test_a_stopped_run_has_written_a_checkpoint_and_leaves_nothing_behind(runs: Runs) -> None:
    run = runs.start(digits(epochs=400, checkpoint={"every": "10m"}))
    run.until_iteration(30)
    leftovers = run.leftovers()
    assert len(leftovers) >= 5 and any(each.startswith("process") and "digits" in each for each in leftovers), leftovers

    runs.backend.stop(run.id, "enough for today", now=False)

    end = run.end()
    assert (end.kind, end.reason) == ("stopped", "enough for today")
    notice = run.until("a checkpoint", lambda event: event.values.get("kind") == "checkpoint")
    assert notice.values["reason"] == "notice" and notice.values["iteration"] >= 30
    assert (run.folder / "checkpoints" / f"iteration-{notice.values['iteration']:09d}" / "manifest.json").is_file()
    assert runs.backend.state(run.id).state == "stopped"
    run.wait_until_gone()


def test_pods_pass_the_restricted_standard_which_the_namespace_enforces(runs: Runs) -> None:
    run = runs.start(plain("sleep", "60"), image="base")
    run.until_kind("started")

    refused = runs.testbed.try_kubectl("run", "root", "--image=any", "-n", runs.namespace)
    assert refused.returncode == 1 and "violates PodSecurity" in refused.stderr
    # The pause container's image says its user itself.
    programs = [pid for pid, command in run.processes(0).items() if "pause" not in command]
    assert {Path(f"/proc/{pid}").stat().st_uid for pid in programs} == {1000}
    runs.backend.stop(run.id, "seen", now=True)
