"""The agents of a run as real processes on this machine: who ends how, and what is recorded."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spotmpi.agent import protocol, record
from spotmpi.runs import reader
from tests.unit.agent.gang import LIMIT, Gang, kinds


def test_all_end_well_when_every_launcher_has(gang: Callable[..., Gang]) -> None:
    run = gang("sh", "-c", "echo rank $RANK of $WORLD_SIZE; test $RANK != 2 || sleep 1", nodes=3, started=0)
    run.plan["work"]["container"] = "registry/image@sha256:1"
    for node in range(3):
        run.start(node)
    assert run.codes() == [0, 0, 0]
    assert kinds(run.events()) == ["started", "succeeded"]
    assert [run.texts(node) for node in range(3)] == [[f"rank {node} of 3"] for node in range(3)]
    attempt = run.attempt()
    assert attempt["cause"] == "succeeded"
    assert attempt["ended"] - attempt["started"] >= 1, "node 0 waits for the slowest"
    summary = json.loads(run.paths.summary.read_text())
    (alike,) = summary["hardware"]
    assert alike["nodes"] == [0, 1, 2]
    assert (alike["zone"], alike["cores"], alike["gpus"]) == ("zone-a", len(os.sched_getaffinity(0)), [])
    assert summary["work"]["machine"]["cpu"] == alike["cpu"]
    assert run.paths.spec.read_text().startswith("command = ")
    assert reader.state(run.paths).container == "registry/image@sha256:1"


def test_agents_and_ranks_find_node_0_where_its_name_leads_nowhere(gang: Callable[..., Gang]) -> None:
    """As name servers with a cache say for seconds after a pod of that name has been replaced, or is new."""
    run = gang("sh", "-c", "echo $MASTER_ADDR", launcher="torchrun", started=0)
    run.plan["hosts"] = ["no-such-node-0.invalid", "no-such-node-1.invalid"]
    run.paths.folder.mkdir(parents=True)
    record.note_address(str(run.paths.folder), "127.0.0.1")  # where this machine's name leads nowhere either
    for node in range(2):
        run.start(node)
    assert run.codes() == [0, 0]
    assert run.texts(1) == [record.noted_address(str(run.paths.folder))]
    assert kinds(run.events()) == ["started", "succeeded"]


def test_a_run_whose_secret_has_no_tls_files_ends_with_what_is_missing(gang: Callable[..., Gang]) -> None:
    run = gang("true", started=0)
    assert run.start(0, authority=None).wait(LIMIT) == protocol.NOT_RETRYABLE
    worker = run.start(1, authority=None)
    missing = "the SSH Secret has no ca.pem, cert.pem, key.pem; in an environment `pulumi up` adds them"
    output = run.folder / "output-1-0"
    run.until("the reason", lambda: f"waiting for node 0: {missing}" in output.read_text())
    worker.send_signal(signal.SIGTERM)  # as the end of the JobSet does
    assert worker.wait(LIMIT) == protocol.INTERRUPTED
    (end,) = [event for event in run.events() if event.kind == "failed"]
    assert str(end.values["reason"]).startswith(missing)


# The kernel kills it for memory, and counts that in the cgroup of its agent.
KILLED = "mkdir -p node-$RANK/cgroup; printf 'oom 2\\noom_kill 1\\n' > node-$RANK/cgroup/memory.events; kill -9 $$"
OUT_OF_MEMORY = "was killed by SIGKILL; out of memory on node {node}: raise resources.memory"


FAILS = ("echo no weights >&2; exit 3", [0, 0], ["restarted"], "failure", "exit code 3: no weights")
RUNS_OUT = (KILLED, [0, 0], ["restarted"], "failure", OUT_OF_MEMORY)
SECOND_ENDS_WELL = "test $SPOTMPI_ATTEMPT = 1 || exit 0"


@pytest.mark.parametrize(
    ("node", "ends", "codes", "end", "cause", "reason"),
    [
        pytest.param(0, *FAILS, id="a failure on node 0"),  # local runs, whose agent is node 0's, have the other codes
        pytest.param(1, *FAILS, id="a failure"),
        pytest.param(1, "exit 75", [0, 0], ["interrupted", "restarted"], "interruption", "75", id="an interruption"),
        pytest.param(
            1, "exit 78", [protocol.NOT_RETRYABLE, 0], ["failed"], "not retryable", "78", id="a permanent error"
        ),
        pytest.param(0, *RUNS_OUT, id="out of memory on node 0"),
        pytest.param(1, *RUNS_OUT, id="out of memory"),
    ],
)
def test_the_end_of_a_program_on_any_node_ends_the_attempt_with_its_cause_and_reason_and_the_same_agents_start_the_next(
    gang: Callable[..., Gang], node: int, ends: str, codes: list[int], end: list[str], cause: str, reason: str
) -> None:
    run = gang("sh", "-c", f"{SECOND_ENDS_WELL}; test $RANK != {node} || {{ {ends}; }}; sleep 60")
    assert run.codes() == codes
    assert kinds(run.events()) == ["started", *end, *(["started", "succeeded"] if codes == [0, 0] else [])]
    assert run.attempt()["cause"] == cause
    assert f"node {node}" in run.attempt()["reason"] and run.attempt()["reason"].endswith(reason.format(node=node))


LEAVES_A_PROCESS = """
echo attempt $SPOTMPI_ATTEMPT
if [ $SPOTMPI_ATTEMPT = 2 ]; then kill -0 $(cat left-$RANK) 2> /dev/null && echo left; exit 0; fi
trap '' TERM
setsid sh -c "trap '' TERM; echo \\$\\$ > left-$RANK; while :; do sleep 1; done" &
while [ ! -e left-0 ] || [ ! -e left-1 ]; do sleep 0.01; done
[ $RANK = 0 ] && kill -9 $$
while :; do sleep 1; done
"""


def test_no_process_of_an_attempt_is_left_on_any_node_when_the_same_agents_start_the_next(
    gang: Callable[..., Gang],
) -> None:
    run = gang("sh", "-c", LEAVES_A_PROCESS, limits={"failures": 1})
    assert run.codes() == [0, 0]
    assert [run.texts(node) for node in (0, 1)] == [["attempt 1", "attempt 2"]] * 2
    assert run.attempt()["reason"].endswith("was killed by SIGKILL")
    numbers = [(event.attempt, event.number) for event in run.events(1) if event.kind == "line"]
    assert numbers == [(1, 1), (2, 1)], "one record of all attempts"
    summary = json.loads(run.paths.summary.read_text())
    assert (summary["failures"], summary["interruptions"]) == (1, 0)


def test_what_an_earlier_attempt_lacked_in_memory_is_no_reason_of_the_next(gang: Callable[..., Gang]) -> None:
    run = gang("sh", "-c", f"test $SPOTMPI_ATTEMPT = 1 || exit 3; test $RANK = 0 || sleep 60; {KILLED}", nodes=2)
    run.codes()
    reasons = [attempt["reason"] for attempt in json.loads(run.paths.summary.read_text())["attempts"]]
    assert "out of memory" in reasons[0] and all("out of memory" not in reason for reason in reasons[1:])


def test_machines_are_paid_for_once_where_the_same_agents_start_another_attempt(gang: Callable[..., Gang]) -> None:
    run = gang("sh", "-c", f"{SECOND_ENDS_WELL}; exit 3")
    run.codes()
    first, second = [event for event in run.events() if event.kind == "started"]
    ended = run.attempt()["ended"]
    assert all(machine["since"] < first.time for machine in first.values["machines"])
    assert all(ended <= machine["since"] <= second.time for machine in second.values["machines"])


REPORTS = "print(json.dumps({'spotmpi': 'fatal', 'reason': 'b' * 300_000 + 'z'})); sys.exit(78)"
EXCEPTION = "command on node {node} ended with exit code 1: ValueError: "


@pytest.mark.parametrize(
    ("node", "ends", "cause", "reason"),
    [
        (1, "raise ValueError('\\U0001f600' * 30_000 + 'z')", "failure", EXCEPTION),
        (0, "raise ValueError('a' * 300_000 + 'z')", "failure", EXCEPTION),
        (1, REPORTS, "not retryable", "bbb"),
    ],
    ids=["an exception that is long once encoded", "an exception on node 0", "a report"],
)
def test_a_reason_of_any_length_is_cut_and_makes_no_host_lost(
    gang: Callable[..., Gang], node: int, ends: str, cause: str, reason: str
) -> None:
    program = f"import json, os, sys, time; os.environ['RANK'] == '{node}' or time.sleep(60); {ends}"
    run = gang(sys.executable, "-X", "utf8", "-c", program, limits={"failures": 0})

    assert run.codes() == [protocol.NOT_RETRYABLE, 0]
    attempt = run.attempt()
    assert attempt["cause"] == cause
    assert reason.format(node=node) in attempt["reason"] and attempt["reason"].endswith("z")
    assert " characters left out) ... " in attempt["reason"]
    assert len(attempt["reason"]) < protocol.REASON_LENGTH + 50


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
def test_notice_on_any_node_is_an_interruption_and_no_loss_with_a_checkpoint_of_rank_0_before_anything_ends(
    gang: Callable[..., Gang], node: int
) -> None:
    run = gang(sys.executable, "-c", CHECKPOINTING)
    run.printed("ready", 0)
    run.printed("ready", 1)
    run.agents[node].send_signal(signal.SIGTERM)
    codes = run.codes()
    assert codes[0] == protocol.INTERRUPTED and codes[1] in (0, protocol.INTERRUPTED)
    assert kinds(run.events()) == ["started", "interrupted", "restarted"]
    attempt = run.attempt()
    assert attempt["reason"] == f"node {node}: the pod of this node received SIGTERM"
    assert (attempt["checkpoint_iteration"], attempt["lost_nodes"]) == (7, [])


def test_a_launcher_that_ends_slowly_loses_no_node(gang: Callable[..., Gang], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTBEAT_TIMEOUT", "3")  # seconds; after SIGTERM a launcher has five
    code = "import os, signal, time; os.environ['RANK'] == '1' and exit(3); signal.signal(15, lambda *a: None)"
    run = gang(sys.executable, "-c", f"{code}; [time.sleep(1) for _ in range(60)]", limits={"failures": 0})
    assert run.codes() == [protocol.NOT_RETRYABLE, 0]
    assert "node 1" in run.attempt()["reason"] and run.attempt()["cause"] == "failure"


def test_a_requested_stop_is_no_failure(gang: Callable[..., Gang]) -> None:
    run = gang("sh", "-c", "echo ready; exec sleep 60")
    run.printed(node=1)
    run.stop('enough "for" today')
    assert run.codes() == [0, 0]
    assert kinds(run.events()) == ["started", "stopped"]
    assert run.events()[-1].reason == 'enough "for" today'


def test_no_rank_starts_before_the_data_is_on_its_node(gang: Callable[..., Gang], tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "labels").write_text("cat dog")
    run = gang("cat", str(tmp_path / "staged" / "labels"), data={"path": str(tmp_path / "shared"), "stage": "node"})
    assert run.codes() == [0, 0]
    assert run.texts(0) == run.texts(1) == ["cat dog"]


def test_a_run_without_records_ends_when_it_was_restarted_too_often(gang: Callable[..., Gang]) -> None:
    run = gang("true", started=0, limits={"failures": 1, "interruptions": 2})
    leader = run.start(0, restart_count=3)
    run.start(1, restart_count=3)
    assert leader.wait(LIMIT) == 0, "one failure and two interruptions are allowed"
    # As many as three sets of pods may have begun, each of which knew of its own attempts alone.
    assert [event.attempt for event in run.events(0, restart_count=3) if event.kind == "started"] == [13]
    run.agents[1].wait(LIMIT)

    shutil.rmtree(run.paths.folder)  # an emptyDir of each pod
    leader = run.start(0, restart_count=4)

    assert leader.wait(LIMIT) == protocol.NOT_RETRYABLE
    (failure,) = [event for event in run.events(0, restart_count=4) if event.kind == "failed"]
    assert failure.reason == "restarted 4 times: no retries left (limits.failures + limits.interruptions = 3)"


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
    run = gang("true", started=0)
    run.start(1, restart_count=0)
    leader = run.start(0, restart_count=1)
    run.until("the refusal", lambda: "restart count 0 is not 1" in (tmp_path / "output-1-0").read_text())
    run.agents[1].kill()
    run.start(1, restart_count=1)
    assert leader.wait(LIMIT) == 0


def test_a_command_for_the_first_node_leaves_the_others_waiting(gang: Callable[..., Gang]) -> None:
    run = gang("sh", "-c", "echo $RANK of $WORLD_SIZE; sleep 1", run_on="first")
    assert run.codes() == [0, 0]
    assert run.texts() == ["0 of 1"]
    assert run.events(1) == []


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_cannot_run_the_image_ends_the_run(gang: Callable[..., Gang], tmp_path: Path, node: int) -> None:
    (tmp_path / f"node-{node}").mkdir()
    (tmp_path / f"node-{node}" / "image.json").write_text(json.dumps({"cuda_of_framework": None}))

    run = gang("true", resources={"gpu": 1})

    assert run.agents[0].wait(LIMIT) == protocol.NOT_RETRYABLE  # by which the Job ends the other pods
    assert kinds(run.events()) == ["failed"]
    reason = str(run.events()[-1].reason)
    assert "the run requests GPUs but its image has no CUDA" in reason
    assert reason.startswith("node 1: ") is (node == 1)
