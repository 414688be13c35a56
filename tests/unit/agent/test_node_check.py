"""The check of each node before an attempt: what counts as a fault, and what becomes of a node that has one."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import hardware, protocol, record
from spotmpi.agent import node as agent_node
from spotmpi.agent.attempt_history import AttemptHistory, avoided_machines, failed_again
from spotmpi.agent.record import Record
from spotmpi.agent.schema import AttemptRecord
from tests.clocks import SetClock
from tests.unit.agent.gang import LIMIT, Gang, kinds

# As nvidia-smi prints them, with --format=csv,noheader; [N/A] where a GPU has no ECC or it is off.
# The slowdowns are fields of `nvidia-smi --help-query-gpu`: Active, Not Active, or [N/A] of a virtual GPU.
HEALTHY = "0, 0, Not Active, Not Active\n1, 0, Not Active, Not Active\n"
LOST = "0, 0\nUnable to determine the device handle for GPU 0000:5E:00.0: GPU is lost.  Reboot the system to recover\n"


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (HEALTHY, None),
        ("0, 0\n1, 0\n", None),  # a driver that knows no slowdowns
        ("0, [N/A], [N/A], [N/A]\n1, [N/A], [N/A], [N/A]\n", None),
        ("0, 0, Not Active, Not Active\n1, 0, Active, Not Active\n", "GPU 1: its clocks are slowed down for heat"),
        (
            "0, 2, Active, Active\n1, 0, Not Active, Not Active\n",
            "GPU 0: 2 uncorrected ECC errors; "
            "GPU 0: its clocks are slowed down for heat and a brake of the power supply",
        ),
        ("0, 0\n1, 2\n", "GPU 1: 2 uncorrected ECC errors"),
        ("0, 0\n", None),  # two parts of one, as far as anybody knows
        (LOST, "1 of 2 GPUs visible: Unable to determine the device handle for GPU 0000:5E:00.0: GPU is lost."),
        ("0, 0\n1, 0\n2, 7\n", None),  # that of another job
        ('Field "ecc.errors.uncorrected.volatile.total" is not a valid field to query.\n', None),
        ("No devices were found\n", "0 of 2 GPUs visible: No devices were found"),
        ("Failed to initialize NVML: Driver/library version mismatch\n", "0 of 2 GPUs visible: Failed to initialize"),
    ],
)
def test_gpus_that_are_missing_or_had_uncorrected_errors_are_a_fault(answer: str, fault: str | None) -> None:
    found = agent_node.gpu_fault(answer, 2)
    assert found is None if fault is None else str(found).startswith(fault)


def test_a_driver_that_hangs_is_a_fault_and_a_node_without_nvidia_smi_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert agent_node.gpu_problem(1, SetClock()) is None
    _script(tmp_path / "nvidia-smi", "exec sleep 60")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(hardware, "GPU_TIMEOUT", 0.2)
    # No signal interrupts a call of a driver that hangs: Linux, "uninterruptible sleep" in proc_pid_stat(5).
    hung: list[subprocess.Popen[bytes]] = []
    kill = subprocess.Popen.kill
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: hung.append(process))
    assert agent_node.gpu_problem(0, SetClock()) is None
    assert agent_node.gpu_problem(1, SetClock()) == "nvidia-smi has not answered for 0.2 s"
    (process,) = hung
    assert process.poll() is None, "it was not waited for"
    kill(process)
    process.communicate()


@pytest.mark.parametrize("known", ["clocks_event_reasons", "clocks_throttle_reasons", "no such name"])
@pytest.mark.parametrize("cools_down", [True, False])
def test_a_gpu_that_its_hardware_slows_down_for_longer_than_it_takes_to_cool_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: str, cools_down: bool
) -> None:
    """As nvidia-smi answers: one unknown field of several is an error, and nothing else is printed."""
    hot = tmp_path / "hot"
    hot.touch()
    fields = f"{known}.hw_thermal_slowdown,{known}.hw_power_brake_slowdown"
    then = f"rm {hot}" if cools_down else ":"
    answers = f"""case "$1" in
    "--query-gpu=index,ecc.errors.uncorrected.volatile.total,{fields}")
        if [ -e {hot} ]; then echo 0, 0, Active, Not Active; {then}; else echo 0, 0, Not Active, Not Active; fi;;
    *clocks*) echo Field '"x.hw_thermal_slowdown"' is not a valid field to query.; exit 2;;
    *) echo 0, 0;;
    esac"""
    _script(tmp_path / "nvidia-smi", answers)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    clock, knows = SetClock(), known != "no such name"
    fault = "GPU 0: its clocks are slowed down for heat"
    assert agent_node.gpu_problem(1, clock) == (fault if knows and not cools_down else None)
    assert len(clock.pauses) == knows


def test_a_disk_without_room_or_that_takes_no_file_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert agent_node.disk_problem(str(tmp_path)) is None and not any(tmp_path.iterdir())
    missing = tmp_path / "missing"
    assert agent_node.disk_problem(str(missing)) == (
        f"its disk does not take a file ({missing}): No such file or directory"
    )
    monkeypatch.setattr(agent_node, "ROOM", 1 << 62)
    assert "MiB free on its disk" in str(agent_node.disk_problem(str(tmp_path)))


def test_a_run_volume_that_does_not_answer_is_an_error_that_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / ".check"
    os.mkfifo(fifo)  # to open one without a reader waits
    monkeypatch.setattr(agent_node, "_DISK_TIMEOUT", 0.2)
    with pytest.raises(OSError, match=r"no answer for 0\.2 s") as raised:
        agent_node._write(str(tmp_path), "check")
    assert raised.value.errno == errno.ETIMEDOUT
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.close(reader)


def _script(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


GPU: dict[str, Any] = {"resources": {"gpu": 1}, "limits": {"failures": 5}}


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_fails_its_check_leaves_and_its_machine_is_avoided(
    gang: Callable[..., Gang], broken: Path, node: int
) -> None:
    broken.write_text(f"machine-{node}\n")
    run = gang("true", **GPU)
    assert run.agents[node].wait(LIMIT) == protocol.INTERRUPTED
    assert avoided_machines(str(run.paths.folder)) == {f"machine-{node}": "0 of 1 GPUs visible: No devices"}
    run.until("the end of the attempt", lambda: record.INTERRUPTED in kinds(run.events()))
    attempt = run.attempt()
    assert (attempt["cause"], attempt["reason"]) == ("interruption", f"node {node}: 0 of 1 GPUs visible: No devices")
    assert record.AVOIDED in kinds(run.events())


@pytest.mark.parametrize("is_placed", [False, True])
def test_a_run_whose_pods_get_an_avoided_machine_again_goes_on_and_says_how_to_go_on_without(
    gang: Callable[..., Gang], broken: Path, is_placed: bool
) -> None:
    broken.write_text("machine-1\n")
    run = gang("true", started=0, **GPU)
    capacity: Any = {"deadline": None}
    if is_placed:
        run.plan["capacity"] = capacity
    for each in (0, 1):
        run.start(each)
    assert run.codes() == [protocol.INTERRUPTED, protocol.INTERRUPTED]
    for each in (0, 1):
        run.start(each, 1)
    assert run.agents[0].wait(LIMIT) == protocol.INTERRUPTED
    folder, submitted = str(run.paths.folder), run.plan["submitted"]
    assert failed_again(folder, submitted) == ["machine-1"] and not failed_again(folder, submitted - 1)
    (summary,) = [each.reason for each in run.events(0, 1) if each.kind == record.RESTARTED]
    again = "the run got machine-1 again, which it avoids (0 of 1 GPUs visible: No devices)"
    remedy = "spotmpi stop plain-1 && spotmpi run --resume plain-1 --set 'kubernetes.avoid+=[\"machine-1\"]'"
    assert str(summary) == (again if is_placed else f"{again}; to go on without: {remedy}")


def test_a_machine_whose_next_pod_passes_the_check_may_go_on(gang: Callable[..., Gang], broken: Path) -> None:
    """A container may lose its GPUs where its machine does not, as after a reload of systemd."""
    broken.write_text("machine-1\n")
    run = gang("true", **GPU)
    assert run.codes() == [protocol.INTERRUPTED, protocol.INTERRUPTED]
    broken.write_text("")
    for each in (0, 1):
        run.start(each, 1)
    assert run.codes()[0] == 0


def test_other_pods_go_on_where_single_ones_are_replaced(gang: Callable[..., Gang], broken: Path) -> None:
    broken.write_text("machine-1\n")
    run = gang("sh", "-c", "echo done", started=0, **GPU)
    run.plan["replaces_nodes"] = True
    for node in (0, 1):
        run.start(node)
    assert run.agents[1].wait(LIMIT) == protocol.INTERRUPTED
    run.start(1, 1, machine="machine-7")
    assert run.agents[0].wait(LIMIT) == 0  # node 1 waits for the end of the JobSet
    assert avoided_machines(str(run.paths.folder)).keys() == {"machine-1"}


KILLED = """
import json, os, signal, sys, time
attempt = int(os.environ["SPOTMPI_ATTEMPT"])
if os.environ["SPOTMPI_MACHINE"][-1] == "0":
    print(json.dumps({"spotmpi": "metric", "iteration": 10 * attempt}, separators=(",", ":")), flush=True)
elif attempt < 4:
    metrics, reported = sys.argv[2], '"iteration": %d,' % (10 * attempt)
    while not (os.path.exists(metrics) and reported in open(metrics).read()):  # once node 0 has reported
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1] == "killed" else sys.exit(1)
while attempt < 4:
    time.sleep(0.05)
"""


@pytest.mark.parametrize("is_placed", [False, True])
@pytest.mark.parametrize("how", ["killed", "failed"])
def test_failures_on_one_machine_take_no_pod_from_a_run_in_a_cluster_and_are_named(
    gang: Callable[..., Gang], tmp_path: Path, how: str, is_placed: bool
) -> None:
    """A rank that was killed tells nothing about its machine."""
    metrics = tmp_path / "runs" / "plain-1" / "metrics.jsonl"
    run = gang(sys.executable, "-c", KILLED, how, str(metrics), started=0, limits={"failures": 5})
    run.plan["replaces_nodes"] = True
    if is_placed:
        capacity: Any = {"deadline": None}
        run.plan["capacity"] = capacity
    for node in (0, 1):
        run.start(node)
    assert run.agents[0].wait(LIMIT) == 0  # node 1 waits for the end of the JobSet
    reason = "attempts 1 and 2 failed there, after different iterations"
    remedy = "spotmpi stop plain-1 && spotmpi run --resume plain-1 --set 'kubernetes.avoid+=[\"machine-1\"]'"
    named = {"machine-1": reason if is_placed else f"{reason}; to go on without: {remedy}"}
    folder = str(run.paths.folder)
    assert avoided_machines(folder) == (named if how == "failed" else {})
    assert failed_again(folder, run.plan["submitted"]) == (["machine-1"] if how == "failed" else [])


def test_failures_on_several_machines_are_the_programs(tmp_path: Path) -> None:
    history = AttemptHistory(Record(str(tmp_path), SetClock()), Gang(tmp_path, {"command": ["x"]}).plan, 0.0)
    for number, name in enumerate(("a", "b", "a"), 1):
        history.attempts.append(
            AttemptRecord(attempt=number, failed_machine=name, last_iteration=10 * number, cause="failure", started=0.0)
        )
    assert history.failure_of_machine("a") is None
    del history.attempts[1]
    assert history.failure_of_machine("a") == "attempts 1 and 3 failed there, after different iterations"
    assert history.failure_of_machine("b") is None
    history.record.close()
