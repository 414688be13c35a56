"""One attempt: a program that closes its output, a lost node, and a laptop that sleeps longer than a run's limits."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import spotmpi
from spotmpi.agent import processes, protocol
from spotmpi.agent.attempt import STALL, Attempt
from spotmpi.agent.clock import CLOCK, Clock
from spotmpi.agent.launch import Launch
from spotmpi.agent.outcomes import (
    FAILURE,
    INTERRUPTION,
    NOT_RETRYABLE,
    STOPPED,
    SUCCEEDED,
    Deadlines,
    Outcome,
    StopRequest,
)
from spotmpi.agent.plan import COORDINATOR, NODE, Command, Member
from spotmpi.agent.record import Record
from spotmpi.backends.targets import Target
from spotmpi.core.names import SOURCE
from spotmpi.spec.job import JobSpec, Limits
from tests.contract.processes import are_gone


@pytest.mark.parametrize(("code", "state"), [(0, "succeeded"), (3, "failed")])
def test_a_program_that_has_closed_its_output_ends_by_its_exit_code(tmp_path: Path, code: int, state: str) -> None:
    """A program that has closed its pipes still runs: it is not killed, and its exit code counts."""
    late = tmp_path / "late"
    command = ["sh", "-c", f'echo on; exec >&- 2>&-; sleep 0.3; echo x > "{late}"; exit {code}']
    spec = JobSpec(command=command, launcher="none", limits=Limits(failures=0))
    assert spotmpi.run(spec, on=Target(runs_folder=tmp_path / "runs")).state == state
    assert late.exists()


HOURS = 3600.0
LIMITS = {
    "start": 60.0,
    "run": 600.0,
    "no_progress": 300.0,
    "cost": None,
    "failures": 0,
    "interruptions": 0,
    "silence": 1.0,
}


class JumpingClock(Clock):
    """The clocks of a machine that tests put to sleep: Unix time goes on, as by the battery's clock, nothing else does.

    Linux: clock_getres(2), CLOCK_MONOTONIC and CLOCK_REALTIME. macOS: mach_absolute_time(3).
    """

    def __init__(self) -> None:
        self.slept = self.worked = 0.0

    def __call__(self) -> float:
        return 1_795_000_000.0 + self.slept + self.worked

    def uptime(self) -> float:
        return 5000.0 + self.worked

    def elapsed(self) -> float:
        return 7000.0 + self.slept + self.worked

    def select(self, selector: selectors.BaseSelector, timeout: float) -> list[tuple[selectors.SelectorKey, int]]:
        return selector.select(min(timeout, 0.0005))

    def advance(self, slept: float, worked: float) -> None:
        self.slept += slept
        self.worked += worked


class SuspendingSource:
    """A stop signal that suspends the machine once the program has printed a line, and lets the program end later.

    The agent checks its limits all the time in which the machine works, but not while it is *stopped*.
    """

    def __init__(
        self, folder: Path, clock: JumpingClock, slept: float, worked: float, stopped: float = 0.0, silent: bool = False
    ) -> None:
        self.attempt: Attempt | None = None
        self.deadlines = Deadlines()  # which `CoordinatorStopSignal` looks at as well
        self._silent, self._clock = silent, clock
        steps = 1 if worked > 400.0 else int(worked / STALL) + 1  # hours matter to deadlines alone
        self._actions: list[Callable[[], None]] = [
            lambda: clock.advance(slept, stopped),
            *[lambda: clock.advance(0.0, worked / steps)] * steps,
            lambda: None,
            (folder / "go").touch,
        ]

    def pending(self) -> StopRequest | None:
        if self.attempt and (self.attempt.progress.alive or self._silent) and self._actions:
            self._actions.pop(0)()
        return self.deadlines.exceeded(self.attempt.plan, self._clock) if self.attempt else None

    def patience(self) -> float | None:
        return None

    def kill_requested(self) -> bool:
        return False


NO_PROGRESS = "no progress for limits.no_progress (5m), last iteration none"
COST = "limits.cost ($1) is nearly spent"
ENDING = "the Capacity Block cr-00000001 ends at 2026-11-19 11:06 UTC"


@pytest.mark.parametrize(
    ("slept", "worked", "deadlines", "limits", "cause", "reason"),
    [
        (8 * HOURS, 0.0, {"run": 600.0}, {}, SUCCEEDED, "None"),
        (0.0, 301.0, {"run": None}, {}, FAILURE, NO_PROGRESS),
        (0.0, 601.0, {"run": 600.0}, {"no_progress": None}, NOT_RETRYABLE, "limits.run (10m) is over"),
        (8 * HOURS, 0.0, {"run": None, "cost": HOURS}, {"cost": 1.0}, NOT_RETRYABLE, COST),
        (0.0, HOURS, {"run": None, "ending": HOURS + 1}, {"no_progress": None}, SUCCEEDED, "None"),
        (0.0, HOURS, {"run": None, "ending": HOURS - 1}, {"no_progress": None}, NOT_RETRYABLE, ENDING),
    ],
    ids=["asleep", "awake without progress", "awake too long", "asleep at a price", "in time", "its block ends"],
)
def test_time_asleep_costs_money_and_is_neither_lack_of_progress_nor_time_of_the_run(
    tmp_path: Path,
    slept: float,
    worked: float,
    deadlines: dict[str, float | None],
    limits: dict[str, float | None],
    cause: str,
    reason: str,
) -> None:
    clock = JumpingClock()
    waits = ["sh", "-c", "echo up; until [ -e go ]; do sleep 0.01; done"]
    plan: Any = {
        "folder": str(tmp_path),
        "launcher": "none",
        "metrics_pattern": None,
        "slots": 1,
        "limits": {**LIMITS, **limits},
        "grace": 1.0,
        "environment": {},
        "ending": {"at": 0.0, "reason": ENDING},
    }
    source = SuspendingSource(tmp_path, clock, slept, worked)
    counts = {"run": clock.uptime(), "cost": clock.elapsed(), "ending": clock()}
    until = {name: counts[name] + seconds for name, seconds in deadlines.items() if seconds is not None}
    record = Record(str(tmp_path), clock)
    command: Command = {"member": COORDINATOR, "name": "launcher", "arguments": waits, "environment": {}}
    source.deadlines = Deadlines(**until, rate=1.0)
    launch = Launch([command], {}, str(tmp_path / "rank-0.pid"), start_deadline=clock.uptime() + 60.0)
    source.attempt = Attempt(1, plan, launch, record, source, clock)

    outcome = source.attempt.run()

    record.close()
    assert outcome.cause == cause and str(outcome.reason).startswith(reason)


def test_the_first_iteration_ended_before_the_others_that_its_line_reports(tmp_path: Path) -> None:
    """The start of an attempt lasted a whole window of iterations longer, and so did what interruptions cost."""
    clock, report = JumpingClock(), protocol.encode(protocol.METRIC, iteration=100, seconds=[0.5] * 100)
    plan: Any = {"folder": str(tmp_path), "launcher": "none", "metrics_pattern": None, "limits": LIMITS}
    plan["environment"] = {}
    command: Command = {"member": COORDINATOR, "name": "launcher", "arguments": ["echo", report], "environment": {}}
    record = Record(str(tmp_path), clock)
    launch = Launch([command], {}, str(tmp_path / "rank-0.pid"))
    attempt = Attempt(1, plan, launch, record, SuspendingSource(tmp_path, clock, 0, 0), clock)
    assert attempt.run().cause == SUCCEEDED
    record.close()
    assert attempt.progress.first_iteration == 1
    assert attempt.progress.first_iteration_elapsed == clock.elapsed() - 49.5


SILENCE = "no output within limits.start (1m); raise it"


@pytest.mark.parametrize(
    ("stopped", "worked", "output", "reason"),
    [
        (1000.0, 290.0, "up", None),
        (1000.0, 310.0, "up", NO_PROGRESS),
        (1000.0, 55.0, "", None),
        (1000.0, 70.0, "", SILENCE),
    ],
    ids=["a program that goes on", "one that hangs", "one that is about to begin", "one that says nothing"],
)
def test_no_program_fails_for_the_time_in_which_its_agent_was_stopped(
    tmp_path: Path, stopped: float, worked: float, output: str, reason: str | None
) -> None:
    """By SIGSTOP, `docker pause` or a disk that hangs: what the program prints meanwhile nobody reads."""
    script = f"printf '{output}'; until [ -e go ]; do sleep 0.01; done"
    assert run_to_the_end(tmp_path, ["sh", "-c", script], "none", worked, stopped, not output)[0].reason == reason


USED = protocol.encode(
    protocol.STREAM,
    source="x",
    rank=0,
    ranks=1,
    workers=1,
    batches=0,
    bytes=0,
    seconds=0,
    waited=0,
    preparing=0,
    in_flight=0,
    skipped=0,
)
UNUSED = "the program took no batch of its stream: iterate in it over spotmpi.stream(), or remove the table [stream]"


@pytest.mark.parametrize(
    ("number", "output", "reason"),
    [
        (1, "done", UNUSED),
        (1, USED, None),
        (2, "done", None),
        (1, protocol.encode(protocol.RESUMED, iteration=3), None),
    ],
    ids=["no batch", "a batch", "a later attempt", "resumed at the end"],
)
def test_a_program_that_takes_no_batch_of_its_stream_fails(
    tmp_path: Path, number: int, output: str, reason: str | None
) -> None:
    """Where an attempt resumes, there may be no batch left."""
    plan: Any = {
        "folder": str(tmp_path),
        "launcher": "none",
        "metrics_pattern": None,
        "slots": 1,
        "limits": LIMITS,
        "grace": 1.0,
        "environment": {protocol.ENV_STREAM: "{}"},
    }
    command: Command = {"member": COORDINATOR, "name": "launcher", "arguments": ["echo", output], "environment": {}}
    source = SuspendingSource(tmp_path, JumpingClock(), 0.0, 0.0)
    record = Record(str(tmp_path), CLOCK)
    launch = Launch([command], {}, str(tmp_path / "rank-0.pid"))

    outcome = Attempt(number, plan, launch, record, source).run()

    record.close()
    assert (outcome.cause, outcome.reason) == ((NOT_RETRYABLE, reason) if reason else (SUCCEEDED, None))


# Notes that it writes a checkpoint until the test lets it end, and takes no request to end.
WRITER = """
import os, signal, sys, time
from spotmpi.agent.files import locked
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").close()
with locked(sys.argv[1]) if sys.argv[2] == "writes" else open(os.devnull):
    print("up", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.005)
    open("whole", "w").close()
time.sleep(60)
"""


class LosingSource:
    """A stop signal that loses a node once the program has printed a line; the program may then end its write."""

    def __init__(self, folder: Path) -> None:
        self.attempt: Attempt | None = None
        self._folder = folder
        self._polls = 0

    def pending(self) -> StopRequest | None:
        if self.attempt and self.attempt.progress.alive:
            return StopRequest(Outcome(INTERRUPTION, "lost run-1"), False)
        return None

    def patience(self) -> float | None:
        return None

    def kill_requested(self) -> bool:
        assert self.attempt
        if self.attempt._term_sent is not None:
            self._polls += 1
            if self._polls == 2:
                (self._folder / "go").touch()
        return False


@pytest.mark.parametrize("does", ["writes", "trains"])
def test_what_is_left_when_a_node_is_lost_is_killed_at_once_but_for_a_checkpoint_that_is_being_written(
    tmp_path: Path, does: str
) -> None:
    pid_file = str(tmp_path / "rank-0.pid")
    arguments = [sys.executable, "-c", WRITER, pid_file, does]
    environment = {"PYTHONPATH": str(SOURCE)}
    command: Command = {"member": COORDINATOR, "name": "launcher", "arguments": arguments, "environment": environment}
    plan: Any = {"folder": str(tmp_path), "launcher": "none", "metrics_pattern": None, "limits": LIMITS, "grace": 60.0}
    record, source = Record(str(tmp_path)), LosingSource(tmp_path)
    source.attempt = Attempt(1, plan, Launch([command], {}, pid_file), record, source)

    outcome = source.attempt.run()

    record.close()
    assert outcome.reason == "lost run-1"
    assert (tmp_path / "whole").exists() is (does == "writes")


# Writes a checkpoint at SIGUSR1, and takes its time to end.
LISTENER = """
import os, signal, sys, time
def store(*_):
    os.write(1, b'{"spotmpi":"checkpoint","iteration":3,"reason":"notice"}\\n')  # `print` may be interrupted in `print`
signal.signal(signal.SIGUSR1, store)
signal.signal(signal.SIGTERM, lambda *_: (open("asked", "w").close(), time.sleep(0.1), os._exit(143)))
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
print("up", flush=True)
time.sleep(60)
"""


class EndingSource:
    """A stop signal that requests an end after a checkpoint once the program has printed a line."""

    def __init__(self, cause: str) -> None:
        self.attempt: Attempt | None = None
        self._cause = cause

    def pending(self) -> StopRequest | None:
        is_up = self.attempt is not None and self.attempt.progress.alive
        return StopRequest(Outcome(self._cause, "why"), True) if is_up else None

    def patience(self) -> float | None:
        return None

    def kill_requested(self) -> bool:
        return False


@pytest.mark.parametrize("cause", [INTERRUPTION, STOPPED])
def test_after_its_checkpoint_a_program_is_asked_to_end_with_the_run_and_killed_before_another_attempt(
    tmp_path: Path, cause: str
) -> None:
    pid_file = str(tmp_path / "rank-0.pid")
    arguments = [sys.executable, "-c", LISTENER, pid_file]
    command: Command = {"member": COORDINATOR, "name": "launcher", "arguments": arguments, "environment": {}}
    plan: Any = {"folder": str(tmp_path), "launcher": "none", "metrics_pattern": None, "limits": LIMITS, "grace": 60.0}
    record, source = Record(str(tmp_path)), EndingSource(cause)
    source.attempt = Attempt(1, plan, Launch([command], {}, pid_file), record, source)

    outcome = source.attempt.run()

    record.close()
    assert (outcome.cause, outcome.reason, source.attempt.progress.checkpoint) == (cause, "why", 3)
    assert (tmp_path / "asked").exists() is (cause == STOPPED)


END = '{"spotmpi":"rank_end","rank":1,"code":%d}'
WAITS = """
import sys, time
for text in sys.argv[1:]:
    print(text, flush=True)
    print(text, file=sys.stderr, flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize(
    ("code", "cause", "reason", "exit_code"),
    [
        (-9, FAILURE, "rank 1 was killed by SIGKILL", 1),
        (3, FAILURE, "rank 1 ended with exit code 3: ValueError: no", 1),
        (75, INTERRUPTION, "rank 1 ended with exit code 75: ValueError: no", 75),
        (78, NOT_RETRYABLE, "rank 1 ended with exit code 78: ValueError: no", 78),
    ],
)
def test_a_rank_that_is_reported_as_failed_ends_the_attempt_before_its_launcher_does(
    tmp_path: Path, code: int, cause: str, reason: str, exit_code: int
) -> None:
    output = [
        "[1,1]<stderr>: ValueError: no",
        *(f"[1,1]<{stream}>: half" + END % code for stream in ("stderr", "stdout")),
    ]
    outcome, texts = run_to_the_end(tmp_path, [sys.executable, "-c", WAITS, *output])
    assert (outcome.cause, outcome.reason, outcome.exit_code) == (cause, reason, exit_code)
    assert outcome.node == (1 if cause == FAILURE and code > 0 else None), "that of rank 1, unless it was killed"
    assert texts == ["ValueError: no"] * 2 + ["half"] * len(texts[2:]) and len(texts) > 3, (
        "what it has printed, and not the report"
    )


def test_a_report_on_one_stream_alone_leaves_the_end_to_the_launcher(tmp_path: Path) -> None:
    """More of the other stream may be under way."""
    script = f"echo '[1,1]<stdout>: {END % -9}'; sleep 0.1; exit 3"
    outcome, _ = run_to_the_end(tmp_path, ["sh", "-c", script])
    assert outcome.reason == "the launcher on node 0 ended with exit code 3"


def test_a_report_of_a_rank_that_has_not_failed_is_output(tmp_path: Path) -> None:
    """No rank wrapper writes one, a program may."""
    script = f"echo '[1,1]<stdout>: {END % 0}'; echo '[1,1]<stderr>: {END % 0}' >&2; sleep 0.2; exit 3"
    outcome, texts = run_to_the_end(tmp_path, ["sh", "-c", script])
    assert outcome.reason and outcome.reason.startswith("the launcher on node 0 ended with exit code 3")
    assert texts == [END % 0] * 2


TRACEBACK = ["Traceback (most recent call last):", '  File "t.py", line 4, in <module>', "ValueError: boom"]
NAMED = (
    "rank 1 has printed ValueError: boom, and there was no progress for 15 s. If it was not caught, MPI_Finalize waits "
    "for the other ranks: with `python -m mpi4py` instead of `python` all end at once; the attempt ends after "
    "limits.no_progress (5m)"
)
OTHER_NAMED = NAMED.replace("ValueError: boom", "Bad: x")


@pytest.mark.parametrize(
    ("output", "launcher", "worked", "named", "reason"),
    [
        (TRACEBACK, "mpirun", 16.0, [NAMED], None),
        (TRACEBACK, "mpirun", 14.0, [], None),
        ([*TRACEBACK, "", "more of its message"], "mpirun", 16.0, [NAMED], None),
        ([*TRACEBACK, "During handling of it:", *TRACEBACK[:2], "Bad: x"], "mpirun", 16.0, [OTHER_NAMED], None),
        ([f"[rank1]: {line}" for line in TRACEBACK], "mpirun", 16.0, [NAMED], None),
        ([*TRACEBACK, *["going on"] * 20], "mpirun", 16.0, [], None),
        (TRACEBACK[2:], "mpirun", 16.0, [], None),
        (TRACEBACK, "torchrun", 16.0, [], None),
        (TRACEBACK, "mpirun", 301.0, [NAMED], f"{NO_PROGRESS}; rank 1 has printed ValueError: boom"),
    ],
    ids=["raised", "just now", "long", "chained", "by torch", "caught", "no traceback", "not MPI", "to the limit"],
)
def test_a_run_says_that_mpi_waits_for_the_other_ranks_after_an_exception_of_one(
    tmp_path: Path, output: list[str], launcher: str, worked: float, named: list[str], reason: str | None
) -> None:
    """A rank of mpi4py that raises waits in MPI_Finalize, for ever where the others wait for it."""
    lines = "".join(f"[1,1]<stderr>: {line}\\n" for line in output)  # in one piece: all before the clock goes on
    script = f"printf '{lines}' >&2; until [ -e go ]; do sleep 0.01; done"
    outcome, texts = run_to_the_end(tmp_path, ["sh", "-c", script], launcher, worked)
    assert texts == sorted([*output, *named]) and outcome.reason == reason


LONE = (
    "rank 1 has ended while others run, and there was no progress for 30 s. If these wait for it, as in a collective, "
    "they wait for ever; the attempt ends after limits.no_progress (5m)"
)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no /proc")
@pytest.mark.parametrize(
    ("ranks", "launcher", "worked", "named", "reason"),
    [
        ([0], "mpirun", 60.0, [LONE], None),
        ([0], "mpirun", 29.0, [], None),
        ([0, 1], "mpirun", 60.0, [], None),
        ([0], "torchrun", 60.0, [LONE], None),
        ([0], "mpirun", 301.0, [LONE], f"{NO_PROGRESS}; rank 1 has ended while others run"),
    ],
    ids=["ended", "just now", "both run", "torchrun", "to the limit"],
)
def test_a_run_says_that_a_rank_has_ended_while_the_others_do_nothing(
    tmp_path: Path, ranks: list[int], launcher: str, worked: float, named: list[str], reason: str | None
) -> None:
    """Such as after `sys.exit(0)` in one, before a collective of all."""
    variable = "OMPI_COMM_WORLD_RANK" if launcher == "mpirun" else "RANK"
    starts = [f"{variable}={rank} sh -c 'touch up-{rank}; until [ -e go ]; do sleep 0.01; done' &" for rank in ranks]
    are_up = " && ".join(f"[ -e up-{rank} ]" for rank in ranks)
    script = f"{' '.join(starts)} until {are_up}; do sleep 0.01; done; echo on; wait"
    outcome, texts = run_to_the_end(tmp_path, ["sh", "-c", script], launcher, worked, nodes=2)
    assert texts == sorted(["on", *named]) and outcome.reason == reason


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no /proc")
def test_a_rank_that_another_node_reports_has_not_ended(tmp_path: Path) -> None:
    rank = "OMPI_COMM_WORLD_RANK=0 sh -c 'echo on; until [ -e go ]; do sleep 0.01; done' & wait"
    for reported, named in (({1: ""}, []), ({}, [LONE])):
        folder = tmp_path / str(len(reported))
        folder.mkdir()
        elsewhere = {Member(NODE, 1): reported}
        _, texts = run_to_the_end(folder, ["sh", "-c", rank], worked=60.0, nodes=2, elsewhere=elsewhere)
        assert texts == sorted(["on", *named])


def run_to_the_end(
    folder: Path,
    arguments: list[str],
    launcher: str = "mpirun",
    worked: float = 0.0,
    stopped: float = 0.0,
    silent: bool = False,
    nodes: int = 1,
    elsewhere: Mapping[Member, Mapping[int, str]] = {},
) -> tuple[Outcome, list[str]]:
    """The outcome of an attempt whose launcher has these arguments, and the lines that were recorded.

    *elsewhere* are the states of ranks on other nodes.

    Once it has printed a line, or at once if it is *silent*, its agent is *stopped* and then goes on for the seconds
    *worked*.
    """
    command: Command = {"member": COORDINATOR, "name": "launcher", "arguments": arguments, "environment": {}}
    plan: Any = {"folder": str(folder), "launcher": launcher, "metrics_pattern": None, "limits": LIMITS, "grace": 1.0}
    clock = JumpingClock()
    record, source = Record(str(folder), clock), SuspendingSource(folder, clock, 0.0, worked, stopped, silent)
    plan |= {"environment": {}, "slots": 1, "backend": "local", "hosts": ["127.0.0.1"] * nodes, "run_on": "all"}
    launch = Launch([command], {}, str(folder / "rank-0.pid"), start_deadline=clock.uptime() + 60.0, ranks=elsewhere)
    source.attempt = Attempt(1, plan, launch, record, source, clock)
    outcome = source.attempt.run()
    record.close()
    log = folder / "logs" / "1" / "node-0.log"
    return outcome, sorted(text.split(" ", 3)[3] for text in log.read_text().splitlines()) if log.exists() else []


def test_the_last_words_of_a_program_that_leaves_a_process_behind_are_recorded(
    tmp_path: Path, adopts_orphans: None
) -> None:
    """Which holds its output open: the end of the last line never comes. It is killed, and named."""
    arguments = ["sh", "-c", "sleep 30 & printf 'last words'"]
    command: Command = {"member": COORDINATOR, "name": "launcher", "arguments": arguments, "environment": {}}
    plan: Any = {"folder": "/", "launcher": "none", "metrics_pattern": None, "limits": LIMITS, "grace": 1.0}
    record = Record(str(tmp_path))
    plan |= {"environment": {}, "slots": 1}
    source: Any = SimpleNamespace(pending=lambda: None, kill_requested=lambda: False)
    assert Attempt(1, plan, Launch([command], {}, str(tmp_path / "none")), record, source).run().cause == SUCCEEDED
    record.close()
    lines = (tmp_path / "logs" / "1" / "node-0.log").read_text().splitlines()
    named = processes.LEFT_BEHIND % "sleep 30 (process N)"
    assert sorted(re.sub(r"\d+\)", "N)", line.split(" ", 3)[3]) for line in lines) == ["last words", named]


@pytest.fixture
def adopts_orphans() -> Iterator[None]:
    """Lets this process be the parent of orphans, as an agent is."""
    if not sys.platform.startswith("linux"):
        pytest.skip("other systems have no subreapers")
    processes.adopt_orphans()
    yield
    ctypes.CDLL(None).prctl(processes._PR_SET_CHILD_SUBREAPER, 0)


def test_only_a_process_of_the_run_is_asked_for_a_checkpoint(tmp_path: Path) -> None:
    """The id of a rank that has ended may be another process's, which a signal that it does not expect would end."""
    pid_file = tmp_path / "rank-0.pid"
    orphan = ["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"]
    other = int(subprocess.run(orphan, stdout=subprocess.PIPE, text=True, check=True).stdout)
    code = f"open({str(pid_file)!r}, 'w').write('{other}'); print('up', flush=True); import time; time.sleep(60)"
    arguments = [sys.executable, "-c", code]
    command: Command = {"member": COORDINATOR, "name": "launcher", "arguments": arguments, "environment": {}}
    plan: Any = {"folder": "/", "launcher": "none", "metrics_pattern": None, "limits": LIMITS, "grace": 1.0}
    record, source = Record(str(tmp_path)), EndingSource(INTERRUPTION)
    source.attempt = Attempt(1, plan, Launch([command], {}, str(pid_file)), record, source)
    try:
        assert source.attempt.run().cause == INTERRUPTION
        assert not are_gone([other])
    finally:
        record.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(other, signal.SIGKILL)


def test_orphans_are_reaped_while_an_attempt_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LOOK_INTERVAL", 0.05)
    reaped: list[bool] = []
    monkeypatch.setattr(processes, "reap_orphans", lambda: reaped.append(True))
    monkeypatch.setattr(processes, "kill_descendants", lambda: None)
    arguments = ["sh", "-c", "echo on; sleep 0.5"]
    command: Command = {"member": COORDINATOR, "name": "launcher", "arguments": arguments, "environment": {}}
    plan: Any = {"folder": "/", "launcher": "none", "metrics_pattern": None, "limits": LIMITS, "grace": 1.0}
    plan |= {"environment": {}, "slots": 1}
    record = Record(str(tmp_path))
    source: Any = SimpleNamespace(pending=lambda: None, kill_requested=lambda: False)
    assert Attempt(1, plan, Launch([command], {}, str(tmp_path / "none")), record, source).run().cause == SUCCEEDED
    record.close()
    assert len(reaped) > 1
