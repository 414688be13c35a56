"""The attempts of a run on this machine, whose disks stumble; programs and time are simulated."""

from __future__ import annotations

import errno
import json
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotmpi.agent import coordinator, hardware, launchers, processes, stop_requests
from spotmpi.agent.__main__ import run_children
from spotmpi.agent.attempt_history import AttemptHistory
from spotmpi.agent.children import Children, read_context, reserve_port
from spotmpi.agent.context import AgentContext, Members, in_run_folder
from spotmpi.agent.coordinator import AttemptLoop
from spotmpi.agent.launch import Launch
from spotmpi.agent.launcher_output import Line
from spotmpi.agent.outcomes import (
    FAILURE,
    INTERRUPTION,
    NOT_RETRYABLE,
    STOPPED,
    SUCCEEDED,
    Outcome,
    StopRequest,
)
from spotmpi.agent.plan import COORDINATOR, NODE, Member
from spotmpi.agent.pod_record import PodRecord
from spotmpi.agent.progress import Progress
from spotmpi.agent.record import Record
from spotmpi.agent.stop_requests import CoordinatorStopSignal, PreemptionNotice
from tests.clocks import SetClock
from tests.transient_errors import TransientErrors

FAILED = Outcome(FAILURE, "exit code 3")
DONE = Outcome(SUCCEEDED, None)
STALE = OSError(errno.ESTALE, "Stale file handle", "metrics.jsonl")
LIMITS = {
    "start": 60.0,
    "run": None,
    "no_progress": None,
    "failures": 2,
    "interruptions": 9,
    "cost": None,
    "silence": 1.0,
}


class LocalRun:
    """A run folder whose attempts end as *ends* says: an outcome or an error, the last one for ever."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.clock, self.memory = folder / "r-1", SetClock(), folder / "memory"
        self.folder.mkdir()
        self.ends: list[Outcome | OSError] = [DONE]
        self.after: Callable[[], object] = lambda: None
        self.attempts = 0
        self.progress: dict[str, Any] = {}  # of each attempt
        self.launches: list[Launch] = []
        self.deadlines: list[float | None] = []  # of each launch
        self.plan: Any = {"limits": dict(LIMITS), "run": "r-1", "name": "r", "work": {}, "rate": None, "grace": 1.0}
        self.plan.update(environment={}, oversubscribed=False, launcher="none", run_on="all", slots=1, python="python3")
        self.plan.update(python="python3", hosts=["127.0.0.1"], mpi={"args": [], "path": None, "family": 0})
        self.plan.update(roles=[{"name": "ranks", "restart": "gang", "command": ["train"]}])
        (self.folder / "events.jsonl").touch()
        patch.setattr(coordinator, "Attempt", self._attempt)

    def _attempt(
        self, number: int, plan: Any, launch: Launch, run_record: Record, source: CoordinatorStopSignal, clock: Any
    ) -> Any:
        self.launches.append(launch)
        self.deadlines.append(source.deadlines.run)
        progress = Progress(0.0)
        vars(progress).update(self.progress)
        return SimpleNamespace(number=number, progress=progress, run=self._run)

    def _run(self) -> Outcome:
        self.attempts += 1
        self.clock.seconds += 5
        assert self.attempts < 50, "it would go on for ever"
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        self.after()
        if isinstance(end, OSError):
            raise end
        return end

    def context(self) -> AgentContext:
        (self.folder / "plan.yaml").write_text(json.dumps(self.plan))
        mounts = in_run_folder(str(self.folder), "/tmp/scratch", "/nowhere", str(self.memory))
        return read_context(mounts, self.clock)

    def run(self, signal: str | None = None, transport: Children | None = None) -> int:
        notice: Any = SimpleNamespace(reason=signal)
        self.clock.pauses.clear()
        identity: Any = object()  # of agents on machines of their own
        context = self.context()._replace(identity=identity if isinstance(transport, Supervised) else None)
        return AttemptLoop(context, transport or Children("python3"), notice).run()

    def events(self) -> list[dict[str, Any]]:
        """The events of the run, in order."""
        return [json.loads(line) for line in (self.folder / "events.jsonl").read_text().splitlines()]

    def kinds(self) -> list[str]:
        """The kinds of these events."""
        return [event["event"] for event in self.events()]

    def summary(self) -> Any:
        return json.loads((self.folder / "summary.json").read_text())


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalRun:
    return LocalRun(tmp_path, monkeypatch)


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_clock_that_is_set_switches_no_limit_off(run: LocalRun, step: float) -> None:
    run.ends = [FAILED]

    def set_clock() -> None:
        run.clock.unix += step

    run.after = set_clock
    run.run()
    assert run.attempts == 3 and run.summary()["failures"] == 3
    run.clock.unix -= 10 * 3600
    run.run()
    assert run.attempts == 6 and run.summary()["failures"] == 3, "those before it was submitted again don't count"


def test_a_clock_that_is_set_saves_no_money(run: LocalRun) -> None:
    run.ends, run.plan["rate"], run.plan["limits"]["cost"] = [FAILED], 36.0, 0.13  # 13 s, of which 1 s is the grace
    run.plan["limits"]["failures"] = 1000

    def set_clock() -> None:
        run.clock.unix -= 3600

    run.after = set_clock
    run.run()
    assert run.attempts == 3 and "limits.cost" in run.summary()["reason"]


def test_errors_of_a_disk_that_may_pass_are_interruptions_with_growing_pauses(run: LocalRun) -> None:
    run.ends = [STALE, OSError(errno.EIO, "Input/output error"), STALE, FAILED, DONE]
    assert run.run() == 0
    causes = [attempt["cause"] for attempt in run.summary()["attempts"]]
    assert causes == ["interruption", "interruption", "interruption", "failure", "succeeded"]
    assert sum(run.clock.pauses) == pytest.approx(7, abs=0.1), "1 s, 2 s, 4 s; none after a failure of the program"


def test_a_run_that_waits_for_its_disk_can_be_stopped(run: LocalRun) -> None:
    run.ends = [STALE]

    def stop() -> None:
        if run.attempts == 3:
            stop_requests.submit(str(run.folder), stop_requests.STOP, "by a test")

    run.after = stop
    assert run.run() == 0 and run.summary()["state"] == "stopped"
    assert run.attempts == 3 and sum(run.clock.pauses) == pytest.approx(3, abs=0.1)


def test_an_attempt_after_a_night_asleep_has_the_time_that_the_run_has_left(run: LocalRun) -> None:
    """Counting the sleep would end the next attempt at its start."""
    run.plan["limits"]["run"], run.ends = 600.0, [FAILED, DONE]
    run.after = lambda: setattr(run.clock, "unix", run.clock.unix + 8 * 3600)
    run.run()
    assert run.deadlines == [700.0, 700.0]


def test_no_attempt_begins_once_the_time_of_the_run_is_over(run: LocalRun) -> None:
    """Its nodes would be paid for, though it could only end."""
    run.plan["limits"]["run"], run.ends = 8.0, [FAILED, FAILED, DONE]
    assert run.run() == 78 and run.attempts == 2, "5 s each"
    assert run.kinds()[-2:] == ["started", "failed"]
    assert run.summary()["reason"] == "limits.run (8s) is over; raise it and resume the run"
    assert run.summary()["failures"] == 2


def test_a_signal_ends_a_run_that_nothing_starts_again_and_names_its_reason(run: LocalRun) -> None:
    run.ends = [Outcome(INTERRUPTION, "node 0: the agent received SIGTERM")]
    assert run.run("the agent received SIGTERM") == 0 and run.attempts == 1
    assert (run.summary()["state"], run.summary()["interruptions"]) == ("stopped", 1)


class Supervised(Children):
    """A transport whose agents something else starts anew by their exit codes, as JobSet does; a node may be lost."""

    def __init__(self, is_whole: bool = False) -> None:
        super().__init__("python3")
        self._is_whole = is_whole

    def open_members(self, context: AgentContext, number: int, record: Record) -> Members:
        members = super().open_members(context, number, record)
        members.is_whole = lambda: self._is_whole  # type: ignore[method-assign]
        return members


@pytest.mark.parametrize(
    ("end", "code", "kinds"),
    [
        (DONE, 0, ["started", "succeeded"]),
        (FAILED, 1, ["started", "restarted"]),
        (Outcome(INTERRUPTION, "lost run-1"), 75, ["started", "interrupted", "restarted"]),
        (STALE, 75, ["started", "interrupted", "restarted"]),
        (Outcome(NOT_RETRYABLE, "wrong key"), 78, ["started", "failed"]),
    ],
    ids=["success", "failure", "interruption", "error of the machine", "permanent error"],
)
def test_an_agent_that_has_lost_a_node_exits_after_the_attempt_with_the_code_of_its_end(
    run: LocalRun, end: Outcome | OSError, code: int, kinds: list[str]
) -> None:
    run.ends = [end]
    assert run.run(transport=Supervised()) == code
    assert (run.attempts, run.kinds()) == (1, kinds)


def test_attempts_on_a_cluster_that_come_to_nothing_follow_each_other_ever_more_slowly(run: LocalRun) -> None:
    """JobSet's restart of all pods gave shared storage the seconds to come back that attempts in the same pods lack."""
    run.plan["limits"]["failures"], run.ends = 4, [FAILED]
    assert run.run(transport=Supervised(is_whole=True)) == 78
    assert run.attempts == 5 and sum(run.clock.pauses) == pytest.approx(0 + 2 + 8 + 32, abs=0.2)
    waiting = [event["reason"] for event in run.events() if event["event"] == "waiting"]
    assert waiting == [
        f"{count} attempts in a row reached no iteration and wrote no checkpoint; the next one begins after {seconds} s"
        for count, seconds in ((2, 2), (3, 8), (4, 32))
    ]


@pytest.mark.parametrize(
    ("progress", "seconds"), [({"first_iteration": 1}, 0), ({"checkpoint": 7}, 0), ({}, 60)], ids=str
)
def test_attempts_of_a_program_that_reports_no_iterations_come_to_something_by_checkpoints_or_time(
    run: LocalRun, progress: dict[str, int], seconds: int
) -> None:
    run.plan["limits"]["failures"], run.ends, run.progress = 4, [FAILED], progress
    run.after = lambda: setattr(run.clock, "seconds", run.clock.seconds + seconds)
    assert run.run(transport=Supervised(is_whole=True)) == 78
    assert run.attempts == 5 and sum(run.clock.pauses) == 0
    assert "waiting" not in run.kinds()


def test_attempts_that_end_by_lost_nodes_do_not_wait_for_anything_else(run: LocalRun) -> None:
    run.plan.update(replaces_nodes=True)
    run.plan["limits"]["interruptions"], run.ends = 4, [Outcome(INTERRUPTION, "lost run-1")]
    assert run.run(transport=Supervised(is_whole=False)) == 78
    assert run.attempts == 5 and sum(run.clock.pauses) == 0


def test_an_agent_that_is_started_anew_after_the_end_of_its_run_begins_no_attempt(run: LocalRun) -> None:
    run.plan["submitted"], ended = run.clock(), ["started", "succeeded"]
    assert run.run(transport=Supervised()) == 0
    assert run.run(transport=Supervised()) == 78, "agents of other nodes have nobody to join"
    run.plan["run_on"] = "first"
    assert run.run(transport=Supervised()) == 0
    assert (run.attempts, run.kinds()) == (1, ended)

    events = run.folder / "events.jsonl"
    events.write_text(events.read_text().splitlines(keepends=True)[0])  # cut off after the summary
    assert run.run(transport=Supervised()) == 0
    assert (run.attempts, run.kinds()) == (1, ended)

    run.plan["submitted"] += 60.0
    assert run.run(transport=Supervised()) == 0 and run.attempts == 2, "it was resumed"


def test_a_user_who_stops_a_run_while_an_attempt_fails_gets_no_other_attempt(run: LocalRun) -> None:
    run.ends = [FAILED]
    run.after = lambda: stop_requests.submit(str(run.folder), stop_requests.STOP, "enough")
    assert run.run(transport=Supervised()) == 0
    assert run.kinds() == ["started", "stopped"]
    stop_requests.clear(str(run.folder))
    run.after = lambda: None
    assert run.run("the pod received SIGTERM", Supervised()) == 75, "it counts as interrupted, and starts anew"


@pytest.mark.parametrize("own", ["PRTE_MCA_prte_local_tmpdir_base", "OMPI_MCA_orte_tmpdir_base"])
def test_mpirun_gets_a_folder_for_each_attempt_unless_the_user_names_one(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    run.plan["environment"], run.ends = {"A": "1"}, [FAILED, DONE]
    run.run()
    folders = [launchers.session_environment(f"/tmp/scratch/{number}") for number in (1, 2)]
    assert [each.environment for each in run.launches] == [{**folder, "A": "1"} for folder in folders]
    monkeypatch.setenv(own, "/mine")
    run.run()
    assert run.launches[-1].environment == {"A": "1"}


@pytest.mark.parametrize("family", [4, 5])
def test_each_attempt_under_mpirun_shares_memory_in_a_folder_of_the_run_without_what_killed_ranks_left(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch, family: int
) -> None:
    run.plan.update(launcher="mpirun", mpi={"args": [], "path": "mpirun", "family": family})
    left, found = run.memory / "sm_segment.vm.0.1", []

    def leave() -> None:
        found.append(left.exists())
        left.touch()

    run.ends, run.after = [FAILED, DONE], leave
    run.run()
    assert found == [False, False]
    variables = launchers.memory_environment(str(run.memory), family, ())
    assert all(variables.items() <= each.environment.items() for each in run.launches)
    monkeypatch.setenv(next(iter(variables)), "/mine")
    run.run()
    assert not variables.keys() & run.launches[-1].environment.keys()


@pytest.mark.parametrize(("reason", "is_named"), [("rank 1 was killed by SIGKILL", True), ("exit code 3", False)])
def test_a_rank_that_was_killed_while_the_kernel_found_no_memory_is_named_with_the_remedy(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch, reason: str, is_named: bool
) -> None:
    """Other processes of the machine count as well, and it counts since its start: that alone is no reason."""
    kills = iter([7, 8, 8, 8])  # before each of two attempts, and after it
    monkeypatch.setattr(hardware, "oom_kills", lambda folder: next(kills) if folder == "/nowhere" else 0)
    run.plan["limits"]["failures"], run.ends = 1, [Outcome(FAILURE, reason)]
    run.run()
    first, last = (event["reason"] for event in run.events() if event["event"] in ("restarted", "failed"))
    assert ("this machine or its container was out of memory: use fewer slots" in first) is is_named
    assert "memory" not in last


def test_an_error_that_cannot_pass_ends_a_run(run: LocalRun) -> None:
    run.ends = [OSError(errno.EACCES, "Permission denied", "mpirun")]
    assert run.run() == 78 and run.attempts == 1
    assert run.summary()["reason"] == "mpirun: Permission denied"


def test_a_record_that_cannot_be_written_for_a_moment_is_written_later(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = TransientErrors(monkeypatch.setattr)
    errors.add("open", "*/attempts/1/*", errno.ESTALE, 3)
    errors.add("open", "*/.summary.json*", errno.EIO, 2)
    assert run.run() == 0 and run.attempts == 1
    assert run.summary()["state"] == "succeeded"


def local_context(folder: Path) -> AgentContext:
    """That of the agent of a run in *folder*, as far as it concerns requests to end."""
    plan: Any = {"run": folder.name, "roles": [], "grace": 1.0}
    return AgentContext(plan, COORDINATOR, 0, None, in_run_folder(str(folder), "/tmp/scratch", "/nowhere"), SetClock())


def local_stop_signal(folder: Path) -> CoordinatorStopSignal:
    """What node 0 learns of a run in *folder*."""
    notice: Any = SimpleNamespace(reason=None)
    return CoordinatorStopSignal(local_context(folder), Members(), notice)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run that has begun."""
    (tmp_path / "events.jsonl").touch()
    return tmp_path


def test_requests_are_whole_kill_overrides_stop_and_clearing_removes_them(folder: Path) -> None:
    source = local_stop_signal(folder)
    assert source.pending() is None and not source.kill_requested()

    stop_requests.submit(str(folder), stop_requests.STOP, 'a reason with "quotes" and é')
    assert source.pending() == StopRequest(Outcome(STOPPED, 'a reason with "quotes" and é'), True)
    stop_requests.submit(str(folder), stop_requests.KILL, "now")
    assert source.pending() == StopRequest(Outcome(STOPPED, "now"), False)
    assert source.kill_requested()

    stop_requests.clear(str(folder))
    stop_requests.clear(str(folder))
    assert source.pending() is None
    (folder / "control" / "stop").touch()
    assert source.pending() == StopRequest(Outcome(STOPPED, None), True), "an empty request counts"


@pytest.fixture
def handlers() -> Iterator[None]:
    """Puts this process's handlers back."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_sigterm_is_notice_that_the_machine_goes_away_and_a_terminal_ends_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources: list[CoordinatorStopSignal] = []

    def run(context: AgentContext, transport: Children, notice: PreemptionNotice) -> int:
        sources.append(CoordinatorStopSignal(context, Members(), notice))
        return 0

    monkeypatch.setattr(coordinator, "run", run)
    monkeypatch.setattr(processes, "adopt_orphans", lambda: None)
    assert run_children(local_context(folder), Children("python3")) == 0
    (source,) = sources
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.raise_signal(number)
    assert source.pending() is None

    signal.raise_signal(signal.SIGTERM)

    outcome = Outcome(INTERRUPTION, "node 0: the agent received SIGTERM")
    assert source.pending() == StopRequest(outcome, True)


def test_a_run_whose_folder_was_deleted_ends_at_once(tmp_path: Path) -> None:
    outcome = Outcome(NOT_RETRYABLE, "the run folder was deleted")
    for folder in (tmp_path, tmp_path / "deleted"):
        assert local_stop_signal(folder).pending() == StopRequest(outcome, False)


@pytest.mark.parametrize("error", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT])
def test_a_folder_that_cannot_be_read_is_not_one_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    tmp_path = tmp_path / "r-1"
    tmp_path.mkdir()
    (tmp_path / "events.jsonl").touch()
    source = local_stop_signal(tmp_path)
    TransientErrors(monkeypatch.setattr).add("stat", f"{tmp_path}/*", error, 5)
    assert [source.pending() for _ in range(3)] == [None] * 3
    assert not source.kill_requested()
    (tmp_path / "events.jsonl").unlink()
    request = source.pending()
    assert request and request.outcome.reason == "the run folder was deleted"


def test_a_file_that_became_stale_is_opened_again_and_holds_each_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_record = Record(str(tmp_path))
    errors = TransientErrors(monkeypatch.setattr)
    for number in range(4):
        errors.add("write", "*/node-0.log", errno.ESTALE, number % 2)
        run_record.line(1, COORDINATOR, Line(0, "o", f"line {number}"))
    errors.add("write", "*/node-0.log", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        run_record.line(1, COORDINATOR, Line(0, "o", "none"))
    run_record.line(1, COORDINATOR, Line(0, "o", "line 4"))
    run_record.close()
    lines = (tmp_path / "logs" / "1" / "node-0.log").read_text().splitlines()
    assert [line.split(" ", 3)[3] for line in lines] == [f"line {number}" for number in range(5)]


def test_the_logs_of_any_number_of_attempts_and_nodes_need_few_descriptors(tmp_path: Path) -> None:
    run_record = Record(str(tmp_path))
    descriptors = Path("/dev/fd")
    before = len(list(descriptors.iterdir()))
    for turn in range(2):
        for attempt in range(1, 40):
            for node in range(4):
                run_record.line(attempt, Member(NODE, node), Line(0, "o", str(turn)))
    assert len(list(descriptors.iterdir())) - before <= 32
    run_record.close()
    logs = list(tmp_path.glob("logs/*/*.log"))
    assert len(logs) == 39 * 4 and all(log.read_text().count("\n") == 2 for log in logs)


def test_a_history_that_cannot_be_read_is_not_one_of_lost_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "attempts" / "1").mkdir(parents=True)
    (tmp_path / "attempts" / "1" / "node-0.json").write_text("{}")
    TransientErrors(monkeypatch.setattr).add("open", "*/node-0.json", errno.EIO)
    run_record = Record(str(tmp_path))
    plan: Any = {}
    with pytest.raises(OSError, match="Input/output"):
        AttemptHistory(run_record, plan, 0.0)


def test_metrics_have_the_time_awake_beside_the_time_for_people(tmp_path: Path) -> None:
    clock = SetClock()
    for run_record in (Record(str(tmp_path), clock), PodRecord(str(tmp_path), clock)):
        run_record.metric(1, COORDINATOR, "metric", {"iteration": 1, "uptime": 7})
        clock.unix -= 3600
        clock.seconds += 0.02
        run_record.metric(1, COORDINATOR, "metric", {"iteration": 2}, ago=0.01)
        run_record.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["uptime"] for line in lines] == pytest.approx([100.0, 100.01, 100.02, 100.03])


@pytest.mark.parametrize("available", [True, False], ids=["both families", "a container without IPv6"])
def test_a_reserved_port_is_no_connections_and_its_launchers_to_listen_on(
    available: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: available)
    with reserve_port() as reserved, socket.socket() as connection, socket.socket() as listener:
        address = ("127.0.0.1", reserved.getsockname()[1])
        with pytest.raises(OSError, match="Address already in use"):
            connection.bind(address)  # the kernel chooses ports of connections by the same rule
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", address[1]))
        listener.listen()
        connection.connect(address)


@pytest.mark.parametrize("text", ["1", "[]", '"now"', "null", '{"reason": null}', "{", "\xff"])
def test_a_request_that_anybody_has_written_by_hand_counts_whatever_it_says(folder: Path, text: str) -> None:
    (folder / "control").mkdir()
    (folder / "control" / "stop").write_text(text, encoding="latin-1")
    reason = "None" if "null}" in text else None
    assert local_stop_signal(folder).pending() == StopRequest(Outcome(STOPPED, reason), True)
