"""Faults of a run on the test cluster, and the schedule of those of the endurance test.

Each kind says as what a fault of it counts: as an interruption (a pod is lost), as a failure (its processes are), or as
nothing at all.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from spotmpi.agent.outcomes import FAILURE, INTERRUPTION
from spotmpi.agent.plan import NODE, STANDBY, WORKER, Member
from spotmpi.backends.kill_ranks import NotRunning
from tests.cluster import endurance_program
from tests.cluster.runs import FollowedRun
from tests.testbed import faults
from tests.testbed.errors import TestbedError
from tests.testbed.faults import TAKEN, Fault, ShiftedClocks
from tests.testbed.kubernetes import Object
from tests.testbed.waiting import wait_for

NODES = endurance_program.PARTS
FAULTS_BY_DAY, FAULTS_AT_NIGHT = 9, 500  # at night as many in each part
SEED = 14105  # of which those of the day are of each sort
STAYS = 3  # the node of it that is never lost: what grows in an agent is seen in one that lives
STANDS_BY = Member(STANDBY, 0)  # at the beginning, in the part where one pod does
_GAPS = (5, 20)  # iterations of undisturbed training before a fault
_LONG_GAPS = (5, 120)  # after some of which the next pod stands by
_LATE_KUBELET = 120.0  # seconds until what was deleted is killed: after an outage of the API server it looks late
_JUMP = 900  # seconds by which a clock is wrong at most


class Kind(NamedTuple):
    """What a kind of fault counts as, the nodes that it may hit, and for how long it lasts: at least and at most.

    Two losses at once cost as many attempts at *most*: the second may come when the next one has begun.
    """

    counts: str | None
    nodes: tuple[int, ...]
    seconds: tuple[float, float] = (0.0, 0.0)
    most: int = 1


_SHORT, _LONG = (1.5, 3.5), (3.0, 5.0)  # beyond `limits.silence`, after which a silent host is lost
_ANY, _LOST = tuple(range(NODES)), tuple(range(NODES - 1))
KINDS = {
    "rank": Kind(FAILURE, _ANY),
    "launcher": Kind(FAILURE, (0,)),
    "sshd": Kind(None, _ANY),
    "agent": Kind(INTERRUPTION, _LOST),
    "delete": Kind(INTERRUPTION, (1, 2)),
    "force": Kind(INTERRUPTION, (1, 2)),
    "evict": Kind(INTERRUPTION, (1, 2)),
    "delete node 0": Kind(INTERRUPTION, (0,)),
    "stop rank": Kind(None, _ANY, _SHORT),
    "stop agent": Kind(None, _ANY, _SHORT),
    "partition": Kind(None, (1, 2), _SHORT),  # from node 3; agents notice none of it, and messages of MPI wait
    "partition from node 0": Kind(INTERRUPTION, (1, 2), _LONG),
    "clock": Kind(None, _ANY),
    "full volume": Kind(None, (0,), _LONG),
    "API server": Kind(FAILURE, _ANY, _LONG),  # a rank is killed meanwhile
    "JobSet": Kind(INTERRUPTION, (1, 2), _SHORT),  # a pod is deleted meanwhile
}
OF_STREAMS = {
    "evict worker": Kind(None, (0, 1)),
    "kill worker": Kind(None, (0, 1)),
    "scheduler": Kind(FAILURE, (0,)),
}
# Where a pod stands by: of two lost nodes one is taken over, and one that is lost with that pod by none.
OF_STANDBY = {
    "evict standby": Kind(None, (0,)),
    "agent standby": Kind(None, (0,)),
    "two nodes": Kind(INTERRUPTION, (1,), most=2),
    "node and standby": Kind(INTERRUPTION, (1, 2), most=2),
}
# Each node starts its own ranks, and none has an sshd.
_OF_TORCHRUN = {**{name: kind for name, kind in KINDS.items() if name != "sshd"}, "launcher": Kind(FAILURE, _ANY)}
ALONE, STREAM, WITH_STANDBY, TORCHRUN = "alone", "stream", "standby", "torchrun"
PARTS = {
    ALONE: KINDS,
    STREAM: {**KINDS, **OF_STREAMS},
    WITH_STANDBY: {**KINDS, **OF_STANDBY},
    TORCHRUN: _OF_TORCHRUN,
}


def schedule(seed: int, count: int, part: str) -> list[Fault]:
    """So many faults of a part of the endurance test, of each kind one before any comes again. Pure."""
    generator, known = random.Random(seed), PARTS[part]
    gaps = _LONG_GAPS if part == WITH_STANDBY else _GAPS
    found = []
    for kind in faults.rounds(generator, known, count):
        node, gap = generator.choice(known[kind].nodes), generator.randint(*gaps)
        seconds = round(generator.uniform(*known[kind].seconds), 1)
        other = STAYS if kind == "partition" else 0
        jump = generator.choice((-1, 1)) * generator.randint(1, _JUMP) if kind == "clock" else 0
        found.append(Fault(kind, node, gap, seconds, other, jump))
    return found


@dataclass
class Injector:
    """Injects faults into a run, some of which need the *clocks* of its pods."""

    run: FollowedRun
    clocks: ShiftedClocks | None = None

    def inject(self, fault: Fault) -> None:
        """Cause a fault; one that lasts for a while is over at the end."""
        with self._during(fault):
            time.sleep(fault.seconds)

    @contextlib.contextmanager
    def _during(self, fault: Fault) -> Iterator[None]:
        run, testbed = self.run, self.run.runs.testbed
        with contextlib.ExitStack() as lasting:
            if fault.kind == "stop rank":
                lasting.enter_context(faults.stopped(run.rank(run.at_work(fault.node))))
            elif fault.kind == "stop agent":
                lasting.enter_context(faults.stopped(self._process(run.at_work(fault.node), "agent")))
            elif fault.kind.startswith("partition"):
                lasting.enter_context(faults.partitioned(*self._end(fault.node), *self._end(fault.other)))
            elif fault.kind == "full volume":
                assert run.runs.volume is not None
                lasting.enter_context(faults.filled(run.runs.volume))
            elif fault.kind == "API server":
                rank = run.rank(run.at_work(fault.node))  # needs the server
                lasting.enter_context(testbed.plane.without_api_server())
                os.kill(rank, signal.SIGKILL)
            elif fault.kind == "JobSet":
                lasting.enter_context(testbed.jobset.stopped())
                self._take("delete", run.at_work(fault.node))
            elif fault.kind == "clock":
                assert self.clocks is not None
                self.clocks.set(run.pod(run.at_work(fault.node))["spec"]["hostname"], fault.jump)
            else:
                self._strike(fault)
            yield

    def _strike(self, fault: Fault) -> None:
        """Cause a fault that is over at once."""
        how, _, who = fault.kind.partition(" ")
        run = self.run
        pod = self._standing_by() if who == "standby" else run.at_work(fault.node)
        if who == "worker" or how == "kill":
            member = Member(WORKER if who == "worker" else NODE, fault.node)
            wait_for(f"{member} at work", lambda: self._is_hit(member, how))  # the last fault may have taken it
        elif how in TAKEN:
            # One that stands by may be at work by the next fault: a late kubelet would end an attempt then.
            self._take(how, pod, ends=who == "standby")
        elif how == "rank":
            os.kill(run.rank(pod), signal.SIGKILL)
        elif fault.kind == "two nodes":
            self._take("force", pod, run.at_work(2))
        elif fault.kind == "node and standby":
            self._take("force", pod, self._standing_by())
        else:
            process = self._process(pod, how)
            print(f"kills {how} of {pod}: {self.run.processes(pod).get(process)}", flush=True)  # for a failure
            os.kill(process, signal.SIGKILL)

    def _is_hit(self, member: Member, how: str) -> bool:
        """Inject a fault with `spotmpi drill`'s function; False where the member is not at work yet."""
        with contextlib.suppress(NotRunning):
            self.run.runs.backend.inject_fault(self.run.id, member, how)
            return True
        return False

    def _standing_by(self) -> Member:
        """The pod that stands by, by what it was at the beginning; it may be on its way."""
        at_work = [self.run.at_work(node) for node in range(NODES)]
        pods = [*(Member(NODE, node) for node in range(NODES)), STANDS_BY]
        (pod,) = [each for each in pods if each not in at_work]
        runs = self.run.runs  # of a pod whose agent was killed the end is seen a moment later
        wait_for("a pod that stands by", lambda: any(map(_is_running, runs.pods(self.run.id, pod))))
        return pod

    def _take(self, how: str, *members: Member, ends: bool = False) -> None:
        """Take the pods of some members, by one command; of several, or with *ends*, no process is left at the end.

        Their kubelets kill them seconds apart, and one that stood by may be at work in between.
        """
        runs, pods = self.run.runs, list[Object]()

        def is_taken() -> bool:
            pods[:] = [self.run.pod(member) for member in members]
            try:
                faults.take_pod(runs.testbed, runs.namespace, *(pod["metadata"]["name"] for pod in pods), how=how)
            except TestbedError as error:
                if len(pods) > 1 or "NotFound" not in str(error):  # of several, one may have been taken
                    raise
                return False  # it has just been replaced
            return True

        wait_for(f"pods of {', '.join(map(str, members))}", is_taken)
        if ends or len(pods) > 1:
            wait_for("the end of these pods", lambda: not any(map(self._processes, pods)), _LATE_KUBELET)

    def _process(self, member: Member, what: str) -> int:
        return self.run.process(member, what, COMMANDS[what])

    def _end(self, node: int) -> tuple[int, str]:
        """A process of a node's pod, and the pod's address."""
        pod: Object = self.run.pod(self.run.at_work(node))
        return min(self._processes(pod)), str(pod["status"]["podIP"])

    def _processes(self, pod: Object) -> dict[int, str]:
        """The command line of every process of a pod, by process id on this machine."""
        return self.run.runs.testbed.node(pod["spec"]["nodeName"]).pod_processes(pod["metadata"]["uid"])


def _is_running(pod: Object) -> bool:
    return pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")


def is_launcher(command: str) -> bool:
    """Whether a command line is mpirun's, which Open MPI 5 turns into prterun, or starts ranks of torchrun."""
    return any(part.endswith(("/mpirun", "/prterun", "/local_ranks.py")) for part in command.split()[:4])


COMMANDS: dict[str, Callable[[str], bool]] = {
    "sshd": lambda command: "sshd" in command and " -D" in command,
    "launcher": is_launcher,
    "agent": lambda command: command.endswith("-m spotmpi.agent"),
    "scheduler": lambda command: "-m spotmpi.programs.pool.scheduler" in command,
}
