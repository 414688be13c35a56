"""When processes are started again that are restarted each by itself."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent.clock import Clock
from spotmpi.agent.context import AgentContext, in_run_folder
from spotmpi.agent.launch import Location
from spotmpi.agent.plan import COORDINATOR, WORKER, Command, Member
from spotmpi.agent.protocol import ENV_POOL
from spotmpi.agent.replicas import MAX_PAUSE, SCHEDULER_GRACE, STEADY, Replicas
from tests.clocks import SetClock


class FakeProcess:
    """A process of which it is noted that it was ended."""

    pid = 7

    def __init__(self) -> None:
        self.is_terminated = False

    def terminate(self) -> None:
        self.is_terminated = True


class Supervised:
    """The workers of a pool on this machine with their clock, and what was started and said.

    Their control group is the folder of the test.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, SetClock(0.0)
        control = folder / "pool"
        for each in (folder / "code", control):
            each.mkdir(exist_ok=True)
        self.replicas = Replicas(context(folder, self.clock), Location("python3", control=str(control)))
        self.address, self.size = control / "address.json", control / "workers"
        self.address.touch()
        self.size.write_text("2")
        self.starts: list[tuple[float, int]] = []
        self.said: list[tuple[int, str]] = []

    def supervise(self, seconds: float = 0.0) -> None:
        """Look after the processes every 50 ms for so many seconds."""
        end = self.clock.seconds + seconds
        while True:
            self.replicas.supervise(self._start, lambda member, end: self.said.append((member.number, end)))
            if self.clock.seconds >= end:
                return
            self.clock.seconds = round(self.clock.seconds + 0.05, 2)

    def _start(self, command: Command) -> Any:
        self.starts.append((round(self.clock.seconds, 2), command["member"].number))
        return FakeProcess()


def context(folder: Path, clock: Clock, member: Member = COORDINATOR) -> AgentContext:
    role = {"name": WORKER, "restart": "each", "count": 1, "environment": {}}
    environment = {ENV_POOL: "tls://10.0.0.1:8786"}
    plan: Any = {"run": "", "roles": [role], "pool_python": None, "folder": "/", "environment": environment}
    return AgentContext(plan, member, 0, None, in_run_folder(f"{folder}/", "/nowhere", str(folder)), clock)


@pytest.fixture
def supervised(tmp_path: Path) -> Supervised:
    return Supervised(tmp_path)


def test_processes_start_once_their_role_is_ready_and_surplus_ones_are_ended(supervised: Supervised) -> None:
    supervised.address.unlink()
    supervised.supervise()
    assert supervised.starts == []
    supervised.address.touch()
    supervised.supervise()
    supervised.supervise()
    assert supervised.starts == [(0.0, 0), (0.0, 1)] and supervised.said == []
    surplus: Any = supervised.replicas.processes[Member(WORKER, 1)]
    supervised.size.write_text("1")
    supervised.supervise()
    assert surplus.is_terminated
    supervised.replicas.ended(Member(WORKER, 1), "was killed by SIGTERM", False)
    supervised.supervise(10)
    assert len(supervised.starts) == 2


def test_a_worker_that_is_wanted_again_after_it_was_removed_is_not_said_to_have_ended(supervised: Supervised) -> None:
    supervised.supervise()
    supervised.replicas.ended(Member(WORKER, 1), "was killed by SIGKILL", False)
    supervised.supervise(1)
    said = [(1, "was killed by SIGKILL")]
    assert supervised.said == said
    supervised.size.write_text("1")
    supervised.supervise()
    supervised.size.write_text("2")
    supervised.supervise()  # while it still ends
    supervised.replicas.ended(Member(WORKER, 1), "ended with exit code 0", False)
    supervised.supervise()
    assert len(supervised.starts) == 4 and supervised.said == said


def test_one_that_ends_early_waits_longer_each_time_and_one_that_was_steady_not_at_all(supervised: Supervised) -> None:
    supervised.supervise()
    pauses = []
    for number in range(9):
        ended = supervised.clock.seconds
        supervised.replicas.ended(Member(WORKER, 0), f"ended with exit code {number}", False)
        while len(supervised.starts) < 3 + number:
            supervised.supervise(0.05)
        pauses.append(round(supervised.starts[-1][0] - ended, 1))
    expected = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, MAX_PAUSE, MAX_PAUSE, MAX_PAUSE]
    assert pauses == pytest.approx(expected, abs=0.11), "to the next look"
    assert supervised.said == [(0, f"ended with exit code {number}") for number in range(9)]
    supervised.clock.seconds += STEADY
    supervised.replicas.ended(Member(WORKER, 0), "was killed by SIGKILL", False)
    supervised.supervise()
    assert supervised.starts[-1] == (round(supervised.clock.seconds, 2), 0)
    assert {number for _, number in supervised.starts[2:]} == {0}, "worker 1 goes on"


@pytest.mark.parametrize(("in_pod", "pause"), [(True, SCHEDULER_GRACE), (False, 0.1)])
def test_one_whose_scheduler_is_gone_waits_in_a_pod_for_what_node_0_does(
    supervised: Supervised, tmp_path: Path, in_pod: bool, pause: float
) -> None:
    member = Member(WORKER, 0)
    if in_pod:
        own = context(tmp_path, supervised.clock, member)
        supervised.replicas = Replicas(own, Location("python3", worker_host="10.0.0.2"))
    supervised.supervise()
    ended = supervised.clock.seconds
    supervised.replicas.ended(member, "ended with exit code 75", True)
    supervised.supervise(3)
    assert supervised.starts[-1] == (ended + pause, 0)


def test_sigkill_is_lack_of_memory_only_where_the_cgroup_says_so(tmp_path: Path) -> None:
    counts = tmp_path / "memory.events"
    counts.write_text("oom_kill 3\n")
    replicas = Supervised(tmp_path).replicas
    assert replicas.memory_reason(-signal.SIGKILL) == "", "others were killed before"
    counts.write_text("oom_kill 4\n")
    assert replicas.memory_reason(1) == ""
    counts.write_text("oom_kill 5\n")
    assert replicas.memory_reason(-signal.SIGKILL) == " for lack of memory"


def test_what_an_earlier_attempt_left_in_the_control_folder_is_removed_be_it_by_another_meanwhile(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: True)
    for _ in range(2):
        Replicas(context(supervised.folder, supervised.clock), Location("python3", control=str(supervised.size.parent)))
        assert not list(supervised.size.parent.iterdir())
