"""The agents of a run as real processes on this machine: who ends how when something goes, and what is recorded."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spotmpi.agent import pod_context, protocol
from spotmpi.core.names import RunPaths
from spotmpi.runs import reader
from tests.unit.agent.gang import LIMIT, RUN, Gang, has_printed, kinds

SLEEP = ("sh", "-c", "echo ready; exec sleep 60")


def test_all_end_well_when_every_launcher_has(gang: Callable[..., Gang]) -> None:
    run = gang("sh", "-c", "echo rank $RANK of $WORLD_SIZE", nodes=3)
    assert run.codes() == [0, 0, 0]
    assert kinds(run.events()) == ["started", "succeeded"]
    lines = [[event.values["text"] for event in run.events(node) if event.kind == "line"] for node in range(3)]
    assert lines == [[f"rank {node} of 3"] for node in range(3)]
    assert run.attempt()["cause"] == "succeeded"
    summary = json.loads((run.folder / "runs" / RUN / "summary.json").read_text())
    (alike,) = summary["hardware"]
    assert alike["nodes"] == [0, 1, 2]
    assert (alike["zone"], alike["cores"], alike["gpus"]) == ("zone-a", os.cpu_count(), [])
    assert summary["work"]["machine"]["cpu"] == alike["cpu"]
    assert (run.folder / "runs" / RUN / "spec.toml").read_text().startswith("command = ")


def test_node_0_waits_for_the_slowest(gang: Callable[..., Gang]) -> None:
    run = gang("sh", "-c", "sleep $RANK")
    assert run.codes() == [0, 0]
    assert run.attempt()["ended"] - run.attempt()["started"] >= 1


@pytest.mark.parametrize("node", [0, 1])
def test_a_failing_program_on_any_node_is_a_failure_of_the_attempt(gang: Callable[..., Gang], node: int) -> None:
    run = gang("sh", "-c", f"test $RANK != {node} || {{ echo no weights >&2; exit 3; }}; sleep 60")
    assert run.codes() == [protocol.FAILED, 0]
    assert kinds(run.events()) == ["started", "restarted"]
    assert "exit code 3: no weights" in run.attempt()["reason"] and f"node {node}" in run.attempt()["reason"]
    assert run.attempt()["cause"] == "failure"


@pytest.mark.parametrize("counts", ["memory.events", "memory/memory.oom_control"])
@pytest.mark.parametrize("node", [0, 1])
def test_a_rank_that_the_kernel_killed_for_memory_is_reported_as_out_of_memory(
    node: int, counts: str, gang: Callable[..., Gang]
) -> None:
    """The reason names the node that ran out of memory and the setting to raise, not only SIGKILL."""
    file = f"node-$RANK/cgroup/{counts}"
    dies = f"mkdir -p node-$RANK/cgroup/memory; printf 'oom 2\\noom_kill 1\\n' > {file}; kill -9 $$"
    run = gang("sh", "-c", f"test $RANK != {node} || {{ {dies}; }}; sleep 60")
    assert run.codes() == [protocol.FAILED, 0]
    reason = f"was killed by SIGKILL; out of memory on node {node}: raise resources.memory"
    assert run.attempt()["reason"].endswith(reason)


@pytest.mark.parametrize("node", [0, 1])
def test_exit_code_78_on_any_node_ends_the_run(gang: Callable[..., Gang], node: int) -> None:
    run = gang("sh", "-c", f"test $RANK != {node} || exit 78; sleep 60")
    assert run.codes() == [protocol.NOT_RETRYABLE, 0]
    assert kinds(run.events()) == ["started", "failed"]


def test_a_run_without_records_ends_when_it_was_restarted_too_often(gang: Callable[..., Gang]) -> None:
    run = gang("true", started=0, limits={"failures": 1, "interruptions": 2})
    leader = run.start(0, generation=3)
    run.start(1, generation=3)
    assert leader.wait(LIMIT) == 0, "one failure and two interruptions are allowed"
    run.agents[1].wait(LIMIT)

    leader = run.start(0, generation=4)

    assert leader.wait(LIMIT) == protocol.NOT_RETRYABLE
    (failure,) = [event for event in run.events(0, generation=4) if event.kind == "failed"]
    assert failure.reason == "restarted 4 times: limits.failures + limits.interruptions = 3 are used up"


@pytest.mark.parametrize("node", [0, 1])
def test_notice_on_any_node_is_an_interruption(gang: Callable[..., Gang], node: int) -> None:
    run = gang(*SLEEP)
    run.printed("ready", 0)
    run.printed("ready", 1)
    run.agents[node].send_signal(signal.SIGTERM)
    codes = run.codes()
    assert codes[0] == protocol.INTERRUPTED and codes[1] in (0, protocol.INTERRUPTED)
    assert kinds(run.events()) == ["started", "interrupted", "restarted"]
    assert run.attempt()["reason"] == f"node {node}: the pod of this node received SIGTERM"


def test_a_worker_that_is_killed_is_lost_within_seconds(gang: Callable[..., Gang]) -> None:
    run = gang(*SLEEP)
    run.printed("ready", 1)
    run.agents[1].kill()
    assert run.agents[0].wait(LIMIT) == protocol.INTERRUPTED
    assert run.attempt()["cause"] == "interruption" and run.attempt()["reason"].startswith("lost ")


def test_a_worker_that_hangs_is_lost_after_its_silence(gang: Callable[..., Gang]) -> None:
    run = gang(*SLEEP)
    run.printed("ready", 1)
    run.agents[1].send_signal(signal.SIGSTOP)
    start = time.monotonic()
    assert run.agents[0].wait(LIMIT) == protocol.INTERRUPTED
    assert time.monotonic() - start > 2
    run.agents[1].send_signal(signal.SIGCONT)
    # Messages that node 0 has sent meanwhile may still be read.
    assert run.agents[1].wait(LIMIT) in (0, protocol.INTERRUPTED)


def test_without_node_0_every_worker_ends_as_interrupted_with_all_its_processes(gang: Callable[..., Gang]) -> None:
    run = gang("sh", "-c", "echo $$; exec sleep 60", nodes=3)
    for node in (1, 2):
        run.until("its program", functools.partial(has_printed, run, node))
    programs = [int(event.values["text"]) for node in (1, 2) for event in run.events(node) if event.kind == "line"]
    run.agents[0].kill()
    assert run.codes() == [-signal.SIGKILL, protocol.INTERRUPTED, protocol.INTERRUPTED]
    assert not [pid for pid in programs if Path(f"/proc/{pid}/cmdline").exists()]


def test_a_launcher_that_ends_slowly_makes_no_node_lost(
    gang: Callable[..., Gang], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEARTBEAT_TIMEOUT", "3")  # seconds; after SIGTERM a launcher has five
    code = "import os, signal, time; os.environ['RANK'] == '1' and exit(3); signal.signal(15, lambda *a: None)"
    run = gang(sys.executable, "-c", f"{code}; [time.sleep(1) for _ in range(60)]", limits={"failures": 0})
    assert run.codes() == [protocol.NOT_RETRYABLE, 0]
    assert "node 1" in run.attempt()["reason"] and run.attempt()["cause"] == "failure"


def test_a_requested_stop_is_no_failure(gang: Callable[..., Gang], tmp_path: Path) -> None:
    run = gang(*SLEEP)
    run.printed("ready", 1)
    annotation = f'{pod_context.STOP_ANNOTATION}="enough \\"for\\" today"\n'
    (tmp_path / "node-0" / "pod" / "annotations").write_text(f'other="x"\n{annotation}')
    assert run.codes() == [0, 0]
    assert kinds(run.events()) == ["started", "stopped"]
    assert run.events()[-1].reason == 'enough "for" today'


CHECKPOINTING = """
import json, os, signal, time
def write(number, frame):
    print(json.dumps({"spotmpi": "checkpoint", "iteration": 7, "reason": "notice"}), flush=True)
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGUSR1, write)
    with open(os.environ["SPOTMPI_PID_FILE"], "w") as file:
        file.write(str(os.getpid()))
print("ready", flush=True)
time.sleep(60)
time.sleep(60)
"""


@pytest.mark.parametrize("node", [0, 1])
def test_notice_on_any_node_becomes_a_checkpoint_of_rank_0_before_anything_ends(
    gang: Callable[..., Gang], node: int
) -> None:
    run = gang(sys.executable, "-c", CHECKPOINTING)
    run.printed("ready", 0)
    run.printed("ready", 1)
    run.agents[node].send_signal(signal.SIGTERM)
    assert run.codes()[0] == protocol.INTERRUPTED
    assert run.attempt()["checkpoint_iteration"] == 7


def test_no_rank_starts_before_the_data_is_on_its_node(gang: Callable[..., Gang], tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "labels").write_text("cat dog")
    run = gang("cat", str(tmp_path / "staged" / "labels"), data={"path": str(tmp_path / "shared"), "stage": "node"})
    assert run.codes() == [0, 0]
    for node in (0, 1):
        run.printed("cat dog", node)


def test_data_that_cannot_be_staged_ends_the_run_with_its_reason(gang: Callable[..., Gang]) -> None:
    run = gang("true", data={"path": "/none/voc", "stage": "node"})
    assert run.agents[0].wait(LIMIT) == protocol.NOT_RETRYABLE
    assert "data /none/voc cannot be staged: [Errno 2] No such file or directory" in str(run.events()[-1].reason)


def test_hosts_that_do_not_come_are_named_when_the_start_limit_is_over(gang: Callable[..., Gang]) -> None:
    run = gang("true", nodes=3, started=2, limits={"start": "2s"})
    assert run.agents[0].wait(LIMIT) == protocol.NOT_RETRYABLE
    end = run.events()[-1]
    assert end.kind == "failed"
    assert "limits.start (2s) is over: 1 of 3 hosts are not ready yet: 127.0.0.1" in str(end.reason)


def test_a_worker_without_node_0_gives_up_after_the_start_limit(gang: Callable[..., Gang], tmp_path: Path) -> None:
    run = gang("true", started=0, limits={"start": "1s"})
    assert run.start(1).wait(LIMIT) == protocol.INTERRUPTED
    assert "waiting for node 0" in (tmp_path / "output-1-0").read_text()


def test_a_worker_of_before_the_restart_is_refused_and_waited_for(gang: Callable[..., Gang], tmp_path: Path) -> None:
    run = gang("true", started=0, limits={"start": "4s"})
    run.start(1, generation=0)
    leader = run.start(0, generation=1)
    run.until("the refusal", lambda: "generation 0 is not 1" in (tmp_path / "output-1-0").read_text())
    run.agents[1].kill()
    run.start(1, generation=1)
    assert leader.wait(LIMIT) == 0


def test_an_attempt_whose_agent_vanished_counts_as_an_interruption_of_the_next_one(gang: Callable[..., Gang]) -> None:
    run = gang(*SLEEP, limits={"interruptions": 1})
    run.printed("ready", 0)
    run.agents[0].kill()
    run.agents[1].wait(LIMIT)
    for node in (0, 1):
        run.start(node, generation=1)
    run.until("the second attempt", lambda: "started" in kinds(run.events(0, 1)))
    assert kinds(run.events(0, 1)) == ["interrupted", "started"]
    run.agents[0].send_signal(signal.SIGTERM)
    assert run.agents[0].wait(LIMIT) == protocol.NOT_RETRYABLE
    assert "limits.interruptions = 1 is used up" in str(run.events(0, 1)[-1].reason)


def test_a_command_for_the_first_node_leaves_the_others_waiting(gang: Callable[..., Gang]) -> None:
    run = gang("sh", "-c", "echo $RANK of $WORLD_SIZE; sleep 1", where="first")
    assert run.codes() == [0, 0]
    assert [event.values["text"] for event in run.events() if event.kind == "line"] == ["0 of 1"]
    assert run.events(1) == []


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_cannot_run_the_image_ends_the_run_before_any_rank_starts(
    gang: Callable[..., Gang], tmp_path: Path, node: int
) -> None:
    (tmp_path / f"node-{node}").mkdir()
    (tmp_path / f"node-{node}" / "image.json").write_text(json.dumps({"cuda_of_framework": None}))

    run = gang(*SLEEP, resources={"gpu": 1})

    assert run.agents[0].wait(LIMIT) == protocol.NOT_RETRYABLE  # by which the Job ends the other pods
    assert kinds(run.events()) == ["failed"]
    reason = str(run.events()[-1].reason)
    assert "the run requests GPUs but its image has no CUDA" in reason
    assert reason.startswith("node 1: ") is (node == 1)


TORCHRUN = """
import os, subprocess, sys
options = dict(part.lstrip("-").split("=") for part in sys.argv[1:] if "=" in part and part.startswith("--"))
rank_command = sys.argv[sys.argv.index("--no-python") + 1 :]
count, first = int(options["nproc-per-node"]), int(options["node-rank"]) * int(options["nproc-per-node"])
ranks = []
for local in range(count):
    own = {"RANK": str(first + local), "LOCAL_RANK": str(local), "WORLD_SIZE": str(int(options["nnodes"]) * count)}
    ranks.append(subprocess.Popen(rank_command, env={**os.environ, **own}))
sys.exit(max(rank.wait() for rank in ranks))
"""


def test_under_torchrun_every_line_has_its_rank_and_ranks_know_their_interface(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    package = tmp_path / "site" / "torch" / "distributed"
    package.mkdir(parents=True)
    (package / "run.py").write_text(TORCHRUN)
    say = 'printf "rank %s of %s by " $RANK $WORLD_SIZE; echo "$GLOO_SOCKET_IFNAME and $NCCL_SOCKET_IFNAME"'
    environment = {"PYTHONPATH": str(tmp_path / "site")}

    run = gang("sh", "-c", say, launcher="torchrun", slots=2, env=environment)

    assert run.codes() == [0, 0]
    lines = [
        (event.node, event.values["rank"], event.values["text"])
        for node in (0, 1)
        for event in run.events(node)
        if event.kind == "line"
    ]
    assert sorted(lines) == [(rank // 2, rank, f"rank {rank} of 4 by lo and lo") for rank in range(4)]


@pytest.mark.parametrize(("image", "is_recorded"), [("registry/image@sha256:1", True), ("registry/image:mine", False)])
def test_the_record_has_the_image_without_any_terminal_where_its_digest_is_known(
    gang: Callable[..., Gang], image: str, is_recorded: bool
) -> None:
    run = gang("true", nodes=1, started=0)
    run.plan["work"]["container"] = image
    run.start(0)

    assert run.codes() == [0]
    assert reader.state(RunPaths(run.folder / "runs" / RUN)).container == (image if is_recorded else None)
