"""The agents of a worker pool as processes on this machine, with a scheduler and workers that tests control."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotmpi.agent import launchers, worker
from spotmpi.agent.context import AgentContext
from spotmpi.agent.plan import WORKER, Member
from spotmpi.agent.tcp import Tcp, Welcome
from spotmpi.agent.worker import Worker
from spotmpi.runs import pod_output
from tests.clocks import SetClock
from tests.contract.processes import wait_until
from tests.unit.agent.agent_process import mounts_below
from tests.unit.agent.gang import LIMIT, Gang, kinds

# Prints its name and process id, then ends with the exit code that it finds in a file of that name.
PROGRAM = """
import os, sys, time
options = dict(each[2:].split("=", 1) for each in sys.argv[1:])
name = options.get("worker", "{}/0").replace("/", "-")
path = os.path.join(os.environ["FOLDER"], name)
print(name, os.getpid(), flush=True)
open(options.get("address-file", os.devnull), "w").close()
while not os.path.exists(path):
    time.sleep(0.02)
with open(path) as file:
    code = int(file.read())
os.remove(path)
print("RuntimeError: " + name, file=sys.stderr)
os._exit(code)
"""
REAL = Path(launchers.__file__).parents[1]  # the package


class Pool(Gang):
    """A pool, or a run with a stream, whose scheduler and workers end when a test says so."""

    def __init__(self, folder: Path, **values: Any) -> None:
        package = folder / "programs" / "spotmpi" / "programs" / "pool"
        package.mkdir(parents=True)
        for parent in (package, package.parent, package.parent.parent):
            (parent / "__init__.py").touch()
        for name in ("scheduler", "worker"):
            (package / f"{name}.py").write_text(PROGRAM.format(name))
        (package / "driver.py").symlink_to(REAL / "programs" / "pool" / "driver.py")
        (package.parent.parent / "agent").symlink_to(REAL / "agent")
        environment = {"PYTHONPATH": str(folder / "programs"), "FOLDER": str(folder)}
        both = {"launcher": "pool", "nodes": 1, "pool": {"count": 2}, "env": environment, **values}
        super().__init__(folder, {key: value for key, value in both.items() if value is not None})

    def end(self, process: str, code: int) -> None:
        """Let a process end with an exit code."""
        waiting = self.folder / f"new-{process}"
        waiting.write_text(str(code))
        waiting.rename(self.folder / process)

    def processes(self, node: int, restart_count: int = 0, name: str = "") -> list[int]:
        """The process ids that the programs of a node, or those of that name, have printed."""
        lines = [text.split() for text in self.texts(node, restart_count)]
        return [int(line[1]) for line in lines if len(line) == 2 and line[1].isdecimal() and line[0].startswith(name)]

    def until_started(self, *nodes: int, count: int = 1, restart_count: int = 0) -> None:
        """Wait until each node has started that many processes."""
        self.until(
            f"process {count} of nodes {nodes}",
            lambda: all(len(self.processes(node, restart_count)) >= count for node in nodes),
        )

    def left(self) -> list[str | None]:
        """Why workers left, as node 0 recorded it."""
        return [event.reason for event in self.events() if event.kind == "left"]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Callable[..., Pool]]:
    """A function that makes a pool; its agents end with the test."""
    pools: list[Pool] = []

    def make(*started: int, **values: Any) -> Pool:
        pools.append(Pool(tmp_path, **values))
        for node in started:
            pools[-1].start(node)
        return pools[-1]

    yield make
    for each in pools:
        for agent in each.agents.values():
            agent.kill()
            agent.wait(LIMIT)


def test_a_worker_process_that_ends_is_started_again_and_a_stop_ends_all_agents(pool: Callable[..., Pool]) -> None:
    up = pool(0, 1, 2)
    up.until_started(0, 1, 2)
    up.end("worker-0", 3)
    up.until_started(1, count=2)
    up.stop()

    assert up.codes() == [0, 0, 0]
    assert kinds(up.events()) == ["started", "joined", "joined", "stopped"]
    assert {event.values["member"] for event in up.events() if event.kind == "joined"} == {"worker/0", "worker/1"}
    (again,) = [text for text in up.texts(1) if "started again" in text]
    assert again == "worker 0 ended with exit code 3: RuntimeError: worker-0; it is started again"
    assert len(up.processes(0)) == len(up.processes(2)) == 1


def test_a_worker_that_leaves_ends_nothing_and_the_pod_after_it_has_lines_of_its_own(pool: Callable[..., Pool]) -> None:
    up = pool(0, 1, 2)
    up.until_started(0, 1, 2)
    agent = up.agents[1]
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(LIMIT) == 75
    up.until("that it left", lambda: up.left() == ["the pod of this node received SIGTERM"])
    up.start(1, restart_count=1)
    up.until_started(1, restart_count=1)

    assert {event.attempt for event in up.events(1) if event.kind == "line"} == {1}
    assert {event.attempt for event in up.events(1, restart_count=1) if event.kind == "line"} == {2}
    up.stop()
    assert up.codes() == [0, 0, 0]
    assert kinds(up.events()) == ["started", "joined", "joined", "left", "joined", "stopped"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (1, "node 0: the scheduler ended with exit code 1: RuntimeError: scheduler-0"),
        # The real one ends with 0 by a signal alone; without a driver nothing else could mean that the pool succeeded.
        (0, "node 0: the scheduler was ended by SIGTERM or SIGINT from outside of the run; `spotmpi stop` ends a pool"),
    ],
)
def test_a_scheduler_that_ends_is_started_again_by_the_same_agent(
    pool: Callable[..., Pool], code: int, reason: str
) -> None:
    up = pool(0, 1)
    up.until_started(0, 1)
    up.end("scheduler-0", code)
    up.until_started(0, 1, count=2)

    assert {event.attempt for event in up.events(1) if event.kind == "line"} == {1}, "the pod is the same"
    assert [event.reason for event in up.events() if event.kind == "restarted"] == [reason]
    up.stop()
    assert up.codes() == [0, 0]
    first, second = kinds(up.events())[:3], kinds(up.events())[3:]
    assert (sorted(first), sorted(second)) == (["joined", "restarted", "started"], ["joined", "started", "stopped"])


def test_workers_survive_the_loss_of_node_0_and_join_the_next_one(pool: Callable[..., Pool]) -> None:
    up = pool(0, 1)
    up.until_started(0, 1)
    up.agents[0].kill()
    up.agents[0].wait(LIMIT)
    up.start(0, restart_count=1)
    up.until_started(0, restart_count=1)
    up.until_started(1, count=2)

    numbers = [event.number for event in up.events(1) if event.kind == "line"]
    assert numbers == [*range(1, len(numbers) + 1)], "the lines of a pod are numbered on"
    up.stop()
    assert up.codes() == [0, 0]
    assert kinds(up.events(restart_count=1)) == ["interrupted", "started", "joined", "stopped"]


def test_workers_are_not_paid_for_where_node_0_does_not_come(pool: Callable[..., Pool]) -> None:
    up = pool(1, limits={"start": "1s"})
    assert up.codes() == [0]
    assert up.texts(1) == ["no connection to node 0 within limits.start (1s): this worker ends"]


@pytest.mark.parametrize(("restart_count", "limits"), [(0, [1.0, 3600.0]), (2, [3600.0, 3600.0])])
def test_a_worker_waits_longer_for_a_node_0_that_was_there_before(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    restart_count: int,
    limits: list[float],
) -> None:
    lost: Any = SimpleNamespace(close=lambda: None, lost=True)
    answers: list[Any] = [(lost, Welcome(1, Member(WORKER, 1))), None]
    waits: list[float] = []

    def join(context: AgentContext, transport: Any, notice: Any, since: float, limit: float, member: Member) -> Any:
        waits.append(limit)
        return answers.pop(0)

    monkeypatch.setattr(worker, "join_coordinator", join)
    monkeypatch.setattr(Worker, "_take_part", lambda worker: None)
    plan: Any = {"limits": {"start": 1.0}, "hosts": ["run-0"], "run": "run", "grace": 1.0}
    notice: Any = SimpleNamespace(reason=None)
    context = AgentContext(plan, Member(WORKER, 1), restart_count, None, mounts_below(str(tmp_path)), SetClock())
    assert worker.run(context, Tcp(), notice, 0.0) == 0
    entries = [pod_output.parse(line) for line in capsys.readouterr().out.splitlines()]
    texts = [entry.event.values["text"] for entry in entries if entry and entry.event]
    assert waits == limits and texts == ["no connection to node 0 within 3600 s: this worker ends"]


def test_another_run_cannot_join_a_pool(pool: Callable[..., Pool]) -> None:
    up = pool(0)
    up.until_started(0)
    up.start(1)
    up.until_started(1)
    up.plan["limits"] = {**up.plan["limits"], "start": 1.0}  # of this one alone
    stranger = up.start(2, authority="of another run")
    assert stranger.wait(LIMIT) == 0
    assert not up.processes(2)
    assert _exists(up.processes(1)[0])


def test_a_frozen_agent_of_node_0_ends_the_processes_of_workers_which_join_it_again(
    pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEARTBEAT_TIMEOUT", "2.5")
    up = pool(0, 1)
    up.until_started(0, 1)
    up.agents[0].send_signal(signal.SIGSTOP)
    (worker,) = up.processes(1)
    wait_until(lambda: not _exists(worker), LIMIT)
    up.agents[0].send_signal(signal.SIGCONT)
    up.until_started(1, count=2)
    assert up.left() == ["node 0 lost the connection to it"]


# Prints its number, reports as one that takes a batch does, and ends once the test lets it.
RANK = """
import os, sys, time
name = "rank-" + os.environ["RANK"]
print(name, os.getpid(), flush=True)
counts = ("ranks", "workers", "batches", "bytes", "seconds", "waited", "preparing", "in_flight", "skipped")
report = ",".join(f'"{count}":0' for count in counts)
print('{"spotmpi":"stream","rank":' + os.environ["RANK"] + "," + report + "}", flush=True)
while not os.path.exists(os.path.join(os.environ["FOLDER"], name)):
    time.sleep(0.02)
"""
STREAM: dict[str, Any] = {
    "launcher": "none",
    "nodes": 2,
    "command": [sys.executable, "-c", RANK],
    "pool": None,
    "stream": {"source": "flow:rows", "length": 1, "workers": {"count": 2}},
    "limits": {"failures": 1},
}
GANG, WORKERS = (0, 1), (2, 3)
OWN = {**STREAM["stream"], "postprocess": "flow:post", "postprocess_workers": {"count": 1}}
STAGES = {**STREAM, "stream": OWN}  # whose pod is 4


def until_all_run(run: Pool, restart_count: int = 0) -> None:
    """Wait until the ranks and all workers run."""
    run.until("the ranks", lambda: all(run.processes(node, restart_count, f"rank-{node}") for node in GANG))
    run.until_started(*WORKERS, count=1 + restart_count)


def test_workers_of_a_stream_come_and_go_beside_its_gang_whose_end_is_theirs(pool: Callable[..., Pool]) -> None:
    run = pool(*GANG, *WORKERS, **STREAM)
    until_all_run(run)
    run.agents[2].send_signal(signal.SIGTERM)
    assert run.agents[2].wait(LIMIT) == 75
    run.until("that it left", lambda: run.left() == ["the pod of this node received SIGTERM"])
    run.start(2, restart_count=1)
    run.until_started(2, restart_count=1)
    run.end("rank-0", 0)
    run.until("the end of rank 0", lambda: not _exists(run.processes(0, name="rank-0")[0]))
    assert _exists(run.processes(0, name="scheduler-0")[0]), "the rank on node 1 still needs it"
    run.end("rank-1", 0)

    assert run.codes() == [0, 0, 0, 0]
    assert sorted(kinds(run.events())) == ["joined", "joined", "joined", "left", "started", "succeeded"]
    joined = [event.values["member"] for event in run.events() if event.kind == "joined"]
    assert sorted(joined) == ["worker/0", "worker/0", "worker/1"]
    (started,) = [event for event in run.events() if event.kind == "started"]
    assert [machine["member"] for machine in started.values["machines"]] == ["node/0", "node/1"], "not those of workers"


def test_a_worker_of_the_postprocess_comes_and_goes_as_those_that_prepare(pool: Callable[..., Pool]) -> None:
    run = pool(*GANG, *WORKERS, 4, **STAGES)
    run.until_started(*WORKERS, 4)
    assert run.processes(4, name="postprocess-0") and run.processes(2, name="worker-0")
    run.end("postprocess-0", 3)
    run.until_started(4, count=2)
    run.agents[4].send_signal(signal.SIGTERM)
    assert run.agents[4].wait(LIMIT) == 75
    run.until("that it left", lambda: run.left() == ["the pod of this node received SIGTERM"])
    run.start(4, restart_count=1)
    run.until_started(4, restart_count=1)
    run.until("the ranks", lambda: all(run.processes(node, name=f"rank-{node}") for node in GANG))
    for node in GANG:
        run.end(f"rank-{node}", 0)

    assert run.codes() == [0] * 5
    members = [event.values["member"] for event in run.events() if event.kind in ("joined", "left")]
    assert sorted(members) == ["postprocess/0"] * 3 + ["worker/0", "worker/1"]
    (again,) = [text for text in run.texts(4) if "started again" in text]
    assert again == "postprocess 0 ended with exit code 3: RuntimeError: postprocess-0; it is started again"
    assert {event.attempt for event in run.events(4, restart_count=1) if event.kind == "line"} == {2}


def test_a_lost_node_restarts_the_gang_of_a_stream_and_its_workers_join_again(pool: Callable[..., Pool]) -> None:
    run = pool(*GANG, *WORKERS, **STREAM)
    until_all_run(run)
    run.agents[1].send_signal(signal.SIGTERM)
    assert [run.agents[node].wait(LIMIT) for node in GANG] == [75, 75]
    for node in GANG:
        run.start(node, restart_count=1)
    until_all_run(run, restart_count=1)
    for node in GANG:
        run.end(f"rank-{node}", 0)

    assert run.codes() == [0, 0, 0, 0]
    assert run.events()[-1].reason == "node 1: the pod of this node received SIGTERM"
    assert sorted(kinds(run.events(restart_count=1))) == ["joined", "joined", "started", "succeeded"]


@pytest.mark.parametrize(
    ("values", "nodes", "process", "code", "reason"),
    [
        ({}, (0, 1, 2), "worker-1", 78, "worker 1: it ended with exit code 78: RuntimeError: worker-1"),
        (STREAM, (*GANG, *WORKERS), "worker-1", 78, "worker 1: it ended with exit code 78: RuntimeError: worker-1"),
        (
            {**STREAM, "limits": {"failures": 0}},
            (*GANG, *WORKERS),
            "scheduler-0",
            3,
            "node 0: the scheduler ended with exit code 3; no retries left (limits.failures = 0)",
        ),
    ],
    ids=["a pool", "a stream", "the scheduler of a stream"],
)
def test_a_process_that_can_never_work_ends_the_run_with_its_reason(
    pool: Callable[..., Pool], values: dict[str, Any], nodes: tuple[int, ...], process: str, code: int, reason: str
) -> None:
    run = pool(*nodes, **values)
    run.until_started(*nodes)
    run.end(process, code)
    codes = run.codes()
    assert (codes[0], codes[-1]) == (78, 0), "workers end well"
    assert run.events()[-1].reason == reason


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.nightly("a second of waiting for nothing; by day the same agents end for other reasons")
@pytest.mark.parametrize(
    ("nodes", "values", "missing"), [(GANG, STREAM, "worker"), ((*GANG, *WORKERS), STAGES, "postprocess worker")]
)
def test_a_gang_that_waits_for_workers_in_vain_ends_with_that_reason(
    pool: Callable[..., Pool], nodes: tuple[int, ...], values: dict[str, Any], missing: str
) -> None:
    run = pool(*nodes, **{**values, "limits": {"failures": 0, "no_progress": "1s"}})
    assert run.codes()[0] == 78
    reason = f"no progress for limits.no_progress (1s), last iteration none; no {missing} of the stream is connected"
    assert str(run.events()[-1].reason) == f"{reason}; no retries left (limits.failures = 0)"


def test_a_pod_that_stands_by_takes_over_a_node_of_a_stream_whose_workers_stay(pool: Callable[..., Pool]) -> None:
    """Pods: nodes 0 and 1, then one that stands by, then two workers."""
    run = pool(**STREAM)
    run.plan |= {"replaces_nodes": True, "standby": ["127.0.0.1"]}
    workers = (3, 4)
    for number in (*GANG, *workers):
        run.start(number)
    run.until("the ranks", lambda: all(run.processes(node, name=f"rank-{node}") for node in GANG))
    run.until_started(*workers)
    run.start(2)
    run.until("the pod that stands by", lambda: any("standby" in event.values for event in run.events()))

    run.agents[1].kill()

    run.until("the rank of node 1 in another pod", lambda: run.processes(2, name="rank-1"))
    run.until_started(*workers, count=2)
    kinds_of = {event.values.get("member", event.values.get("standby")) for event in run.events()}
    assert kinds_of >= {"worker/0", "worker/1"} and not run.left(), "no worker has left"
    assert all(run.agents[number].poll() is None for number in (0, 2, *workers))
    run.start(1, restart_count=1)  # JobSet's replacement
    run.until("the next to stand by", lambda: sum("standby" in each.values for each in run.events()) >= 2)

    for node in GANG:
        run.end(f"rank-{node}", 0)
    assert [run.agents[number].wait(LIMIT) for number in (0, *workers)] == [0, 0, 0]
    (promoted,) = [event.values for event in run.events() if event.kind == "promoted"]
    assert promoted["node"] == 1
    summary = json.loads((run.paths.folder / "summary.json").read_text())
    assert (summary["state"], summary["interruptions"], summary["failures"]) == ("succeeded", 1, 0)
    assert [each["world"]["pods"] for each in summary["attempts"]] == [["node/0", "node/1"], ["node/0", "standby/0"]]
