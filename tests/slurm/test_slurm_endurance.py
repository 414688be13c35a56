"""One run on a real Slurm cluster and many faults, one after the other, at random moments of its training."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import record
from spotmpi.backends.slurm.backend import SlurmBackend
from spotmpi.core.events import Event
from tests.contract import processes
from tests.contract.conftest import BackendHarness
from tests.contract.event_values import iterations, kinds
from tests.contract.fake_program import fake_job
from tests.contract.processes import wait_until
from tests.testbed.slurm import URGENT, Slurm

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]

SEED = 33
SPACING = (10, 20)  # iterations from one fault to the next: the attempt after the last one is under way
TOTAL = 700  # more than all of them take


@dataclass
class Victim:
    """A run, and what to harm of it."""

    slurm: Slurm
    run: str
    job: int

    def signal(self, number: int, *options: str, step: str = "") -> None:
        """Signal the job as a user does."""
        self.slurm.command("scancel", f"--signal={signal.Signals(number).name[3:]}", *options, f"{self.job}{step}")

    def control(self, verb: str) -> None:
        """Let scontrol do something with the job."""
        self.slurm.command("scontrol", verb, self.job)

    def kill(self, number: int, text: str, start: str = "") -> None:
        """Signal the processes of the run whose command line has this text, and starts so."""
        found = processes.of_run(self.run) | processes.with_text(self.run)
        for pid, command in found.items():
            if command.startswith(start) and text in command:
                os.kill(pid, number)

    def kill_agent(self, number: int, node: int) -> None:
        """Signal the agent of a node."""
        for pid, command in processes.with_text("spotmpi.agent.slurm /").items():
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if self.run in command and not command.startswith("srun") and b"SLURM_PROCID=%d" % node in variables:
                os.kill(pid, number)


def _suspend(victim: Victim) -> None:
    victim.control("suspend")
    time.sleep(1.0)
    victim.control("resume")


def _freeze(victim: Victim, node: int) -> None:
    victim.kill_agent(signal.SIGSTOP, node)
    time.sleep(4.0)
    victim.kill_agent(signal.SIGCONT, node)


def _restart_controller(victim: Victim) -> None:
    with victim.slurm.without_controller():
        time.sleep(1.0)


def _preempt(victim: Victim) -> None:
    options = ("--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    victim.slurm.command("sbatch", f"--partition={URGENT}", *options)


SRUN, RESTART = "SIGKILL of the srun of the agents", "restart of slurmctld"
FAULTS: dict[str, Callable[[Victim], None]] = {
    "requeue": lambda victim: victim.control("requeue"),
    "preemption": _preempt,
    "suspension": _suspend,
    RESTART: _restart_controller,
    "4 s without agent 0": lambda victim: _freeze(victim, 0),
    "4 s without agent 1": lambda victim: _freeze(victim, 1),
    "SIGTERM to all steps": lambda victim: victim.signal(signal.SIGTERM),
    "SIGUSR1 to all steps": lambda victim: victim.signal(signal.SIGUSR1),
    "SIGUSR1 to the batch script": lambda victim: victim.signal(signal.SIGUSR1, "--batch"),
    "SIGTERM to agent 0": lambda victim: victim.kill_agent(signal.SIGTERM, 0),
    "SIGKILL of agent 0": lambda victim: victim.kill_agent(signal.SIGKILL, 0),
    "SIGKILL of agent 1": lambda victim: victim.kill_agent(signal.SIGKILL, 1),
    SRUN: lambda victim: victim.kill(signal.SIGKILL, "spotmpi.agent.slurm /", "srun "),
    "SIGKILL of the ranks": lambda victim: victim.kill(signal.SIGKILL, "def say(kind"),
}


# After these the same attempt goes on.
GOES_ON = ("suspension", RESTART, "4 s without agent 0", "4 s without agent 1")
IMAGES = {"none": None, "mpirun": "chainermn", "torchrun": "pytorch"}


@pytest.mark.nightly("14 faults take two minutes; the mends that they led to have tests of their own by day")
@pytest.mark.parametrize("launcher", IMAGES)
def test_a_run_ends_as_without_faults_and_each_is_counted(
    harness: BackendHarness, slurm: Slurm, launcher: str, request: pytest.FixtureRequest
) -> None:
    seed = request.config.getoption("--seed", None) or SEED
    backend, chosen = harness.backend, random.Random(f"{launcher} {seed}")
    assert isinstance(backend, SlurmBackend)
    order = chosen.sample(sorted(FAULTS), len(FAULTS))
    # After a restart of slurmctld, Slurm 22.05 starts no second step beside agents: their attempt goes on to its end.
    first, second = sorted(map(order.index, (SRUN, RESTART)))
    order[first], order[second] = SRUN, RESTART
    limits = {"failures": 20, "interruptions": 20}
    more: dict[str, Any] = {"launcher": launcher, "image": IMAGES[launcher], "slots": 1, "limits": limits}
    values = fake_job(iterations=TOTAL, pause=0.05, every=5, nodes=2, **more)
    run = harness.submit({key: value for key, value in values.items() if value is not None})
    without_agent = set()  # attempts whose ranks went on for a moment after the agent that writes down what they print
    for name in order:
        reached = backend.state(run).iteration or 0
        harness.wait_for_iteration(run, reached + chosen.randint(*SPACING))
        job, before = backend.job(run), backend.state(run)
        assert job is not None and job.state == "RUNNING"
        print(f"{name} at iteration {before.iteration} of attempt {before.attempt}")
        if name == "SIGKILL of agent 0":
            without_agent.add(before.attempt)
        FAULTS[name](Victim(slurm, run, job.id))
        if name not in GOES_ON:
            _wait_for_attempt(harness, run, before.attempt + 1)
    events = harness.events(run)

    assert kinds(events)[-1] == "succeeded", events[-1]
    lost = _expect_one_writer(events, without_agent)
    assert sorted({*iterations(events), *lost}) == list(range(1, TOTAL + 1))
    ended = len(FAULTS) - len(GOES_ON)
    starts, state = kinds(events).count(record.STARTED), harness.backend.state(run)
    assert (state.failures, state.interruptions, starts) == (1, ended - 1, ended + 1)
    wait_until(lambda: not processes.of_run(run) and not processes.with_text(run))


def _wait_for_attempt(harness: BackendHarness, run: str, number: int) -> None:
    wait_until(lambda: harness.backend.state(run).attempt >= number)


def _expect_one_writer(events: list[Event], without_agent: set[int]) -> list[int]:
    """Attempts follow each other, each from a checkpoint of the ones before, and the record has one end.

    Returns the iterations that nobody wrote down, as no agent lived: mpirun gets SIGTERM then, and takes a moment.
    """
    metrics = [event for event in events if event.kind == record.METRIC and event.values.get("kind") == "metric"]
    steps = [(event.attempt, int(event.values["iteration"])) for event in metrics]
    assert [attempt for attempt, _ in steps] == sorted(attempt for attempt, _ in steps)
    lost = [(attempt, range(last + 1, first)) for (attempt, last), (_, first) in pairwise(steps) if first > last + 1]
    assert all(attempt in without_agent and len(some) < SPACING[1] for attempt, some in lost), lost
    assert sum(event.terminal for event in events) == 1
    return [iteration for _, some in lost for iteration in some]
